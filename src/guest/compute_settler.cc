// The settler: one thread per process, made when work is first measured. It settles what launches do not settle
// themselves, marks the tails of streams that fell silent or whose gate has closed, and renews time bases. While
// somebody waits at the gate it looks every 20 us (at 100 us, 1 ms kernels at 95 % would get 90.5), else twenty times
// less often, and it sleeps while nothing is under way.
#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kUrgentNs = 20'000;
constexpr uint64_t kDrainingNs = 3'000;  // a whole card waits for the end of this
// While nobody waits. A segment that is open must be marked before its stream runs dry; without one there is nothing to
// do that a launch does not do too.
constexpr uint64_t kRelaxedNs = 1'000'000;
constexpr uint64_t kOpenNs = 400'000;
constexpr uint64_t kWaryNs = 200'000;  // while a segment is open on a stream that may cease without notice
constexpr uint64_t kLingerNs = 2'000'000;
constexpr uint32_t kSleepMemory = 4096;  // a sleep that ended late is remembered for about so many
constexpr uint64_t kIdleNs = 50'000'000;

struct Round {
  bool work = false;               // something is in flight
  uint64_t pause_ns = kRelaxedNs;  // until the next look, if nothing is urgent
  bool urgent = false;             // somebody waits for it to end
  bool draining = false;           // another container does, or little is in flight: the card would run dry
};

// On a stream that may cease without notice: will it have run dry by the next look?
bool runs_dry_soon(Guest* guest, const StreamState* stream, uint64_t now_ns) {
  CardCompute& card = card_compute(guest, stream->card);
  if (stream->wary.load(std::memory_order_relaxed) == 0 || card.waiting.load(std::memory_order_relaxed) != 0)
    return false;
  SpinGuard guard(card.lock, guest->seams.waiter);
  return left_in_stream(stream, now_ns) < kDeepNs;
}

// Marks streams whose open segment has had no launch since the last look, or all when the gate is shut. Returns the
// pause until the next look that the segments left open allow.
uint64_t mark_tails(Guest* guest, uint32_t card_index, bool shut) {
  CardCompute& card = card_compute(guest, card_index);
  const uint64_t now = now_of(guest);
  uint64_t pause_ns = kRelaxedNs;
  for (StreamState* stream = card.streams; stream != nullptr; stream = stream->next) {
    Segment* open = stream->open.load(std::memory_order_acquire);
    if (stream->wary.load(std::memory_order_relaxed) != 0 && pause_ns > kOpenNs) pause_ns = kOpenNs;
    if (open == nullptr) {
      stream->polled_units = 0;
      continue;
    }
    const uint32_t units = open->units.load(std::memory_order_relaxed);
    // Segments are used again: their address tells nothing.
    const uint32_t opened = stream->opened.load(std::memory_order_relaxed);
    const bool silent = stream->polled_opened == opened && stream->polled_units == units;
    stream->polled_opened = opened;
    stream->polled_units = units;
    if (silent && !shut) be_wary(guest, stream);
    if (!silent && !shut && !runs_dry_soon(guest, stream, now)) {
      const uint64_t most_ns = stream->wary.load(std::memory_order_relaxed) != 0 ? kWaryNs : kOpenNs;
      if (most_ns < pause_ns) pause_ns = most_ns;
      continue;
    }
    // A per-thread stream can only be marked by its own thread.
    if (stream->thread != 0) continue;
    // A first launch loads code and takes long: a marker now would stand before its kernel.
    if (stream->launching.load(std::memory_order_acquire) != 0) continue;
    if (stream->owner.exchange(1, std::memory_order_acquire) != 0) continue;
    if (stream->open.load(std::memory_order_relaxed) == open) {
      Pushed pushed(guest, stream->context->context);
      close_segment(guest, stream);
    }
    stream->owner.store(0, std::memory_order_release);
  }
  return pause_ns;
}

Round look_after(Guest* guest, uint32_t card_index) {
  Round round;
  CardCompute& card = card_compute(guest, card_index);
  if (card.active.load(std::memory_order_acquire) == 0) return round;
  const uint32_t gate = guest->cards[card_index].grant->gate.load(std::memory_order_relaxed);
  const bool turns = (gate & page::kGateTurns) != 0;
  const bool shut = turns && (gate & page::kGateOpen) == 0;
  const page::ComputeSlot& slot = own_slot(guest, card_index);
  if ((slot.activity.load(std::memory_order_relaxed) & page::kDirtyMask) != 0) {
    QuietCapture quiet(guest);
    round.pause_ns = mark_tails(guest, card_index, shut);
    settle_card(guest, card_index);
  }
  const governor::InFlight in_flight = governor::sum_in_flight(card_usage(guest, card_index));
  round.work = in_flight.dirty != 0 || in_flight.waiting != 0;
  const bool own_work = (slot.activity.load(std::memory_order_relaxed) & page::kDirtyMask) != 0;
  round.urgent = own_work && (in_flight.waiting != 0 || turns);
  const bool no_more = shut || slot.blocked.load(std::memory_order_relaxed) == page::kBlockedByTurn;
  const bool brief = (gate & page::kGateBrief) != 0 && in_flight.waiting != 0;
  round.draining = own_work && turns && (no_more || brief);
  // A thread that was about to sleep when the gate was last woken may have missed that: it is woken once more.
  const uint32_t settled = card.settled.load(std::memory_order_relaxed);
  if (in_flight.waiting != 0 && card.woken_again != settled) {
    if (card.settled_seen == settled) {
      wake_waiters(guest, card_index);
      card.woken_again = settled;
    }
    round.urgent = true;
  }
  card.settled_seen = settled;
  // Somebody waits for credit and nothing of ours runs: the account must still move.
  if (!own_work && card.waiting.load(std::memory_order_relaxed) != 0) settle_card(guest, card_index);
  return round;
}

void run(void* argument) {
  Guest* guest = static_cast<Guest*>(argument);
  Compute& compute = guest->compute;
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  guest->cuda.cuThreadExchangeStreamCaptureMode(&relaxed);
  uint64_t last_work = now_of(guest);
  compute.settler.store(2, std::memory_order_release);
  while (compute.stop.load(std::memory_order_acquire) == 0) {
    const uint32_t word = compute.settler_word.load(std::memory_order_acquire);
    Round all;
    for (uint32_t card = 0; card < guest->card_count; ++card) {
      const Round round = look_after(guest, card);
      all.work = all.work || round.work;
      all.urgent = all.urgent || round.urgent;
      if (round.pause_ns < all.pause_ns) all.pause_ns = round.pause_ns;
      all.draining = all.draining || round.draining;
      const uint64_t now = now_of(guest);
      for (ContextState* context = card_compute(guest, card).contexts; context != nullptr; context = context->next) {
        if (context->dead.load(std::memory_order_acquire) == 0 && now >= context->base_due_ns) {
          renew_base(guest, context, now);
        }
      }
    }
    const uint64_t now = now_of(guest);
    if (all.work) last_work = now;
    if (all.urgent) {
      const bool slow = (compute.mutations & kMutateSettler) != 0;
      const uint64_t pause = slow ? 5 * kUrgentNs : all.draining ? kDrainingNs : kUrgentNs;
      guest->seams.waiter->sleep_ns(pause);
      const uint64_t slept = now_of(guest) - now;
      note_late(compute.settle_late_ns, slept > pause ? slept - pause : 0, kSleepMemory);
      continue;
    }
    const uint64_t pause = now - last_work >= kLingerNs ? kIdleNs : all.pause_ns;
    compute.settler_asleep.store(pause == kIdleNs ? 2 : 1, std::memory_order_seq_cst);
    guest->seams.waiter->wait(reinterpret_cast<const volatile uint32_t*>(&compute.settler_word), word, pause);
    compute.settler_asleep.store(0, std::memory_order_seq_cst);
  }
  compute.settler.store(0, std::memory_order_release);
}

}  // namespace

// Called after work was admitted (then only a settler that is fast asleep is woken) and by threads that begin to wait.
void wake_settler(Guest* guest) {
  Compute& compute = guest->compute;
  uint32_t expected = 0;
  if (__builtin_expect(compute.settler.load(std::memory_order_acquire) == 0, 0)) {
    if (compute.stop.load(std::memory_order_relaxed) == 0 && compute.settler.compare_exchange_strong(expected, 1)) {
      if (!guest->seams.waiter->start_thread(&run, guest)) compute.settler.store(0);
    }
    return;
  }
  // The word changes in any case: a settler that has just looked and is about to sleep must not miss this.
  compute.settler_word.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t asleep = compute.settler_asleep.load(std::memory_order_seq_cst);
  if (asleep == 0) return;
  bool waiters = false;
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    waiters = waiters || compute.cards[card].waiting.load(std::memory_order_relaxed) != 0;
  }
  if (asleep == 1 && !waiters) return;
  guest->seams.waiter->wake(reinterpret_cast<volatile uint32_t*>(&compute.settler_word), 1);
}

void compute_stop(Guest* guest) {
  guest->compute.stop.store(1, std::memory_order_release);
  guest->compute.settler_word.fetch_add(1, std::memory_order_seq_cst);
  guest->seams.waiter->wake(reinterpret_cast<volatile uint32_t*>(&guest->compute.settler_word), 1);
}

}  // namespace sluice::guest
