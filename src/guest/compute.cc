// Streams and contexts as the compute part knows them, and what happens around a launch.
#include "guest/compute.h"

#include "guest/compute_internal.h"
#include "guest/notify.h"

namespace sluice::guest {

namespace {

uint64_t handle_key(CUstream stream, const ContextState* context, uint64_t thread) {
  return mix64(reinterpret_cast<uint64_t>(stream) ^ mix64(reinterpret_cast<uint64_t>(context) + thread));
}

uint32_t cache_index(CUstream stream) {
  return static_cast<uint32_t>(mix64(reinterpret_cast<uint64_t>(stream)) % kStreamCache);
}

bool is_special(CUstream stream) {
  return reinterpret_cast<uint64_t>(stream) <= 2;
}

ContextState* current_context_state(Guest* guest) {
  Compute& compute = guest->compute;
  if (__builtin_expect(compute.context_count.load(std::memory_order_acquire) == 1, 1)) return compute.only_context;
  CUcontext context = nullptr;
  if (guest->cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return nullptr;
  return find_context(guest, context);
}

ContextState* context_of_stream(Guest* guest, CUstream stream) {
  CUcontext context = nullptr;
  if (guest->cuda.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == nullptr) {
    return current_context_state(guest);
  }
  return find_context(guest, context);
}

StreamState* look_up(Guest* guest, CUstream stream, ContextState* context, uint64_t thread) {
  Compute& compute = guest->compute;
  SpinGuard guard(compute.lock, guest->seams.waiter);
  StreamState** found = compute.streams.find(handle_key(stream, context, thread));
  return found == nullptr ? nullptr : *found;
}

StreamState* remember(Guest* guest, CUstream stream, ContextState* context, uint64_t thread) {
  Compute& compute = guest->compute;
  if (context == nullptr || context->dead.load(std::memory_order_relaxed) != 0) return nullptr;
  StreamState* state = nullptr;
  {
    SpinGuard guard(compute.lock, guest->seams.waiter);
    const uint64_t key = handle_key(stream, is_special(stream) ? context : nullptr, thread);
    StreamState** found = compute.streams.find(key);
    if (found != nullptr) return *found;
    state = compute.stream_pool.take();
    if (state == nullptr || compute.streams.insert(key, state) == nullptr) return nullptr;
    state->handle = stream;
    state->context = context;
    state->thread = thread;
    state->card = context->card;
  }
  CardCompute& card = card_compute(guest, context->card);
  SpinGuard guard(card.lock, guest->seams.waiter);
  state->next = card.streams;
  card.streams = state;
  return state;
}

void forget_pending(Guest* guest, StreamState* stream) {
  stream->dead.store(1, std::memory_order_release);
  stream->open.store(nullptr, std::memory_order_release);
  (void)guest;
}

}  // namespace

ContextState* find_context(Guest* guest, CUcontext context) {
  Compute& compute = guest->compute;
  {
    SpinGuard guard(compute.lock, guest->seams.waiter);
    if (ContextState** found = compute.contexts.find(reinterpret_cast<uint64_t>(context))) return *found;
  }
  CUcontext current = nullptr;
  const bool pushed = guest->cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context &&
                      guest->cuda.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  const uint32_t card = current_card(guest);
  if (pushed) guest->cuda.cuCtxPopCurrent_v2(&current);
  if (card == kNoCard) return nullptr;
  compute_context_created(guest, card, context);
  SpinGuard guard(compute.lock, guest->seams.waiter);
  ContextState** found = compute.contexts.find(reinterpret_cast<uint64_t>(context));
  return found == nullptr ? nullptr : *found;
}

void compute_context_created(Guest* guest, uint32_t card, CUcontext context) {
  Compute& compute = guest->compute;
  if (card >= guest->card_count || !attach_compute(guest, card)) return;
  ContextState* state = nullptr;
  {
    SpinGuard guard(compute.lock, guest->seams.waiter);
    if (compute.contexts.find(reinterpret_cast<uint64_t>(context)) != nullptr) return;
    state = compute.context_pool.take();
    if (state == nullptr || compute.contexts.insert(reinterpret_cast<uint64_t>(context), state) == nullptr) return;
    state->context = context;
    state->card = card;
    state->rate = 1.0;
    CardCompute& of_card = compute.cards[card];
    SpinGuard card_guard(of_card.lock, guest->seams.waiter);
    state->next = of_card.contexts;
    of_card.contexts = state;
    compute.only_context = state;
    compute.context_count.fetch_add(1, std::memory_order_release);
  }
}

void compute_context_destroying(Guest* guest, uint32_t card, CUcontext context) {
  Compute& compute = guest->compute;
  if (card >= guest->card_count) return;
  ContextState* state = nullptr;
  {
    SpinGuard guard(compute.lock, guest->seams.waiter);
    if (!compute.contexts.erase(reinterpret_cast<uint64_t>(context), &state)) return;
    state->dead.store(1, std::memory_order_release);
    compute.context_count.fetch_sub(1, std::memory_order_release);
    // Another one may be the only one now; which, the next launch finds out.
    compute.only_context = nullptr;
    compute.contexts.for_each([&](uint64_t, ContextState*& other) { compute.only_context = other; });
  }
  // What is in flight ends with the context, within the driver's call. The last interval of each stream is lost, which
  // is no more than one segment.
  for (StreamState* stream = card_compute(guest, card).streams; stream != nullptr; stream = stream->next) {
    if (stream->context != state || stream->dead.load(std::memory_order_relaxed) != 0) continue;
    {
      StreamOwner owner(stream, guest->seams.waiter);
      forget_pending(guest, stream);
    }
    SpinGuard guard(compute.lock, guest->seams.waiter);
    compute.streams.erase(
        handle_key(stream->handle, is_special(stream->handle) ? stream->context : nullptr, stream->thread));
    compute.stream_cache[cache_index(stream->handle)].store(nullptr, std::memory_order_release);
  }
  settle_card(guest, card);
  bool others = false;
  for (ContextState* other = card_compute(guest, card).contexts; other != nullptr; other = other->next) {
    others = others || other->dead.load(std::memory_order_relaxed) == 0;
  }
  if (!others) own_slot(guest, card).attached.store(0, std::memory_order_release);
  if (!others) card_compute(guest, card).active.store(0, std::memory_order_release);
  ring_doorbell(guest, card);
}

void compute_forked(Guest* guest) {
  // The child starts with nothing: no context of the parent may be used by it, and its slots are other ones.
  Compute& compute = guest->compute;
  compute.lock.reset();
  compute.streams.clear();
  compute.contexts.clear();
  compute.only_context = nullptr;
  compute.context_count.store(0);
  compute.captures.store(0);
  compute.settler.store(0);
  for (std::atomic<StreamState*>& entry : compute.stream_cache) entry.store(nullptr);
  for (CardCompute& card : compute.cards) {
    card.lock.reset();
    card.settling.store(0);
    card.active.store(0);
    card.streams = nullptr;
    card.contexts = nullptr;
    card.piece_count = 0;
    card.waiting.store(0);
    card.armed_spinners.store(0);
  }
}

bool attach_compute(Guest* guest, uint32_t card) {
  CardCompute& state = card_compute(guest, card);
  if (state.active.load(std::memory_order_acquire) != 0) return true;
  const uint32_t slot = claim_slot(guest, card);
  if (slot == kNoSlot) return false;
  page::UsageCard& usage = card_usage(guest, card);
  {
    SpinGuard guard(state.lock, guest->seams.waiter);
    if (state.active.load(std::memory_order_acquire) != 0) return true;
    page::ComputeSlot& own = usage.compute[slot];
    own.activity.store(0);
    own.blocked.store(0);
    own.outstanding_ns.store(0);
    own.units.store(0);
    own.longest_unit_us.store(0);
    own.low_water_ns.store(page::kIdle);
    own.predicted_drain_ns.store(0);
    own.overdue_ns.store(page::kIdle);
    own.turn_seen.store(0);
    own.attached.store(1);
    uint32_t high = usage.account.slot_high.load();
    while (high < slot + 1 && !usage.account.slot_high.compare_exchange_weak(high, slot + 1)) {
    }
    const uint64_t now = now_of(guest);
    state.covered_ns = now;
    governor::set_quota(usage, governor::read_limits(*guest->cards[card].grant, now).permille, now);
    state.active.store(1, std::memory_order_release);
  }
  ring_doorbell(guest, card);
  return true;
}

StreamState* find_stream(Guest* guest, CUstream stream, StreamForm form) {
  Compute& compute = guest->compute;
  if (__builtin_expect(!is_special(stream), 1)) {
    std::atomic<StreamState*>& entry = compute.stream_cache[cache_index(stream)];
    StreamState* state = entry.load(std::memory_order_acquire);
    if (__builtin_expect(
            state != nullptr && state->handle == stream && state->dead.load(std::memory_order_relaxed) == 0, 1)) {
      return state;
    }
    state = look_up(guest, stream, nullptr, 0);
    if (state == nullptr) state = remember(guest, stream, context_of_stream(guest, stream), 0);
    if (state != nullptr) entry.store(state, std::memory_order_release);
    return state;
  }
  const bool per_thread = stream == CU_STREAM_PER_THREAD || (stream == nullptr && form == kPerThreadForm);
  ContextState* context = current_context_state(guest);
  if (context == nullptr) return nullptr;
  const uint64_t thread = per_thread ? current_thread_key() : 0;
  // One name for each of the two special streams, whatever the program calls them.
  CUstream name = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  std::atomic<StreamState*>& entry = compute.stream_cache[cache_index(name)];
  StreamState* state = entry.load(std::memory_order_acquire);
  if (state != nullptr && state->handle == name && state->context == context && state->thread == thread &&
      state->dead.load(std::memory_order_relaxed) == 0) {
    return state;
  }
  state = look_up(guest, name, context, thread);
  if (state == nullptr) state = remember(guest, name, context, thread);
  if (state != nullptr) entry.store(state, std::memory_order_release);
  return state;
}

bool compute_free(const Guest* guest) {
  if (__builtin_expect(guest->card_count == 1, 1)) {
    return guest->cards[0].grant->gate.load(std::memory_order_relaxed) == page::kGateFree;
  }
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    if (guest->cards[card].grant->gate.load(std::memory_order_relaxed) != page::kGateFree) return false;
  }
  return true;
}

Launch compute_before(Guest* guest, CUstream handle, StreamForm form, uint64_t key) {
  Launch launch;
  Compute& compute = guest->compute;
  StreamState* stream = find_stream(guest, handle, form);
  if (stream == nullptr) return launch;
  if (__builtin_expect(compute.captures.load(std::memory_order_relaxed) != 0, 0)) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (guest->cuda.cuStreamIsCapturing(stream->handle, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE) {
      return launch;
    }
  }
  launch.estimate = compute.estimates.entry(key);
  if (launch.estimate == nullptr) return launch;
  launch.stream = stream;
  launch.cost_ns = launch.estimate->cost_ns.load(std::memory_order_relaxed);
  const uint32_t gate = guest->cards[stream->card].grant->gate.load(std::memory_order_relaxed);
  Segment* open = stream->open.load(std::memory_order_acquire);
  if (__builtin_expect(
          open != nullptr && launch.cost_ns != 0 && stream->gate_seen.load(std::memory_order_relaxed) == gate, 1)) {
    const uint64_t used = open->used_ns.load(std::memory_order_relaxed) + launch.cost_ns;
    const uint32_t units = open->units.load(std::memory_order_relaxed) + 1;
    if (__builtin_expect(used <= stream->limit_ns.load(std::memory_order_relaxed) &&
                             units <= stream->limit_units.load(std::memory_order_relaxed),
                         1)) {
      open->used_ns.store(used, std::memory_order_relaxed);
      open->units.store(units, std::memory_order_relaxed);
      if (open->first != launch.estimate) open->mixed.store(1, std::memory_order_relaxed);
      launch.segment = open;
      return launch;
    }
  }
  launch.slow = pass_gate(guest, stream, launch);
  if (!launch.slow) launch.stream = nullptr;
  return launch;
}

// The first launch behind a marker on an idle stream has returned. Both reach the card equally late, so what the call
// took stands between the marker's stamp and the beginning of the work. A usual call is part of it, as pauses of some
// us between kernels are; one that loads code first is not.
static void note_arrival(Guest* guest, StreamState* stream, const Segment* segment) {
  constexpr uint64_t kUsualCallNs = 5'000;
  const uint64_t now = now_of(guest);
  StreamOwner owner(stream, guest->seams.waiter);
  Segment* open = stream->open.load(std::memory_order_relaxed);
  if (open != segment || open->marked_ns == 0 || open->units.load(std::memory_order_relaxed) != 1) return;
  if (now - open->marked_ns > kUsualCallNs) open->arrival_ns = now - open->marked_ns;
  open->marked_ns = 0;
}

void compute_after(Guest* guest, const Launch& launch, CUresult result) {
  StreamState* stream = launch.stream;
  if (stream == nullptr) return;
  if (launch.slow) {
    note_arrival(guest, stream, launch.segment);
    stream->launching.fetch_sub(1, std::memory_order_release);
  }
  (void)result;  // a launch that failed leaves an empty stretch between two markers
  Segment* open = stream->open.load(std::memory_order_acquire);
  if (__builtin_expect(open == launch.segment, 1)) {
    if (__builtin_expect(open != nullptr && segment_has_room(stream, open, launch.cost_ns), 1)) return;
    StreamOwner owner(stream, guest->seams.waiter);
    if (stream->open.load(std::memory_order_relaxed) == launch.segment) close_segment(guest, stream);
    return;
  }
  // The settler closed the segment between the gate and the launch: what was launched lies behind its end marker. Cover
  // it by a segment of its own, which begins where the last one ended.
  StreamOwner owner(stream, guest->seams.waiter);
  if (stream->dead.load(std::memory_order_relaxed) != 0) return;
  if (stream->open.load(std::memory_order_relaxed) != nullptr) return;  // another launch has opened one since
  make_dirty(guest, stream, now_of(guest));
  add_in_flight(guest, stream->card, launch.cost_ns, 1);
  if (open_segment(guest, stream, launch.estimate, launch.cost_ns, launch.cost_ns, 1, false))
    close_segment(guest, stream);
}

void compute_boundary(Guest* guest, CUstream handle, StreamForm form) {
  if ((guest->compute.mutations & kMutateBoundary) != 0) return;
  StreamState* stream = find_stream(guest, handle, form);
  if (stream == nullptr) return;
  if (stream->open.load(std::memory_order_acquire) == nullptr) {
    stream->contiguous = false;
    return;
  }
  StreamOwner owner(stream, guest->seams.waiter);
  close_segment(guest, stream);
  stream->contiguous = false;
}

void compute_sync_stream(Guest* guest, CUstream handle, StreamForm form) {
  StreamState* stream = find_stream(guest, handle, form);
  if (stream == nullptr) return;
  stream->announced.store(true, std::memory_order_relaxed);
  if (stream->open.load(std::memory_order_acquire) == nullptr) return;
  StreamOwner owner(stream, guest->seams.waiter);
  close_segment(guest, stream);
}

void compute_sync_all(Guest* guest) {
  ContextState* context = current_context_state(guest);
  if (context == nullptr) return;
  for (StreamState* stream = card_compute(guest, context->card).streams; stream != nullptr; stream = stream->next) {
    if (stream->context != context) continue;
    stream->announced.store(true, std::memory_order_relaxed);
    if (stream->open.load(std::memory_order_acquire) == nullptr) continue;
    StreamOwner owner(stream, guest->seams.waiter);
    close_segment(guest, stream);
  }
}

void compute_stream_destroyed(Guest* guest, CUstream handle) {
  Compute& compute = guest->compute;
  if (is_special(handle)) return;
  StreamState* stream = look_up(guest, handle, nullptr, 0);
  if (stream == nullptr) return;
  {
    StreamOwner owner(stream, guest->seams.waiter);
    close_segment(guest, stream);
  }
  SpinGuard guard(compute.lock, guest->seams.waiter);
  compute.streams.erase(handle_key(handle, nullptr, 0));
  compute.stream_cache[cache_index(handle)].store(nullptr, std::memory_order_release);
}

void compute_capture(Guest* guest, bool begins) {
  std::atomic<uint32_t>& count = guest->compute.captures;
  if (begins) {
    count.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  uint32_t captures = count.load(std::memory_order_relaxed);
  while (captures != 0 && !count.compare_exchange_weak(captures, captures - 1)) {
  }
}

void compute_event_recorded(Guest* guest, CUstream handle, StreamForm form) {
  StreamState* stream = find_stream(guest, handle, form);
  if (stream == nullptr) return;
  Segment* open = stream->open.load(std::memory_order_acquire);
  if (open != nullptr)
    open->records.store(open->records.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void compute_graph_destroyed(Guest* guest, uint64_t key) {
  if (Estimate* entry = guest->compute.estimates.entry(key)) {
    entry->cost_ns.store(0, std::memory_order_relaxed);
    entry->longest_ns.store(0, std::memory_order_relaxed);
  }
}

}  // namespace sluice::guest
