// Markers: event records on the program's streams, the cost of an empty pair of them, and the time bases that turn
// elapsed times into host time. cuEventElapsedTime gives a float of milliseconds (steps of 4 us after a minute), so
// each context's base is renewed every 4 s; from two bases follows the card's clock rate.
#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kBaseLifeNs = 4'000'000'000;
constexpr uint64_t kFirstBaseLifeNs = 200'000'000;  // soon a second one, for the clock's rate
constexpr uint64_t kBaseRetryNs = 20'000'000;
constexpr uint64_t kBaseBracketNs = 40'000;  // a base is placed no less exactly than this, unless there is none
constexpr uint64_t kBracketSlackNs = 2'000;
constexpr uint64_t kBasePatienceNs = 1'000'000'000;
constexpr uint64_t kSetUpWaitNs = 50'000'000;
constexpr uint64_t kUsualMarkerNs = 1'000;
constexpr uint64_t kMostMarkerNs = 20'000;

// Waits until the event has passed, at most `patience_ns`; the host time when that was seen, 0 if it was not.
uint64_t wait_event(Guest* guest, CUevent event, uint64_t patience_ns) {
  const uint64_t begin = now_of(guest);
  for (;;) {
    const CUresult result = guest->cuda.cuEventQuery(event);
    const uint64_t now = now_of(guest);
    if (result == CUDA_SUCCESS) return now;
    if (result != CUDA_ERROR_NOT_READY || now - begin > patience_ns) return 0;
    guest->seams.waiter->spin_pause();
  }
}

// Least elapsed time of three empty pairs.
uint64_t measure_marker_cost(Guest* guest, ContextState* context, CUevent first, CUevent second) {
  uint64_t least = ~0ull;
  for (int i = 0; i < 3; ++i) {
    if (guest->cuda.cuEventRecord(first, context->own_stream) != CUDA_SUCCESS ||
        guest->cuda.cuEventRecord(second, context->own_stream) != CUDA_SUCCESS ||
        wait_event(guest, second, kSetUpWaitNs) == 0) {
      break;
    }
    float elapsed_ms = 0;
    if (guest->cuda.cuEventElapsedTime(&elapsed_ms, first, second) != CUDA_SUCCESS) break;
    // The second record may have been late; then the pair is wider than the marker's cost.
    const uint64_t cost = static_cast<uint64_t>(static_cast<double>(elapsed_ms) * 1e6);
    if (cost < least) least = cost;
  }
  return least < kMostMarkerNs ? least : kUsualMarkerNs;
}

void take_base(Guest* guest, ContextState* context, CUevent event, uint64_t before_ns, uint64_t after_ns) {
  TimeBase& newest = context->bases[0];
  TimeBase fresh = {event, before_ns + (after_ns - before_ns) / 2, newest.number + 1};
  if (newest.number != 0) {
    float elapsed_ms = 0;
    if (guest->cuda.cuEventElapsedTime(&elapsed_ms, newest.event, event) == CUDA_SUCCESS && elapsed_ms > 500) {
      const double rate = static_cast<double>(fresh.host_ns - newest.host_ns) / (static_cast<double>(elapsed_ms) * 1e6);
      if (rate > 0.999 && rate < 1.001) context->rate = rate;
    }
  }
  CardCompute& card = card_compute(guest, context->card);
  CUevent old = nullptr;
  {
    SpinGuard guard(card.lock, guest->seams.waiter);
    old = context->bases[1].event;
    context->bases[1] = newest;
    context->bases[0] = fresh;
  }
  if (old != nullptr) give_event(context, old);
  context->base_due_ns = after_ns + (fresh.number == 1 ? kFirstBaseLifeNs : kBaseLifeNs);
  context->base_wanted_ns = context->base_due_ns;
  const uint64_t bracket_ns = after_ns - before_ns;
  if (context->bracket_ns == 0 || bracket_ns < context->bracket_ns) context->bracket_ns = bracket_ns;
}

}  // namespace

Pushed::Pushed(Guest* guest, CUcontext context) : guest_(guest) {
  CUcontext current = nullptr;
  pushed_ = guest->cuda.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context;
  if (pushed_) pushed_ = guest->cuda.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

Pushed::~Pushed() {
  CUcontext ignored = nullptr;
  if (pushed_) guest_->cuda.cuCtxPopCurrent_v2(&ignored);
}

QuietCapture::QuietCapture(Guest* guest) : guest_(guest), before_(CU_STREAM_CAPTURE_MODE_RELAXED), changed_(false) {
  if (__builtin_expect(guest->compute.captures.load(std::memory_order_relaxed) == 0, 1)) return;
  changed_ = guest->cuda.cuThreadExchangeStreamCaptureMode(&before_) == CUDA_SUCCESS;
}

QuietCapture::~QuietCapture() {
  if (changed_) guest_->cuda.cuThreadExchangeStreamCaptureMode(&before_);
}

CUevent take_event(Guest* guest, ContextState* context) {
  {
    SpinGuard guard(card_compute(guest, context->card).lock, guest->seams.waiter);
    if (context->free_count != 0) return context->free_events[--context->free_count];
  }
  Pushed pushed(guest, context->context);
  CUevent event = nullptr;
  return guest->cuda.cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? event : nullptr;
}

void give_event(ContextState* context, CUevent event) {
  // Full: the driver keeps it until the context ends.
  constexpr uint32_t kKept = sizeof context->free_events / sizeof context->free_events[0];
  if (context->free_count < kKept) context->free_events[context->free_count++] = event;
}

bool record_marker(Guest* guest, CUevent event, const StreamState* stream) {
  if (stream->handle == CU_STREAM_PER_THREAD && stream->thread != current_thread_key()) return false;
  if (reinterpret_cast<uint64_t>(stream->handle) > 2)
    return guest->cuda.cuEventRecord(event, stream->handle) == CUDA_SUCCESS;
  Pushed pushed(guest, stream->context->context);
  return guest->cuda.cuEventRecord(event, stream->handle) == CUDA_SUCCESS;
}

void set_up_context(Guest* guest, ContextState* context) {
  uint32_t expected = 0;
  if (!context->ready.compare_exchange_strong(expected, 1)) {
    while (context->ready.load(std::memory_order_acquire) == 1) guest->seams.waiter->spin_pause();
    return;
  }
  QuietCapture quiet(guest);
  Pushed pushed(guest, context->context);
  context->marker_cost_ns = kUsualMarkerNs;
  if (guest->cuda.cuStreamCreate(&context->own_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    CUevent first = take_event(guest, context);
    CUevent second = take_event(guest, context);
    if (first != nullptr && second != nullptr) {
      context->marker_cost_ns = measure_marker_cost(guest, context, first, second);
      const uint64_t before = now_of(guest);
      if (guest->cuda.cuEventRecord(first, context->own_stream) == CUDA_SUCCESS) {
        const uint64_t after = wait_event(guest, first, kSetUpWaitNs);
        take_base(guest, context, first, before, after != 0 ? after : now_of(guest));
      }
      SpinGuard guard(card_compute(guest, context->card).lock, guest->seams.waiter);
      give_event(context, second);
    }
  }
  context->ready.store(2, std::memory_order_release);
}

void renew_base(Guest* guest, ContextState* context, uint64_t now_ns) {
  if (context->ready.load(std::memory_order_acquire) != 2 || context->own_stream == nullptr) return;
  if (now_ns < context->base_due_ns) return;
  if ((guest->compute.mutations & kMutateBases) != 0) return;
  context->base_due_ns = now_ns + kBaseRetryNs;
  // The settler's thread has no current context, and a record needs one.
  Pushed pushed(guest, context->context);
  CUevent event = take_event(guest, context);
  if (event == nullptr) return;
  const uint64_t before = now_of(guest);
  const bool recorded = guest->cuda.cuEventRecord(event, context->own_stream) == CUDA_SUCCESS;
  const uint64_t after = recorded ? wait_event(guest, event, kBaseBracketNs) : 0;
  // Two processes of a container whose bases lie apart would count the edges of a stretch twice: a base is placed about
  // as exactly as the best one was, unless that does not come about for a second.
  const uint64_t narrow = context->bracket_ns + context->bracket_ns / 2 + kBracketSlackNs;
  if (after != 0 && (after - before <= narrow || now_ns - context->base_wanted_ns > kBasePatienceNs)) {
    take_base(guest, context, event, before, after);
    return;
  }
  // The card is busy with something else just now; another try later. An event may be recorded again at any time.
  SpinGuard guard(card_compute(guest, context->card).lock, guest->seams.waiter);
  give_event(context, event);
}

bool marker_time(Guest* guest, ContextState* context, CUevent event, uint64_t* host_ns) {
  const TimeBase& base = context->bases[0];
  if (base.number == 0) return false;
  float elapsed_ms = 0;
  if (guest->cuda.cuEventElapsedTime(&elapsed_ms, base.event, event) != CUDA_SUCCESS) return false;
  const double offset_ns = static_cast<double>(elapsed_ms) * 1e6 * context->rate;
  *host_ns = base.host_ns + static_cast<uint64_t>(static_cast<int64_t>(offset_ns));
  return true;
}

}  // namespace sluice::guest
