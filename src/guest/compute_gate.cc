// The gate: a unit of work asks the governor, and waits until it may go.
#include "guest/compute_internal.h"
#include "guest/notify.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kRoomSpinNs = 1'500'000;
constexpr uint64_t kUsualLateNs = 150'000;  // later than this, and more is kept in flight
constexpr uint64_t kSpinLateNs = 500'000;   // and than this, and launchers spin for room
constexpr uint32_t kWakeMemory = 256;       // a late wake-up is remembered for about so many
constexpr uint64_t kMostExtraNs = 4'000'000;
constexpr uint64_t kArmedSpinNs = 4'000'000;
constexpr uint32_t kTrustedUnits = 4;
constexpr uint64_t kNeighbours = page::kGateTurns | page::kGateWatch;

// The container's other cards: would their gates open too? Ranks that wait for each other must not find one card open
// and the next one shut.
bool siblings_ready(Guest* guest, uint32_t card, uint64_t now_ns) {
  for (uint32_t other = 0; other < guest->card_count; ++other) {
    if (other == card || guest->cards[other].usage == nullptr) continue;
    page::UsageCard& usage = card_usage(guest, other);
    if (usage.account.hysteresis.load(std::memory_order_relaxed) != 0) continue;
    const governor::InFlight in_flight = governor::sum_in_flight(usage);
    if (in_flight.units == 0 && in_flight.waiting == 0) continue;
    if (!governor::credit_ready(now_ns, usage)) return false;
  }
  return true;
}

void follow_limits(Guest* guest, uint32_t card, const governor::Limits& limits, uint64_t now_ns) {
  CardCompute& state = card_compute(guest, card);
  if ((guest->compute.mutations & kMutateLimits) != 0) return;
  const uint32_t version = guest->cards[card].grant->limits_version.load(std::memory_order_relaxed);
  const governor::Credit credit = governor::load_credit(card_usage(guest, card).account);
  if (state.limits_version.load(std::memory_order_relaxed) == version && credit.permille == limits.permille) return;
  governor::set_quota(card_usage(guest, card), limits.permille, now_ns);
  state.limits_version.store(version, std::memory_order_relaxed);
}

// Where threads wake late (a machine whose processors are all taken), more must be in flight, or the card runs dry
// before the settler has seen that there is room and the launcher has come back.
uint64_t extra_in_flight(const Compute& compute, const CardCompute& state) {
  const uint64_t wake_late = state.wake_late_ns.load(std::memory_order_relaxed);
  const uint64_t settle_late = compute.settle_late_ns.load(std::memory_order_relaxed);
  const uint64_t late = wake_late > settle_late ? wake_late : settle_late;
  if (late <= kUsualLateNs) return 0;
  return late < kMostExtraNs ? late : kMostExtraNs;
}

class Waiting {
 public:
  Waiting(Guest* guest, uint32_t card) : guest_(guest), card_(card) {}
  ~Waiting() {
    if (!counted_) return;
    own_slot(guest_, card_).activity.fetch_sub(1u << page::kWaitingShift, std::memory_order_seq_cst);
    card_compute(guest_, card_).waiting.fetch_sub(1, std::memory_order_relaxed);
    const uint64_t waited = now_of(guest_) - since_ns_;
    card_usage(guest_, card_).slots[card_slot(guest_, card_)].throttled_ns.fetch_add(waited, std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  bool counted() const { return counted_; }

  // From here on whoever settles wakes the gate. Ask once more after this: what was settled before woke nobody.
  void count(const governor::Decision& decision, const governor::Limits& limits, uint64_t now_ns) {
    counted_ = true;
    since_ns_ = now_ns;
    untold_ = true;
    report(decision, limits);
    own_slot(guest_, card_).activity.fetch_add(1u << page::kWaitingShift, std::memory_order_seq_cst);
    card_compute(guest_, card_).waiting.fetch_add(1, std::memory_order_relaxed);
    wake_settler(guest_);
  }

  // `settled`: the card's count before the question that was refused.
  void wait(const governor::Decision& decision, const governor::Limits& limits, uint32_t settled, uint64_t now_ns) {
    if ((report(decision, limits) || untold_) && (limits.gate & kNeighbours) != 0) ring_doorbell(guest_, card_);
    untold_ = false;
    const std::atomic<uint32_t>& gate = guest_->cards[card_].grant->gate;
    const bool armed = (limits.gate & page::kGateArmed) != 0 && !mutated(kMutateArming);
    if (armed && guest_->seams.waiter->may_spin() && spin_for_turn(gate, limits.gate, now_ns)) return;
    // What is in flight is short, and the turn may go on after it.
    const bool in_turn = decision.blocked == page::kBlockedByTurn && (limits.gate & page::kGateOpen) != 0;
    if ((decision.blocked == page::kBlockedByBound || in_turn) && spin_for_room(gate, limits.gate, now_ns)) return;
    // Nobody slept when the gate was woken before: that would count as a wake-up of milliseconds.
    card_compute(guest_, card_).woken_ns.store(0, std::memory_order_relaxed);
    if (card_compute(guest_, card_).settled.load(std::memory_order_acquire) != settled) return;
    const uint64_t timeout = decision.retry_ns > now_ns ? decision.retry_ns - now_ns : 1'000;
    guest_->seams.waiter->wait(reinterpret_cast<const volatile uint32_t*>(&gate), limits.gate,
                               timeout < governor::kGateWaitNs ? timeout : governor::kGateWaitNs);
    note_wake();
  }

 private:
  bool mutated(Mutation rule) const { return (guest_->compute.mutations & rule) != 0; }

  // Says why this process waits; true when that is news.
  bool report(const governor::Decision& decision, const governor::Limits& limits) {
    page::ComputeSlot& slot = own_slot(guest_, card_);
    const uint32_t blocked = slot.blocked.exchange(decision.blocked, std::memory_order_relaxed);
    const uint32_t seen = slot.turn_seen.exchange(limits.gate, std::memory_order_seq_cst);
    return blocked != static_cast<uint32_t>(decision.blocked) || seen != limits.gate;
  }

  // Named as the next holder: the first launcher of the process spins, so that the card does not wait for a wake-up.
  bool spin_for_turn(const std::atomic<uint32_t>& gate, uint32_t word, uint64_t now_ns) {
    CardCompute& state = card_compute(guest_, card_);
    if (state.armed_spinners.fetch_add(1, std::memory_order_relaxed) != 0) {
      state.armed_spinners.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    bool changed = false;
    while (!changed && now_of(guest_) - now_ns < kArmedSpinNs) {
      guest_->seams.waiter->spin_pause();
      changed = gate.load(std::memory_order_acquire) != word;
    }
    state.armed_spinners.fetch_sub(1, std::memory_order_relaxed);
    return changed;
  }

  // Where woken threads come late (a machine whose processors are all taken), the card would run dry before a launcher
  // that waits for room is back: it spins instead, for about as long as what is in flight takes.
  bool spin_for_room(const std::atomic<uint32_t>& gate, uint32_t word, uint64_t now_ns) {
    CardCompute& state = card_compute(guest_, card_);
    if (!guest_->seams.waiter->may_spin() || state.wake_late_ns.load(std::memory_order_relaxed) < kSpinLateNs)
      return false;
    if (state.room_spinners.fetch_add(1, std::memory_order_relaxed) != 0) {
      state.room_spinners.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    const uint32_t settled = state.settled.load(std::memory_order_acquire);
    bool news = false;
    while (!news && now_of(guest_) - now_ns < kRoomSpinNs) {
      guest_->seams.waiter->spin_pause();
      news = state.settled.load(std::memory_order_acquire) != settled || gate.load(std::memory_order_acquire) != word;
    }
    state.room_spinners.fetch_sub(1, std::memory_order_relaxed);
    return news;
  }

  void note_wake() {
    CardCompute& state = card_compute(guest_, card_);
    const uint64_t woken = state.woken_ns.exchange(0, std::memory_order_relaxed);
    const uint64_t now = now_of(guest_);
    if (woken == 0 || now < woken) return;
    note_late(state.wake_late_ns, now - woken, kWakeMemory);
  }

  Guest* guest_;
  uint32_t card_;
  bool counted_ = false;
  bool untold_ = false;  // the node has not heard that this thread waits
  uint64_t since_ns_ = 0;
};

// Reserves what the governor allowed. False when the gate closed in between: the dirty count was raised before the gate
// word was read again, so either the arbiter sees the work or we see the closed gate.
bool reserve(Guest* guest, StreamState* stream, uint64_t ns, uint32_t units, uint32_t gate, uint64_t now_ns) {
  add_in_flight(guest, stream->card, ns, units);
  make_dirty(guest, stream, now_ns);
  const uint32_t again = guest->cards[stream->card].grant->gate.load(std::memory_order_seq_cst);
  if (again == gate || (again & page::kGateTurns) == 0 || (again & page::kGateOpen) != 0) return true;
  drop_in_flight(guest, stream->card, ns, units);
  return false;
}

void note_prediction(Guest* guest, uint32_t card, uint64_t now_ns, const Launch& launch) {
  page::ComputeSlot& slot = own_slot(guest, card);
  const uint64_t low = slot.low_water_ns.load(std::memory_order_relaxed);
  const uint64_t drain = (low == page::kIdle ? now_ns : low) + slot.outstanding_ns.load(std::memory_order_relaxed);
  slot.predicted_drain_ns.store(drain > now_ns ? drain : now_ns, std::memory_order_relaxed);
  if (slot.overdue_ns.load(std::memory_order_relaxed) != page::kIdle) return;
  const uint64_t longest = launch.estimate->longest_ns.load(std::memory_order_relaxed);
  slot.overdue_ns.store(governor::overdue_after(now_ns, longest, launch.cost_ns != 0), std::memory_order_relaxed);
}

// Admitted and reserved: continues the stream's open segment, or opens one.
bool enter_segment(Guest* guest, StreamState* stream, Launch& launch, uint64_t reserved_ns, uint32_t reserved_units,
                   uint64_t segment_ns, uint32_t gate, bool waited) {
  StreamOwner owner(stream, guest->seams.waiter);
  if (stream->dead.load(std::memory_order_relaxed) != 0) return false;
  stream->segment_ns = segment_ns;
  Segment* open = stream->open.load(std::memory_order_relaxed);
  if (open != nullptr && segment_has_room(stream, open, launch.cost_ns)) {
    SpinGuard guard(card_compute(guest, stream->card).lock, guest->seams.waiter);
    open->reserved_ns += reserved_ns;
    open->reserved_units += reserved_units;
    const uint64_t used = open->used_ns.load(std::memory_order_relaxed);
    stream->limit_ns.store(used + reserved_ns, std::memory_order_relaxed);
    stream->limit_units.store(1u << stream->depth, std::memory_order_relaxed);
    open->used_ns.store(used + launch.cost_ns, std::memory_order_relaxed);
    open->units.store(open->units.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (open->first != launch.estimate) open->mixed.store(1, std::memory_order_relaxed);
    stream->gate_seen.store(gate, std::memory_order_release);
    launch.segment = open;
    return true;
  }
  close_segment(guest, stream);
  if (!open_segment(guest, stream, launch.estimate, launch.cost_ns, reserved_ns, reserved_units, waited)) return false;
  launch.segment = stream->open.load(std::memory_order_relaxed);
  stream->limit_ns.store(launch.cost_ns == 0 ? 0 : reserved_ns, std::memory_order_relaxed);
  stream->limit_units.store(1u << stream->depth, std::memory_order_relaxed);
  stream->gate_seen.store(gate, std::memory_order_release);
  return true;
}

}  // namespace

void ring_doorbell(Guest* guest, uint32_t card) {
  page::Account& account = card_usage(guest, card).account;
  account.doorbell.fetch_add(1, std::memory_order_seq_cst);
  guest->seams.waiter->wake(reinterpret_cast<volatile uint32_t*>(&account.doorbell), 1);
}

bool pass_gate(Guest* guest, StreamState* stream, Launch& launch) {
  const uint32_t card = stream->card;
  page::UsageCard& usage = card_usage(guest, card);
  Waiting waiting(guest, card);
  // Before the segment's marker: nothing may hold up the launch behind it.
  settle_card(guest, card);
  for (;;) {
    const uint64_t now = now_of(guest);
    const uint32_t settled = card_compute(guest, card).settled.load(std::memory_order_acquire);
    governor::Limits limits = governor::read_limits(*guest->cards[card].grant, now);
    follow_limits(guest, card, limits, now);
    const bool brief = (limits.gate & page::kGateBrief) != 0;
    limits.in_flight_ns = (brief          ? governor::kBriefInFlightNs
                           : limits.turns ? governor::kTurnInFlightNs
                                          : governor::kInFlightNs) +
                          extra_in_flight(guest->compute, card_compute(guest, card));
    if (limits.gate == page::kGateFree) return false;  // opened for good while we waited: nothing is measured any more
    if (guest->card_count > 1) limits.siblings_ready = siblings_ready(guest, card, now);
    limits.mutations = guest->compute.mutations;
    const governor::InFlight in_flight = governor::sum_in_flight(usage);
    governor::Ask ask;
    // Some that were short say little about the next thousand: no more than four times as many as were measured go
    // together, or a function that takes 5 us or 1 ms begins with a tenth of a second at once.
    const uint64_t together = uint64_t{kTrustedUnits} * launch.estimate->measured.load(std::memory_order_relaxed);
    ask.known = launch.cost_ns != 0 && in_flight.units < together;
    ask.estimate_ns = ask.known ? launch.cost_ns : governor::kUnknownNs;
    ask.first = !waiting.counted();
    ask.behind = stream->pending != nullptr;
    governor::Decision decision = governor::step(now, usage, limits, in_flight, ask);
    if ((guest->compute.mutations & kMutateBound) != 0 && decision.blocked == page::kBlockedByBound) {
      decision.admit = true;
      decision.allowance_ns = ask.estimate_ns;
    }
    if (decision.admit) {
      // No more than the segment can take, so that little is reserved that will not be used.
      const uint32_t depth = stream->depth < 8 ? stream->depth + 1 : 8;
      uint64_t reserved_ns = decision.allowance_ns;
      uint32_t units = governor::kUnknownUnits;
      if (!ask.known && launch.cost_ns != 0) {
        reserved_ns = launch.cost_ns;
        units = 1;
      }
      if (ask.known) {
        const uint64_t most = ask.estimate_ns << depth;
        if (reserved_ns > most) reserved_ns = most;
        units = static_cast<uint32_t>(reserved_ns / ask.estimate_ns);
        if (in_flight.units + units > together) {
          units = static_cast<uint32_t>(together - in_flight.units);
          reserved_ns = units * ask.estimate_ns;
        }
        if (units == 0) units = 1;
      }
      // Before the stream is dirty: the settler must not take a stream for drained whose segment is not open yet.
      stream->launching.fetch_add(1, std::memory_order_seq_cst);
      if (!reserve(guest, stream, reserved_ns, units, limits.gate, now)) {
        stream->launching.fetch_sub(1, std::memory_order_release);
        continue;
      }
      if (enter_segment(guest, stream, launch, reserved_ns, units, governor::segment_ns(limits), limits.gate,
                        waiting.counted())) {
        note_prediction(guest, card, now, launch);
        wake_settler(guest);
        return true;
      }
      stream->launching.fetch_sub(1, std::memory_order_release);
      drop_in_flight(guest, card, reserved_ns, units);
      return false;
    }
    if (stream->open.load(std::memory_order_acquire) != nullptr) {
      StreamOwner owner(stream, guest->seams.waiter);
      close_segment(guest, stream);
      continue;  // what was reserved and not used is back
    }
    if (!waiting.counted()) {
      waiting.count(decision, limits, now_of(guest));
      settle_card(guest, card);
      continue;
    }
    waiting.wait(decision, limits, settled, now_of(guest));
  }
}

}  // namespace sluice::guest
