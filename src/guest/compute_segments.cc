// Segments of a stream: opened before work, closed by a marker behind it. All with the stream's owner word held.
#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

constexpr uint32_t kMostDepth = 8;

// Less than this left in front of a launch, and the stream may run dry before the launch gets to the card.
constexpr uint64_t kNearlyDryNs = 20'000;

// A stream whose program falls silent without synchronising: the end marker of what it launched last must get there
// before it runs dry, or idle time would hide inside the segment. So for some segments to come none is left open unless
// there is work for longer than the settler takes to look (20 us, or 200 while nobody waits).
constexpr uint64_t kDeepWatchedNs = 60'000;
constexpr uint64_t kDryInsideNs = 30'000;
constexpr uint64_t kUsualPauseNs = 5'000;
constexpr uint32_t kWarySegments = 1024;
// A program that launches as fast as it can would be slowed down by a marker per launch: some share one all the same.
constexpr uint64_t kRapidNs = 10'000;
constexpr uint32_t kRapidDepth = 3;

enum class Feed { kDry, kNearlyDry, kShallow, kDeep };

// Is the stream still busy with what was launched before, so that a new segment may begin at its end? Asking costs a
// query; without it the time between a drain and its discovery would count as busy. A stream that is about to run dry
// gets a marker of its own too: the pause until the launch arrives would count otherwise (1 % with kernels of 5 us).
Feed feed_of(Guest* guest, StreamState* stream, uint64_t now_ns, uint64_t deep_ns, uint64_t* left) {
  CardCompute& card = card_compute(guest, stream->card);
  CUevent last = nullptr;
  Segment* tail = nullptr;
  uint64_t left_ns = 0;
  {
    SpinGuard guard(card.lock, guest->seams.waiter);
    tail = stream->pending_tail;
    if (tail != nullptr) last = tail->end;
    left_ns = left_in_stream(stream, now_ns);
  }
  *left = left_ns;
  if (tail == nullptr || last == nullptr) return Feed::kDry;
  if (guest->cuda.cuEventQuery(last) != CUDA_ERROR_NOT_READY) return Feed::kDry;
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (stream->pending_tail != tail) return Feed::kDry;
  if (left_ns < kNearlyDryNs) return Feed::kNearlyDry;
  return left_ns < deep_ns ? Feed::kShallow : Feed::kDeep;
}

// How many units the next segment may take, as a power of two.
uint32_t next_depth(const StreamState* stream, Feed feed, bool waited) {
  // A stream that ran dry because the gate held it back is as well fed as before.
  if (feed == Feed::kDry) return waited ? stream->depth : 0;
  const uint32_t deeper = stream->depth < kMostDepth ? stream->depth + 1 : kMostDepth;
  if (feed == Feed::kDeep || stream->wary.load(std::memory_order_relaxed) == 0) return deeper;
  if (stream->interval_ns >= kRapidNs) return 0;
  return deeper < kRapidDepth ? deeper : kRapidDepth;
}

// Has the program paused again without notice? The stream is dry and nothing was held back: then it is foreseen for the
// segments to come as well.
void note_pause(Guest* guest, StreamState* stream, uint64_t now_ns, bool dry) {
  const bool announced = stream->announced.exchange(false, std::memory_order_relaxed);
  const uint32_t wary = stream->wary.load(std::memory_order_relaxed);
  if (wary == 0) return;
  uint64_t last_end_ns = 0;
  {
    SpinGuard guard(card_compute(guest, stream->card).lock, guest->seams.waiter);
    last_end_ns = stream->last_end_ns;
  }
  if (dry && !announced && stream->contiguous && now_ns > last_end_ns + kDryInsideNs) {
    be_wary(guest, stream);
  } else {
    stream->wary.store(wary - 1, std::memory_order_relaxed);
  }
}

}  // namespace

uint64_t left_in_stream(const StreamState* stream, uint64_t now_ns) {
  const uint64_t ran_ns = now_ns > stream->head_since_ns ? now_ns - stream->head_since_ns : 0;
  uint64_t left_ns = 0;
  for (const Segment* one = stream->pending; one != nullptr && left_ns < ran_ns + kDeepNs; one = one->next) {
    left_ns += one->used_ns.load(std::memory_order_relaxed);
  }
  return left_ns > ran_ns ? left_ns - ran_ns : 0;
}

void be_wary(const Guest* guest, StreamState* stream) {
  if ((guest->compute.mutations & kMutateWary) == 0) stream->wary.store(kWarySegments, std::memory_order_relaxed);
}

void add_in_flight(Guest* guest, uint32_t card, uint64_t ns, uint32_t units) {
  page::ComputeSlot& slot = own_slot(guest, card);
  slot.outstanding_ns.fetch_add(ns, std::memory_order_relaxed);
  slot.units.fetch_add(units, std::memory_order_relaxed);
}

void drop_in_flight(Guest* guest, uint32_t card, uint64_t ns, uint32_t units) {
  page::ComputeSlot& slot = own_slot(guest, card);
  slot.outstanding_ns.fetch_sub(ns, std::memory_order_relaxed);
  slot.units.fetch_sub(units, std::memory_order_relaxed);
}

void make_dirty(Guest* guest, StreamState* stream, uint64_t now_ns) {
  CardCompute& card = card_compute(guest, stream->card);
  page::ComputeSlot& slot = own_slot(guest, stream->card);
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (slot.low_water_ns.load(std::memory_order_relaxed) == page::kIdle) {
    slot.low_water_ns.store(now_ns, std::memory_order_seq_cst);
  }
  if (stream->dirty) return;
  stream->dirty = true;
  if ((guest->compute.mutations & kMutateDrain) == 0) slot.activity.fetch_add(1, std::memory_order_seq_cst);
}

bool segment_has_room(const StreamState* stream, const Segment* segment, uint64_t cost_ns) {
  return cost_ns != 0 && segment->unknown == 0 &&
         segment->units.load(std::memory_order_relaxed) < (1u << stream->depth) &&
         segment->used_ns.load(std::memory_order_relaxed) + cost_ns <= stream->segment_ns;
}

bool open_segment(Guest* guest, StreamState* stream, Estimate* estimate, uint64_t cost_ns, uint64_t reserved_ns,
                  uint32_t reserved_units, bool waited) {
  Compute& compute = guest->compute;
  CardCompute& card = card_compute(guest, stream->card);
  Segment* segment = nullptr;
  {
    SpinGuard guard(compute.lock, guest->seams.waiter);
    segment = compute.segment_pool.take();
  }
  if (segment == nullptr) return false;
  QuietCapture quiet(guest);
  if (stream->context->ready.load(std::memory_order_acquire) != 2) set_up_context(guest, stream->context);
  segment->stream = stream;
  segment->launched_ns = now_of(guest);
  segment->reserved_ns = reserved_ns;
  segment->reserved_units = reserved_units;
  segment->unknown = cost_ns == 0 ? 1 : 0;
  segment->first = estimate;
  segment->longest_ns = estimate->longest_ns.load(std::memory_order_relaxed);
  segment->used_ns.store(cost_ns == 0 ? reserved_ns : cost_ns, std::memory_order_relaxed);
  segment->units.store(1, std::memory_order_relaxed);
  const uint32_t free_count = guest->cards[stream->card].grant->free_count.load(std::memory_order_relaxed);
  segment->after_free = stream->free_seen != free_count ? 1 : 0;
  stream->free_seen = free_count;
  // Average time between launches.
  const uint64_t since_ns = segment->launched_ns - stream->opened_ns;
  const uint64_t interval_ns = since_ns / (stream->closed_units == 0 ? 1 : stream->closed_units);
  stream->interval_ns = stream->interval_ns - stream->interval_ns / 16 + interval_ns / 16;
  stream->opened_ns = segment->launched_ns;
  const bool watched = (stream->gate_seen.load(std::memory_order_relaxed) & page::kGateTurns) != 0 ||
                       card.waiting.load(std::memory_order_relaxed) != 0;
  uint64_t left_ns = 0;
  Feed feed = feed_of(guest, stream, segment->launched_ns, watched ? kDeepWatchedNs : kDeepNs, &left_ns);
  if ((compute.mutations & kMutateIntervals) != 0) feed = Feed::kDeep;
  stream->depth = next_depth(stream, feed, waited);
  note_pause(guest, stream, segment->launched_ns, feed == Feed::kDry && !waited);
  segment->ahead_ns = feed == Feed::kDry ? 0 : left_ns;
  if (feed == Feed::kDry || feed == Feed::kNearlyDry || !stream->contiguous || segment->after_free != 0) {
    segment->start = take_event(guest, stream->context);
    if (segment->start != nullptr && !record_marker(guest, segment->start, stream)) {
      give_event(stream->context, segment->start);
      segment->start = nullptr;
    }
    if (feed == Feed::kDry && segment->start != nullptr) segment->marked_ns = now_of(guest);
  }
  stream->contiguous = true;
  stream->opened.fetch_add(1, std::memory_order_relaxed);
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (stream->pending == nullptr) {
    stream->pending = segment;
    stream->head_since_ns = segment->launched_ns;
    if (segment->start == nullptr) stream->last_end_ns = segment->launched_ns;
  } else {
    stream->pending_tail->next = segment;
  }
  stream->pending_tail = segment;
  stream->open.store(segment, std::memory_order_release);
  return true;
}

void close_segment(Guest* guest, StreamState* stream) {
  Segment* segment = stream->open.load(std::memory_order_relaxed);
  if (segment == nullptr) return;
  CardCompute& card = card_compute(guest, stream->card);
  stream->open.store(nullptr, std::memory_order_seq_cst);
  QuietCapture quiet(guest);
  CUevent end = take_event(guest, stream->context);
  if (end != nullptr && !record_marker(guest, end, stream)) {
    give_event(stream->context, end);
    end = nullptr;
  }
  const uint64_t now = now_of(guest);
  // What was reserved and not used.
  const uint64_t used = segment->used_ns.load(std::memory_order_relaxed);
  const uint32_t units = segment->units.load(std::memory_order_relaxed);
  // Its launches took longer than their work and all before it, by more than the pauses of a program that launches as
  // fast as it can: the stream ran dry in between.
  const uint64_t paused_ns = kDryInsideNs + units * kUsualPauseNs;
  stream->closed_units = units;
  if (units > 1 && now - segment->launched_ns > segment->ahead_ns + used + paused_ns) be_wary(guest, stream);
  SpinGuard guard(card.lock, guest->seams.waiter);
  if (segment->unknown == 0 && used < segment->reserved_ns) {
    drop_in_flight(guest, stream->card, segment->reserved_ns - used, 0);
    segment->reserved_ns = used;
  }
  if (segment->unknown == 0 && units < segment->reserved_units) {
    drop_in_flight(guest, stream->card, 0, segment->reserved_units - units);
    segment->reserved_units = units;
  }
  segment->end_recorded_ns = now;
  segment->end = end;
  if (end == nullptr) stream->dead.store(1, std::memory_order_release);  // the context has failed: nothing to measure
}

}  // namespace sluice::guest
