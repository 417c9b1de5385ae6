// What surrounds every call of the simulated driver: injected faults, the state that a call needs, names to functions.
#include <algorithm>

#include "sim/api.h"
#include "sim/capture.h"

namespace sluice::sim {

namespace {

// Slow calls and error returns that were asked for.
CUresult injected_fault(Process& process, const char* name) {
  for (int i = 0; i < process.device_count(); ++i) {
    Card& card = *process.device(i)->card;
    if (card.file().fault_count == 0) continue;
    uint64_t delay_ns = 0;
    CUresult result = CUDA_SUCCESS;
    {
      Card::Guard guard(card);
      if (const Fault* fault = card.fault(name, process.pid(), FaultKind::kSlowCall)) delay_ns = fault->delay_ns;
      if (const Fault* fault = card.fault(name, process.pid(), FaultKind::kErrorReturn)) {
        result = static_cast<CUresult>(fault->result);
      }
    }
    if (delay_ns != 0) process.host().wait_until(process.host().now_ns() + delay_ns, WaitMode::kBlock);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Call::Call(const char* name, unsigned needs, Charge charge, uint64_t nominal_ns)
    : thread(current_thread()), process(*thread.process) {
  if (needs == kNothing) return;
  if (!process.initialised() || process.forked()) {
    result = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  if (thread.in_host_function) {
    result = CUDA_ERROR_NOT_PERMITTED;
    return;
  }
  if ((result = injected_fault(process, name)) != CUDA_SUCCESS) return;
  if ((needs & kContext) != 0) {
    while (!thread.stack.empty() && thread.stack.back() == nullptr) thread.stack.pop_back();
    if (thread.stack.empty()) {
      result = CUDA_ERROR_INVALID_CONTEXT;
      return;
    }
    context = process.contexts.find(thread.stack.back());
    if (context == nullptr) {
      result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
      return;
    }
    if ((result = context_error(*context)) != CUDA_SUCCESS) return;
  }
  if ((needs & kNoCapture) != 0 && (result = check_unsafe_call(*this)) != CUDA_SUCCESS) return;
  if (charge != Charge::kTrivial || nominal_ns != 0) process.host().charge(charge, nominal_ns);
}

CUresult context_error(Context& context) {
  Card& card = *context.process->device(context.card)->card;
  if (std::atomic_ref<uint32_t>(card.header().lost).load(std::memory_order_relaxed) != 0) return CUDA_ERROR_UNKNOWN;
  ContextRecord& record = card.context(context.record);
  if (std::atomic_ref<uint32_t>(record.serial).load(std::memory_order_relaxed) != context.serial) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return static_cast<CUresult>(std::atomic_ref<int32_t>(record.sticky_error).load(std::memory_order_relaxed));
}

Stream* legacy_stream(Context& context) {
  if (context.legacy != nullptr) return context.legacy;
  Process& process = *context.process;
  ObjectsLock objects(process);
  if (context.legacy != nullptr) return context.legacy;
  Stream* stream = process.streams.make();
  if (stream == nullptr) return nullptr;
  Card& card = *process.device(context.card)->card;
  Card::Guard guard(card);
  stream->context = &context;
  stream->legacy = true;
  stream->id = 1;
  stream->record = make_stream(card, context.record, false, true, 0);
  context.legacy = stream;
  return stream;
}

CUresult make_stream_object(Context& context, unsigned flags, int priority, Stream** made) {
  Process& process = *context.process;
  ObjectsLock objects(process);
  Stream* stream = process.streams.make();
  if (stream == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Card& card = *process.device(context.card)->card;
  Card::Guard guard(card);
  stream->context = &context;
  stream->flags = flags;
  stream->priority = priority;
  stream->record = make_stream(card, context.record, (flags & CU_STREAM_NON_BLOCKING) != 0, false, priority);
  if (stream->record == kNone) {
    process.streams.free(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  stream->id = card.stream(stream->record).serial + uint64_t{16};
  *made = stream;
  return CUDA_SUCCESS;
}

CUresult find_stream(Call& call, CUstream handle, Stream** stream) {
  if (handle == nullptr) handle = call.thread.null_stream != nullptr ? call.thread.null_stream : CU_STREAM_LEGACY;
  if (handle == CU_STREAM_LEGACY) {
    *stream = legacy_stream(*call.context);
    return *stream != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    CUstream& own = call.thread.per_thread_streams[call.context];
    if (own == nullptr || call.process.streams.find(own) == nullptr) {
      Stream* made = nullptr;
      if (const CUresult result = make_stream_object(*call.context, 0, 0, &made); result != CUDA_SUCCESS) return result;
      made->per_thread = true;
      own = reinterpret_cast<CUstream>(made);
    }
    *stream = reinterpret_cast<Stream*>(own);
    return CUDA_SUCCESS;
  }
  *stream = call.process.streams.find(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return context_error(*(*stream)->context);
}

Event* find_event(Call& call, CUevent handle) {
  return call.process.events.find(handle);
}

CUresult enqueue(Call& call, Stream& stream, const Submission& what, Charge charge, CommandRef* made) {
  ContextLock lock(*stream.context);
  call.host().charge(charge, 0);
  return call.process.submit(stream, what, made);
}

WaitMode wait_mode(const Context& context) {
  switch (context.flags & CU_CTX_SCHED_MASK) {
    case CU_CTX_SCHED_SPIN:
      return WaitMode::kSpin;
    case CU_CTX_SCHED_YIELD:
      return WaitMode::kYield;
    case CU_CTX_SCHED_BLOCKING_SYNC:
      return WaitMode::kBlock;
    default:
      return WaitMode::kAuto;
  }
}

CUresult wait_command(Context& context, CommandRef command) {
  const CUresult result = context.process->wait(
      context.card, [command](Card& card) { return is_done(card, command); },
      [command](Card& card) { return earliest_done(card, command); }, wait_mode(context));
  return result != CUDA_SUCCESS ? result : context_error(context);
}

CUresult wait_stream(Call& call, Stream& stream) {
  CommandRef last;
  {
    Card& card = *call.process.device(stream.context->card)->card;
    Card::Guard guard(card);
    last = last_command(card, stream.record);
  }
  return wait_command(*stream.context, last);
}

CUresult wait_context(Context& context) {
  const Index record = context.record;
  const uint32_t serial = context.serial;
  const auto done = [record, serial](Card& card) {
    return card.context(record).serial != serial || is_idle_context(card, record);
  };
  const auto bound = [record](Card& card) {
    uint64_t latest = 0;
    for (Index s = card.context(record).active_streams; s != kNone; s = card.stream(s).next_active) {
      latest = std::max(latest, earliest_done(card, last_command(card, s)));
    }
    return latest;
  };
  const CUresult result = context.process->wait(context.card, done, bound, wait_mode(context));
  return result != CUDA_SUCCESS ? result : context_error(context);
}

}  // namespace sluice::sim
