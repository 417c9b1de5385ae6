// Settling: markers that were passed become busy intervals, intervals of all streams become the process's own union,
// and the unions of all processes of the container become busy time in the account, in time order.
//
// Each process may query its own events only. It publishes its busy pieces in its ring and, after them, its low-water
// mark: nothing it will publish later begins before that. Whoever finds that the smallest low-water mark of all
// processes has moved past the account's settled time sums the union of all rings up to there and moves the account by
// one compare-and-swap; a loser looks again. A dead process is found by its record lock, a stopped one by its silence.
#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

constexpr uint32_t kScratch = 512;  // pieces summed at once; the account then advances in several steps
constexpr uint64_t kProbeEveryNs = 5'000'000;
constexpr uint64_t kSilenceNs = 50'000'000;  // a process that holds up the account this long, overdue, is passed by
constexpr uint64_t kHeldUpNs = 20'000'000;   // a segment that is open for longer was not closed in time
constexpr uint64_t kLongestEpochNs = 2'000'000'000;

uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

void note_longest(CardCompute& card, page::ComputeSlot& slot, uint64_t unit_ns, uint64_t now_ns) {
  if (now_ns - card.longest_epoch_ns >= kLongestEpochNs) {
    card.longest_ns[1] = now_ns - card.longest_epoch_ns >= 2 * kLongestEpochNs ? 0 : card.longest_ns[0];
    card.longest_ns[0] = 0;
    card.longest_epoch_ns = now_ns;
  }
  card.longest_ns[0] = larger(card.longest_ns[0], unit_ns);
  slot.longest_unit_us.store(static_cast<uint32_t>(larger(card.longest_ns[0], card.longest_ns[1]) / 1000),
                             std::memory_order_relaxed);
}

// Keeps settled pieces sorted by start; neighbours are joined when there is no room.
void add_piece(CardCompute& card, BusyPiece piece) {
  if (piece.end_ns <= piece.start_ns) return;
  if (card.piece_count == kIntervalsKept) {
    // Rare: hundreds of pieces wait for one old command. The two oldest become one; the gap between them moves its
    // start.
    BusyPiece& first = card.pieces[0];
    const BusyPiece second = card.pieces[1];
    if (second.start_ns > first.end_ns) first.start_ns += second.start_ns - first.end_ns;
    first.end_ns = larger(first.end_ns, second.end_ns);
    for (uint32_t i = 1; i + 1 < card.piece_count; ++i) card.pieces[i] = card.pieces[i + 1];
    --card.piece_count;
  }
  uint32_t at = card.piece_count++;
  for (; at > 0 && card.pieces[at - 1].start_ns > piece.start_ns; --at) card.pieces[at] = card.pieces[at - 1];
  card.pieces[at] = piece;
}

// Work that a stream held from the time before the gate closed was let through when there was no cap, so it is not
// charged; but nothing is earned while it runs either, or a queue of a second would be followed by a burst.
void charge_queue(Guest* guest, const Segment* segment, uint64_t begin_ns) {
  if (segment->after_free == 0 || begin_ns <= segment->launched_ns) return;
  const uint32_t card = segment->stream->card;
  const uint64_t permille = guest->cards[card].grant->core_permille.load(std::memory_order_relaxed);
  if (permille >= governor::kWholeCard) return;
  const uint64_t earned = (begin_ns - segment->launched_ns) / governor::kWholeCard * permille;
  add_piece(card_compute(guest, card), {begin_ns - earned, begin_ns});
}

// How long a segment's work took, as far as later estimates go. A unit that waited for others at the gate, until they
// were let through past it, took as long as the gate made it: only what came after that counts.
uint64_t own_length(const page::Account& account, uint64_t begin_ns, uint64_t end_ns, uint64_t length_ns) {
  const uint64_t passed_ns = account.passed_ns.load(std::memory_order_relaxed);
  return passed_ns > begin_ns && passed_ns < end_ns ? smaller(length_ns, end_ns - passed_ns) : length_ns;
}

// Where a segment's work can have begun at the earliest. A segment is closed within a millisecond of its last launch,
// unless the process was stopped in between: then the end marker stands behind a pause of seconds, and what came before
// its record was no longer than twice what such work has taken. What runs on after the record is measured as it is.
uint64_t begin_of_work(const Segment* segment, uint64_t begin_ns, uint64_t end_ns) {
  if (segment->end_recorded_ns <= segment->launched_ns + kHeldUpNs) return begin_ns;
  const uint64_t units = segment->units.load(std::memory_order_relaxed);
  const uint64_t most_ns = 2 * larger(segment->used_ns.load(std::memory_order_relaxed), units * segment->longest_ns);
  const uint64_t recorded_ns = smaller(segment->end_recorded_ns, end_ns);
  return larger(begin_ns, recorded_ns > most_ns ? recorded_ns - most_ns : 0);
}

// Adds the parts of a segment's time in which its context had the card, and returns how long they are together.
uint64_t add_present(CardCompute& card, const ContextState* context, uint64_t begin_ns, uint64_t end_ns) {
  uint64_t length = 0;
  BusyPiece part = {0, 0};
  while (next_present(context, &begin_ns, end_ns, &part)) {
    if (part.end_ns <= part.start_ns) continue;
    add_piece(card, part);
    length += part.end_ns - part.start_ns;
  }
  return length;
}

// A closed segment whose end marker has passed.
void settle_segment(Guest* guest, StreamState* stream, Segment* segment, uint64_t now_ns) {
  ContextState* context = stream->context;
  CardCompute& card = card_compute(guest, stream->card);
  uint64_t begin = 0;
  uint64_t end = 0;
  bool known = marker_time(guest, context, segment->end, &end);
  if (segment->start != nullptr) {
    known = marker_time(guest, context, segment->start, &begin) && known;
  } else {
    begin = stream->last_end_ns;
  }
  page::ComputeSlot& slot = own_slot(guest, stream->card);
  const uint32_t units = segment->units.load(std::memory_order_relaxed);
  look_for_card(guest, context, now_ns);
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (known && end >= begin) {
    if ((guest->compute.mutations & kMutateHeldUp) == 0) begin = begin_of_work(segment, begin, end);
    // A length of nothing is a measurement too: the unit is known to be short.
    uint64_t length = end - begin;
    if ((guest->compute.mutations & kMutateMarkerCost) == 0) {
      const uint64_t markers = context->marker_cost_ns * (1 + segment->records.load(std::memory_order_relaxed));
      length = length > markers ? length - markers : 0;
      length = length > segment->arrival_ns ? length - segment->arrival_ns : 0;
    }
    const uint32_t permille = guest->compute.measure_permille;
    if (permille != 0) length = length * permille / 1000;
    charge_queue(guest, segment, begin);
    length = add_present(card, context, end - length, end);
    if (end > context->present_ns) context->present_ns = end;
    length = own_length(card_usage(guest, stream->card).account, begin, end, length);
    if (units != 0 && segment->mixed.load(std::memory_order_relaxed) == 0)
      Estimates::learn(segment->first, length / units, units);
    note_longest(card, slot, units == 0 ? 0 : length / units, now_ns);
    stream->last_end_ns = end;
  } else {
    stream->last_end_ns = now_ns;
  }
  stream->head_since_ns = now_ns;
  stream->pending = segment->next;
  if (stream->pending == nullptr) stream->pending_tail = nullptr;
  drop_in_flight(guest, stream->card, segment->reserved_ns, segment->reserved_units);
  guest->cards[stream->card].usage->slots[card_slot(guest, stream->card)].launches.fetch_add(units,
                                                                                             std::memory_order_relaxed);
  if (segment->start != nullptr) give_event(context, segment->start);
  give_event(context, segment->end);
}

void free_segment(Guest* guest, Segment* segment) {
  SpinGuard guard(guest->compute.lock, guest->seams.waiter);
  guest->compute.segment_pool.give(segment);
}

// Everything of a stream whose context is gone.
void drop_stream(Guest* guest, StreamState* stream) {
  CardCompute& card = card_compute(guest, stream->card);
  for (;;) {
    Segment* segment = nullptr;
    {
      SpinGuard guard(card.lock, guest->seams.waiter);
      segment = stream->pending;
      if (segment == nullptr) break;
      stream->pending = segment->next;
      if (stream->pending == nullptr) stream->pending_tail = nullptr;
      drop_in_flight(guest, stream->card, segment->reserved_ns, segment->reserved_units);
    }
    free_segment(guest, segment);
  }
}

bool settle_stream(Guest* guest, StreamState* stream, uint64_t now_ns) {
  CardCompute& card = card_compute(guest, stream->card);
  bool any = false;
  if (stream->dead.load(std::memory_order_acquire) != 0) {
    any = stream->pending != nullptr;
    drop_stream(guest, stream);
  }
  for (;;) {
    Segment* segment = nullptr;
    CUevent end = nullptr;
    {
      SpinGuard guard(card.lock, guest->seams.waiter);
      segment = stream->pending;
      if (segment != nullptr) end = segment->end;
    }
    if (segment == nullptr || end == nullptr) break;
    const CUresult result = guest->cuda.cuEventQuery(end);
    if (result == CUDA_ERROR_NOT_READY) break;
    if (result != CUDA_SUCCESS) {
      stream->dead.store(1, std::memory_order_release);
      drop_stream(guest, stream);
      any = true;
      break;
    }
    settle_segment(guest, stream, segment, now_ns);
    free_segment(guest, segment);
    any = true;
  }
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (stream->dirty && stream->pending == nullptr && stream->launching.load(std::memory_order_seq_cst) == 0) {
    stream->dirty = false;
    if ((guest->compute.mutations & kMutateDrain) == 0) {
      own_slot(guest, stream->card).activity.fetch_sub(1, std::memory_order_seq_cst);
    }
  }
  return any;
}

// Publishes the own union up to the low-water mark, then the mark. With the card's lock held.
void publish(Guest* guest, uint32_t card_index, uint64_t now_ns) {
  CardCompute& card = card_compute(guest, card_index);
  page::UsageCard& usage = card_usage(guest, card_index);
  page::ComputeSlot& slot = own_slot(guest, card_index);
  const uint32_t slot_index = card_slot(guest, card_index);
  uint64_t low = now_ns;
  uint64_t overdue = page::kIdle;
  bool dirty = false;
  for (StreamState* stream = card.streams; stream != nullptr; stream = stream->next) {
    const Segment* head = stream->pending;
    if (stream->dirty) dirty = true;
    if (head == nullptr) continue;
    low = smaller(low, head->start == nullptr ? stream->last_end_ns : head->launched_ns);
    const uint64_t longest = larger(head->longest_ns, head->used_ns.load(std::memory_order_relaxed));
    overdue = smaller(overdue, governor::overdue_after(stream->head_since_ns, longest, head->unknown == 0));
  }
  const uint64_t settled = governor::settled_time(governor::load_credit(usage.account), now_ns);
  uint64_t busy = 0;
  uint32_t kept = 0;
  uint64_t head = slot.interval_head.load(std::memory_order_relaxed);
  BusyPiece joined = {0, 0};
  const auto flush = [&]() {
    if (joined.end_ns <= joined.start_ns) return;
    // The account has passed it (we were stopped, or clocks disagree by some us): charged as it is.
    if (joined.start_ns < settled) {
      const uint64_t late = smaller(joined.end_ns, settled) - joined.start_ns;
      governor::charge_late(usage, late, now_ns);
      joined.start_ns = smaller(joined.end_ns, settled);
    }
    page::Interval& place = usage.intervals[slot_index][head % page::kIntervalRing];
    // Overwrites a piece that nobody could settle yet: that one is charged now.
    const uint64_t old_end = place.end_ns.load(std::memory_order_relaxed);
    const uint64_t old_start = place.start_ns.load(std::memory_order_relaxed);
    if (old_end > settled && head >= page::kIntervalRing) {
      governor::charge_late(usage, old_end - larger(old_start, settled), now_ns);
    }
    place.start_ns.store(joined.start_ns, std::memory_order_relaxed);
    place.end_ns.store(joined.end_ns, std::memory_order_relaxed);
    ++head;
    joined = {0, 0};
  };
  for (uint32_t i = 0; i < card.piece_count; ++i) {
    const BusyPiece piece = card.pieces[i];
    const uint64_t begin = larger(piece.start_ns, card.covered_ns);
    const uint64_t end = smaller(piece.end_ns, low);
    if (end > begin) {
      busy += end - begin;
      card.covered_ns = end;
      if (joined.end_ns != 0 && begin - joined.end_ns <= 2'000) {
        // One piece for neighbours a marker apart; its start moves by the gap, so that its length stays exact.
        joined.start_ns += begin - joined.end_ns;
        joined.end_ns = end;
      } else {
        flush();
        joined = {begin, end};
      }
    }
    if (piece.end_ns > low) card.pieces[kept++] = {larger(piece.start_ns, low), piece.end_ns};
  }
  card.piece_count = kept;
  flush();
  slot.interval_head.store(head, std::memory_order_release);
  slot.low_water_ns.store(dirty ? low : page::kIdle, std::memory_order_seq_cst);
  slot.overdue_ns.store(overdue, std::memory_order_relaxed);
  // What has run since the low-water mark is part of what is outstanding.
  slot.predicted_drain_ns.store(larger(now_ns, low + slot.outstanding_ns.load(std::memory_order_relaxed)),
                                std::memory_order_relaxed);
  usage.slots[slot_index].busy_ns.fetch_add(busy, std::memory_order_relaxed);
}

// A process that keeps the account back: dead, or silent for so long that it is passed by (what it did is charged when
// it speaks again).
bool pass_by(Guest* guest, uint32_t card_index, uint32_t slot_index, uint64_t now_ns) {
  CardCompute& card = card_compute(guest, card_index);
  page::ComputeSlot& slot = card_usage(guest, card_index).compute[slot_index];
  if (now_ns >= card.probe_at_ns) {
    card.probe_at_ns = now_ns + kProbeEveryNs;
    if (guest->seams.identity->owner_pid(page::slot_lock_byte(card_index, slot_index)) == 0) {
      slot.attached.store(0, std::memory_order_relaxed);
      slot.activity.store(0, std::memory_order_relaxed);
      slot.units.store(0, std::memory_order_relaxed);
      slot.outstanding_ns.store(0, std::memory_order_relaxed);
      slot.low_water_ns.store(page::kIdle, std::memory_order_relaxed);
      return true;
    }
  }
  const uint64_t low = slot.low_water_ns.load(std::memory_order_relaxed);
  return now_ns > low && now_ns - low > kSilenceNs && slot.overdue_ns.load(std::memory_order_relaxed) < now_ns;
}

uint64_t union_length(BusyPiece* pieces, uint32_t count, uint64_t from_ns, uint64_t to_ns) {
  for (uint32_t i = 1; i < count; ++i) {
    const BusyPiece piece = pieces[i];
    uint32_t at = i;
    for (; at > 0 && pieces[at - 1].start_ns > piece.start_ns; --at) pieces[at] = pieces[at - 1];
    pieces[at] = piece;
  }
  uint64_t total = 0;
  uint64_t covered = from_ns;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t begin = larger(pieces[i].start_ns, covered);
    const uint64_t end = smaller(pieces[i].end_ns, to_ns);
    if (end <= begin) continue;
    total += end - begin;
    covered = end;
  }
  return total;
}

// Moves the account to the smallest low-water mark of all processes.
void advance_account(Guest* guest, uint32_t card_index, uint64_t now_ns) {
  page::UsageCard& usage = card_usage(guest, card_index);
  const uint32_t own = card_slot(guest, card_index);
  const int64_t floor = guest->cards[card_index].grant->policy.load(std::memory_order_relaxed) == page::kPolicyBurst
                            ? governor::kBurstFloorNs
                            : governor::kNoFloorNs;
  for (int tries = 0; tries < 4; ++tries) {
    const governor::Credit seen = governor::load_credit(usage.account);
    const uint64_t from = governor::settled_time(seen, now_ns);
    uint64_t to = now_ns;
    uint32_t high = usage.account.slot_high.load(std::memory_order_acquire);
    if (high > page::kMaxProcesses) high = page::kMaxProcesses;
    for (uint32_t i = 0; i < high; ++i) {
      if (usage.compute[i].attached.load(std::memory_order_acquire) == 0) continue;
      const uint64_t low = usage.compute[i].low_water_ns.load(std::memory_order_seq_cst);
      if (low >= to) continue;
      if (i != own && now_ns - low > kProbeEveryNs && pass_by(guest, card_index, i, now_ns)) continue;
      to = low;
    }
    if (to <= from) return;
    BusyPiece pieces[kScratch];
    uint32_t count = 0;
    for (uint32_t i = 0; i < high; ++i) {
      if (usage.compute[i].attached.load(std::memory_order_relaxed) == 0 && i != own) continue;
      const uint64_t head = usage.compute[i].interval_head.load(std::memory_order_acquire);
      for (uint64_t back = 1; back <= page::kIntervalRing && back <= head && count < kScratch; ++back) {
        const page::Interval& place = usage.intervals[i][(head - back) % page::kIntervalRing];
        const BusyPiece piece = {place.start_ns.load(std::memory_order_relaxed),
                                 place.end_ns.load(std::memory_order_relaxed)};
        if (piece.end_ns <= from) break;
        if (piece.start_ns < to) pieces[count++] = piece;
      }
    }
    uint64_t busy = union_length(pieces, count, from, to);
    if ((guest->compute.mutations & kMutateUnion) != 0) {
      busy = 0;
      for (uint32_t i = 0; i < count; ++i) busy += union_length(&pieces[i], 1, from, to);
    }
    if (governor::settle_account(usage, seen, to, busy, floor)) return;
  }
}

}  // namespace

void wake_gate(Guest* guest, uint32_t card) {
  card_compute(guest, card).woken_ns.store(now_of(guest), std::memory_order_relaxed);
  wake_waiters(guest, card);
}

void wake_waiters(Guest* guest, uint32_t card) {
  const std::atomic<uint32_t>& gate = guest->cards[card].grant->gate;
  guest->seams.waiter->wake(const_cast<volatile uint32_t*>(reinterpret_cast<const volatile uint32_t*>(&gate)), 64);
}

bool settle_card(Guest* guest, uint32_t card_index) {
  CardCompute& card = card_compute(guest, card_index);
  if (card.active.load(std::memory_order_acquire) == 0) return false;
  if (card.settling.exchange(1, std::memory_order_acquire) != 0) return false;
  const uint64_t now = now_of(guest);
  bool any = false;
  QuietCapture quiet(guest);
  page::ComputeSlot& slot = own_slot(guest, card_index);
  const uint32_t before = slot.activity.load(std::memory_order_relaxed);
  if ((before & page::kDirtyMask) != 0) {
    for (ContextState* context = card.contexts; context != nullptr; context = context->next) {
      if (context->dead.load(std::memory_order_acquire) == 0) look_for_card(guest, context, now);
    }
  }
  for (StreamState* stream = card.streams; stream != nullptr; stream = stream->next) {
    if (stream->pending == nullptr && !stream->dirty) continue;
    any = settle_stream(guest, stream, now) || any;
  }
  {
    SpinGuard guard(card.lock, guest->seams.waiter);
    publish(guest, card_index, now);
  }
  advance_account(guest, card_index, now);
  card.settling.store(0, std::memory_order_release);
  const uint32_t after = slot.activity.load(std::memory_order_relaxed);
  const uint32_t gate = guest->cards[card_index].grant->gate.load(std::memory_order_relaxed);
  const bool drained = (before & page::kDirtyMask) != 0 && (after & page::kDirtyMask) == 0;
  if (drained && (gate & (page::kGateTurns | page::kGateWatch)) != 0) ring_doorbell(guest, card_index);
  if (any) card.settled.fetch_add(1, std::memory_order_release);
  if (any && governor::sum_in_flight(card_usage(guest, card_index)).waiting != 0) wake_gate(guest, card_index);
  return any;
}

}  // namespace sluice::guest
