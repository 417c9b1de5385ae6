#include "agent/turn_keeper.h"

#include <algorithm>
#include <cstring>

namespace sluice::agent {
namespace {

constexpr uint64_t kHeartbeatNs = 100'000'000;
constexpr uint64_t kProbeNs = 5'000'000;  // between looks at the lock of a slot that holds up something
constexpr uint64_t kRereadNs =
    2'000'000;  // a doorbell that was missed costs no more than this while turns are in force
constexpr uint32_t kAskedBeyond = 4;
constexpr uint64_t kSettleReserveNs = 60'000'000'000;  // times further ahead than this are nonsense

constexpr uint64_t kArmAheadNs = 200'000;
constexpr uint64_t kMostLateNs = 6'000'000;
constexpr double kUsualLateNs = 40'000;
constexpr double kMostExtraNs = 1'800'000;
// A hand-over takes about three wake-ups (settler, keeper, launcher): where these take long, turns are longer, so that
// hand-overs stay a hundredth of the card.
constexpr double kPromptNs = 20'000;
constexpr double kTurnPerLatenessNs = 800;
// Where threads can spin for a hand-over it costs 20 us: short turns then keep every second exact, since the shares of
// a second differ by up to a turn. Without spinning it costs ten times as much.
struct TurnLengths {
  double shortest_ns;
  double longest_ns;
};
constexpr TurnLengths kSpinning = {4'000'000, 10'000'000};
constexpr TurnLengths kSleeping = {6'000'000, 20'000'000};

uint64_t card_offset(uint32_t card) {
  return sizeof(page::UsageHeader) + uint64_t{card} * sizeof(page::UsageCard);
}

uint32_t gate_word(const core::GateDecision& decision, uint32_t permille) {
  // Without a cap and without a neighbour nothing need be measured.
  if (permille == 0 && !decision.turns && !decision.watch) return page::kGateFree;
  return (decision.turns ? page::kGateTurns : 0u) | (decision.open ? page::kGateOpen : 0u) |
         (decision.lent ? page::kGateLent : 0u) | (decision.armed ? page::kGateArmed : 0u) |
         (decision.long_units ? page::kGateLong : 0u) | (decision.watch ? page::kGateWatch : 0u) |
         (decision.brief ? page::kGateBrief : 0u) | (decision.turn << page::kGateTurnShift);
}

}  // namespace

// Plain copies of what the page held; the page's own types are atomics.
struct TurnKeeper::Member {
  struct SlotWords {
    uint32_t activity, blocked;
    uint64_t outstanding_ns;
    uint32_t units, longest_unit_us;
    uint64_t low_water_ns, predicted_drain_ns, overdue_ns, interval_head;
    uint32_t turn_seen, attached;
  };
  static_assert(sizeof(SlotWords) == sizeof(page::ComputeSlot));
  struct Head {
    uint64_t credit[2];
    uint32_t hysteresis, slot_high;
    uint64_t resume_ns;
    uint8_t between[offsetof(page::Account, doorbell) - 32];
    uint32_t doorbell;
    uint8_t rest[sizeof(page::Account) - offsetof(page::Account, doorbell) - 4];
  };
  static_assert(sizeof(Head) == sizeof(page::Account) && offsetof(page::UsageCard, compute) == sizeof(Head));
  static_assert(offsetof(page::Account, resume_ns) == 24 && offsetof(page::Account, slot_high) == 20);

  TurnContainer container;
  uint32_t permille = 0;
  uint32_t gate = 0;      // as last written
  uint32_t doorbell = 0;  // as last read
  bool probe_now = false;
  uint32_t slot_high = 0;  // slots [0, slot_high) were in use at some time
  uint64_t asked_beyond_ns = 0;
  std::vector<uint64_t> probed_ns;  // per slot: last look at its lock
  std::vector<uint8_t> dead;        // per slot: nobody held the lock at the last look
  std::vector<SlotWords> slots;
  std::vector<char> buffer;
};

TurnKeeper::TurnKeeper(TurnHost& host, const core::ArbiterSettings& settings) : host_(host), arbiter_(settings) {}
TurnKeeper::~TurnKeeper() = default;

void TurnKeeper::kick() {
  kick_.fetch_add(1);
  host_.wake(&kick_);
}

// Ceilings by policy, into the arbiter and into the grants.
void TurnKeeper::apply_shares() {
  std::vector<core::ShareRequest> requests;
  for (const std::unique_ptr<Member>& member : members_) requests.push_back(member->container.share);
  const std::vector<uint32_t> shares = core::shares_of(policy_, max_containers_, requests);
  arbiter_.set_policy(policy_);
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = *members_[i];
    const core::ShareRequest& share = member.container.share;
    page::GrantCard& grant = *member.container.grant;
    member.permille = shares[i];
    arbiter_.put(member.container.id, shares[i], share.weight, share.high_priority);
    grant.core_permille.store(shares[i]);
    grant.policy.store(static_cast<uint32_t>(policy_));
    grant.weight.store(share.weight);
    grant.flags.store(share.high_priority ? page::kFlagHighPriority : 0u);
    grant.limits_version.fetch_add(1);
  }
}

void TurnKeeper::add(const TurnContainer& container) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Member>& member : members_) {
      if (member->container.id == container.id) return;
    }
    std::unique_ptr<Member> member = std::make_unique<Member>();
    member->container = container;
    member->probed_ns.resize(page::kMaxProcesses, 0);
    member->dead.resize(page::kMaxProcesses, 0);
    member->gate = ~0u;
    members_.push_back(std::move(member));
    apply_shares();
    heartbeat_at_ns_ = 0;
  }
  kick();
}

void TurnKeeper::remove(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < members_.size(); ++i) {
      if (members_[i]->container.id != id) continue;
      page::GrantCard& grant = *members_[i]->container.grant;
      grant.gate.store(0);
      grant.beside.store(0);
      grant.heartbeat_ns.store(0);
      host_.wake(&grant.gate);
      arbiter_.remove(id);
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    apply_shares();
  }
  kick();
}

void TurnKeeper::set_share(uint64_t id, const core::ShareRequest& share) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Member>& member : members_) {
      if (member->container.id == id) member->container.share = share;
    }
    apply_shares();
  }
  kick();
}

void TurnKeeper::set_policy(core::ComputePolicy policy, uint32_t max_containers) {
  {
    const std::lock_guard lock(mutex_);
    policy_ = policy;
    max_containers_ = max_containers;
    apply_shares();
  }
  kick();
}

void TurnKeeper::process_died(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Member>& member : members_) {
      if (member->container.id == id) member->probe_now = true;
    }
  }
  kick();
}

// How many slots to read. The container can write the page's own figure down, and would then work on while nobody is
// seen to; slots once seen stay, and now and then the locks of the next few are asked, which no write can hide.
uint32_t TurnKeeper::slots_in_use(Member& member, uint32_t claimed, uint64_t now_ns) {
  member.slot_high = std::max(member.slot_high, std::min(claimed, page::kMaxProcesses));
  if (now_ns - member.asked_beyond_ns < kHeartbeatNs) return member.slot_high;
  member.asked_beyond_ns = now_ns;
  const uint32_t first = member.slot_high;
  for (uint32_t i = first; i < std::min(first + kAskedBeyond, page::kMaxProcesses); ++i) {
    if (member.container.usage->slot_owned(member.container.usage_card, i)) member.slot_high = i + 1;
  }
  return member.slot_high;
}

// Reads one container's page. Everything in it is taken as a claim; sums are bounded by their types.
core::ContainerView TurnKeeper::look(Member& member, uint64_t now_ns) {
  core::ContainerView view;
  UsageView& usage = *member.container.usage;
  const uint32_t card = member.container.usage_card;
  const uint64_t base = card_offset(card);
  // One read of the account and the slots that lie behind it. The doorbell in it may be older than the slots' words,
  // never newer: programs ring after they have written.
  Member::Head head;
  const uint32_t expected = std::min<uint32_t>(static_cast<uint32_t>(member.slots.size()), page::kMaxProcesses);
  member.buffer.resize(sizeof head + expected * sizeof(Member::SlotWords));
  if (!usage.read(base, member.buffer.data(), member.buffer.size())) return view;
  std::memcpy(&head, member.buffer.data(), sizeof head);
  member.doorbell = head.doorbell;
  const uint64_t resume_ns = head.resume_ns;
  const uint32_t count = slots_in_use(member, head.slot_high, now_ns);
  if (count != expected) {
    member.slots.resize(count);
    member.buffer.resize(sizeof head + count * sizeof(Member::SlotWords));
    if (!usage.read(base, member.buffer.data(), member.buffer.size())) return view;
  }
  if (count != 0) {
    std::memcpy(member.slots.data(), member.buffer.data() + sizeof head, count * sizeof(Member::SlotWords));
  }
  view.resume_ns = resume_ns < now_ns + kSettleReserveNs ? resume_ns : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const Member::SlotWords& slot = member.slots[i];
    if (slot.attached == 0) {
      member.dead[i] = 0;
      continue;
    }
    // A process that holds something up may be dead: the kernel knows.
    const bool busy = slot.activity != 0;
    if (busy && (member.probe_now || now_ns - member.probed_ns[i] >= kProbeNs)) {
      member.probed_ns[i] = now_ns;
      member.dead[i] = usage.slot_owned(card, i) ? 0 : 1;
    }
    if (!busy && member.dead[i] != 0) member.dead[i] = 0;
    if (member.dead[i] != 0) continue;
    view.attached = true;
    const bool waits = (slot.activity >> page::kWaitingShift) != 0;
    view.waiting = view.waiting || waits;
    if ((slot.activity & page::kDirtyMask) != 0) {
      ++view.dirty_processes;
      const uint64_t due_ns = slot.low_water_ns + slot.outstanding_ns;
      if (due_ns < now_ns + kSettleReserveNs) view.due_ns = std::max(view.due_ns, due_ns);
    }
    if (waits && slot.turn_seen == member.gate) {
      view.blocked_by_turn = view.blocked_by_turn || slot.blocked == page::kBlockedByTurn;
      view.blocked_by_credit = view.blocked_by_credit || slot.blocked == page::kBlockedByCredit;
    }
    view.predicted_drain_ns = std::max(view.predicted_drain_ns, slot.predicted_drain_ns);
    view.longest_unit_ns = std::max(view.longest_unit_ns, uint64_t{slot.longest_unit_us} * 1000);
  }
  view.dirty = view.dirty_processes != 0;
  member.probe_now = false;
  return view;
}

// Closing gates are written before an opening one, so that no two containers ever see theirs open.
void TurnKeeper::write_gates(const core::Arbiter::Outcome& outcome, uint64_t now_ns) {
  for (const bool opening : {false, true}) {
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = *members_[i];
      const core::GateDecision& decision = outcome.gates[i];
      if (decision.open != opening) continue;
      page::GrantCard& grant = *member.container.grant;
      if (grant.turn_end_ns.load(std::memory_order_relaxed) != decision.turn_end_ns) {
        grant.turn_end_ns.store(decision.turn_end_ns);
      }
      if (grant.beside.load(std::memory_order_relaxed) != decision.beside) grant.beside.store(decision.beside);
      const uint32_t word = gate_word(decision, member.permille);
      if (word == member.gate) continue;
      if (word == page::kGateFree) grant.free_count.fetch_add(1);
      member.gate = word;
      grant.gate.store(word);
      host_.wake(&grant.gate);
    }
  }
  if (now_ns < heartbeat_at_ns_) return;
  heartbeat_at_ns_ = now_ns + kHeartbeatNs;
  for (const std::unique_ptr<Member>& member : members_) {
    member->container.grant->heartbeat_ns.store(now_ns);
    member->container.grant->containers_active.store(arbiter_.active());
  }
}

uint64_t TurnKeeper::poll_locked() {
  views_.clear();
  const uint64_t now_ns = host_.now_ns();
  for (const std::unique_ptr<Member>& member : members_) views_.push_back(look(*member, now_ns));
  // The reads took time; decisions are for the present time.
  const uint64_t then_ns = std::max(now_ns, host_.now_ns());
  const core::Arbiter::Outcome& outcome = arbiter_.step(then_ns, views_);
  write_gates(outcome, then_ns);
  uint64_t next = std::min(outcome.next_ns, std::max(heartbeat_at_ns_, then_ns + 1));
  if (outcome.turns) next = std::min(next, then_ns + kRereadNs);
  plan_.deadline_ns = next;
  plan_.spin = outcome.watch_closely;
  plan_.words.clear();
  for (const std::unique_ptr<Member>& member : members_) {
    const uint64_t offset = card_offset(member->container.usage_card) + offsetof(page::Account, doorbell);
    if (const volatile uint32_t* word = member->container.usage->futex_word(offset)) {
      plan_.words.push_back({word, member->doorbell});
    }
  }
  return next;
}

uint64_t TurnKeeper::poll() {
  const std::lock_guard lock(mutex_);
  return poll_locked();
}

// How late this thread wakes tells how late the programs' threads will: average lateness, and from it how long before a
// drain the next holder is named (0.2 ms on a quiet machine, up to 2 ms on one whose processors are all taken), and how
// long turns are (6 ms where wake-ups take 10 us, 15 ms where they take 40).
void TurnKeeper::note_lateness(uint64_t deadline_ns) {
  const uint64_t now_ns = host_.now_ns();
  if (now_ns < deadline_ns) return;  // woken before
  const double late = static_cast<double>(std::min(now_ns - deadline_ns, kMostLateNs));
  lateness_ns_ += (late - lateness_ns_) / 64;
  const double extra = std::max(0.0, lateness_ns_ - kUsualLateNs) * 8;
  const std::lock_guard lock(mutex_);
  arbiter_.set_arm_ahead(kArmAheadNs + static_cast<uint64_t>(std::min(extra, kMostExtraNs)));
  const TurnLengths& turns = host_.spins() ? kSpinning : kSleeping;
  const double longer = std::max(0.0, lateness_ns_ - kPromptNs) * kTurnPerLatenessNs;
  arbiter_.set_turn(static_cast<uint64_t>(std::min(turns.shortest_ns + longer, turns.longest_ns)));
}

void TurnKeeper::run() {
  while (!stop_.load()) {
    const uint32_t kick_seen = kick_.load();
    WaitPlan plan;
    {
      const std::lock_guard lock(mutex_);
      poll_locked();
      plan = plan_;
    }
    if (plan.spin) {
      host_.spin_pause();
      continue;
    }
    plan.words.push_back({reinterpret_cast<const volatile uint32_t*>(&kick_), kick_seen});
    host_.wait_any(plan.words, plan.deadline_ns);
    note_lateness(plan.deadline_ns);
  }
}

void TurnKeeper::stop() {
  stop_.store(true);
  kick();
}

bool TurnKeeper::turns_in_force() {
  const std::lock_guard lock(mutex_);
  return std::any_of(members_.begin(), members_.end(),
                     [](const std::unique_ptr<Member>& member) { return (member->gate & page::kGateTurns) != 0; });
}

std::vector<TurnReport> TurnKeeper::report() {
  const std::lock_guard lock(mutex_);
  std::vector<TurnReport> reports;
  const uint64_t now_ns = host_.now_ns();
  for (size_t i = 0; i < members_.size(); ++i) {
    TurnReport report;
    report.id = members_[i]->container.id;
    report.permille = members_[i]->permille;
    report.holds_turn = arbiter_.holder() == static_cast<int>(i);
    report.active = arbiter_.is_active(i, now_ns);
    report.counters = arbiter_.counters(i);
    std::atomic<uint32_t>& gate = members_[i]->container.grant->gate;
    if (members_[i]->gate != ~0u && gate.load() != members_[i]->gate) {
      gate.store(members_[i]->gate);
      host_.wake(&gate);
      report.gate_mended = true;
    }
    reports.push_back(report);
  }
  return reports;
}

}  // namespace sluice::agent
