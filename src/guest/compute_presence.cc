// When did the card serve somebody else in the middle of our work? Normally never: whoever has the turn has the card.
// But a container that does not drain after its turn, because a kernel of its hangs or runs for seconds, keeps its
// context on the card, and the card gives both contexts time slices in turn. Markers cannot tell the slices apart: a
// segment that is interrupted twice seems to have cost three times as much, and its container would be charged for what
// the other one took (18 to 23 % of the card for a share of 30 %).
//
// So while the node says that somebody runs beside us, each context gets ticks: an event on a stream of our own, one at
// a time. The card stamps it within microseconds while it serves the context, or else when it comes back to it. A late
// stamp is the end of a stretch away; that began after the last sign of presence, a stamp of a tick or of a segment,
// and before the tick was recorded: the middle is right on average. No slice length and no number of neighbours is
// assumed.
//
// A program could have its ticks held up by work of its own (streams beyond the card's hardware queues share them), so
// what is believed is bounded by what equal slices give the others.
#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kTickNs = 50'000;
constexpr int64_t kPromptNs = 100'000;  // a stamp later than usual by more than this tells of somebody else's slice
constexpr uint64_t kPromptRecordNs = 50'000;
constexpr int64_t kDriftNs = 10;  // of the clocks from one tick to the next, at most
constexpr uint64_t kMostBelievedNs = 20'000'000;
constexpr uint64_t kSwitchPermille = 1150;  // what changing between contexts takes, on top of the slices

uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

// With n processes beside us at most n of n + 1 slices are theirs.
void believe(ContextState* context, uint32_t beside, uint64_t now_ns) {
  const uint64_t passed =
      now_ns - larger(context->away_granted_ns, now_ns < kMostBelievedNs ? 0 : now_ns - kMostBelievedNs);
  context->away_granted_ns = now_ns;
  const uint64_t theirs = passed * beside / (beside + 1) * kSwitchPermille / 1000;
  context->away_left_ns = smaller(context->away_left_ns + theirs, kMostBelievedNs);
}

void take_tick(Guest* guest, ContextState* context) {
  uint64_t stamp_ns = 0;
  if (context->tick_sure && marker_time(guest, context, context->tick, &stamp_ns)) {
    // The two clocks drift until the base is renewed: what is usual is the least lateness of late.
    const int64_t late = static_cast<int64_t>(stamp_ns - context->tick_ns);
    const uint64_t base = context->bases[0].number;
    if (context->tick_base != base || late < context->tick_late_ns) context->tick_late_ns = late;
    context->tick_base = base;
    const uint64_t noticed = context->tick_ns + static_cast<uint64_t>(context->tick_late_ns);
    if (late > context->tick_late_ns + kPromptNs) {
      Away away = {smaller(context->present_ns, noticed), noticed, stamp_ns};
      // Seen with the card after the record: away only from then on.
      if (context->present_ns > noticed && context->present_ns < stamp_ns) {
        away.since_ns = away.noticed_ns = context->present_ns;
      }
      const uint64_t length = stamp_ns - away.noticed_ns;
      if (length > context->away_left_ns) away.since_ns = away.noticed_ns = stamp_ns - context->away_left_ns;
      context->away_left_ns -= smaller(length, context->away_left_ns);
      context->aways[context->away_count % kAwaysKept] = away;
      ++context->away_count;
    } else {
      context->tick_late_ns += kDriftNs;
    }
    context->present_ns = larger(context->present_ns, stamp_ns);
  }
  SpinGuard guard(card_compute(guest, context->card).lock, guest->seams.waiter);
  give_event(context, context->tick);
  context->tick = nullptr;
}

}  // namespace

void look_for_card(Guest* guest, ContextState* context, uint64_t now_ns) {
  if ((guest->compute.mutations & kMutatePresence) != 0) return;
  const uint32_t beside = guest->cards[context->card].grant->beside.load(std::memory_order_relaxed);
  if (__builtin_expect(beside == 0 && context->tick == nullptr, 1)) return;
  if (context->ready.load(std::memory_order_acquire) != 2 || context->own_stream == nullptr) return;
  if (beside != 0) believe(context, beside < page::kMaxProcesses ? beside : page::kMaxProcesses, now_ns);
  if (context->tick != nullptr) {
    const CUresult result = guest->cuda.cuEventQuery(context->tick);
    if (result == CUDA_ERROR_NOT_READY) return;
    if (result == CUDA_SUCCESS) {
      take_tick(guest, context);
    } else {
      context->tick = nullptr;
    }
  }
  if (beside == 0 || now_ns - context->tick_ns < kTickNs) return;
  Pushed pushed(guest, context->context);
  CUevent event = take_event(guest, context);
  if (event == nullptr) return;
  // Timed from both sides. A thread that loses its processor between the record and a look at the clock would make the
  // stamp seem early, and every later tick late: the container would take its own time for somebody else's.
  const uint64_t before_ns = now_of(guest);
  if (guest->cuda.cuEventRecord(event, context->own_stream) == CUDA_SUCCESS) {
    context->tick = event;
    context->tick_ns = before_ns;
    context->tick_sure = now_of(guest) - before_ns < kPromptRecordNs;
    return;
  }
  SpinGuard guard(card_compute(guest, context->card).lock, guest->seams.waiter);
  give_event(context, event);
}

bool next_present(const ContextState* context, uint64_t* from_ns, uint64_t end_ns, BusyPiece* part) {
  if (*from_ns >= end_ns) return false;
  const uint64_t oldest = context->away_count > kAwaysKept ? context->away_count - kAwaysKept : 0;
  *part = {*from_ns, end_ns};
  for (uint64_t n = oldest; n < context->away_count; ++n) {
    const Away& away = context->aways[n % kAwaysKept];
    if (away.until_ns <= *from_ns) continue;
    // The segment's own marker at its beginning is a sign of presence too.
    const uint64_t since = larger(away.since_ns, *from_ns);
    const uint64_t start = since < away.noticed_ns ? since + (away.noticed_ns - since) / 2 : since;
    if (start >= end_ns) break;
    part->end_ns = start;
    *from_ns = away.until_ns;
    return true;
  }
  *from_ns = end_ns;
  return true;
}

}  // namespace sluice::guest
