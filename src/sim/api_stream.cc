// Streams, events, host functions, and values that streams wait for and write.
#include <algorithm>
#include <cstring>

#include "sim/api.h"
#include "sim/capture.h"
#include "sim/mem_pool.h"

namespace sluice::sim {

namespace {

constexpr unsigned kWide = 0x100;  // 64-bit comparison, in CommandRecord::flags

CUresult create_stream(CUstream* out, unsigned flags, int priority, const char* name) {
  Call call(name, kContext, Charge::kCreate);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  const CUresult result = make_stream_object(*call.context, flags, std::clamp(priority, -5, 0), &stream);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUstream>(stream);
  return result;
}

CUresult record_event(CUevent handle, CUstream stream_handle, unsigned flags, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  Event* event = find_event(call, handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, stream_handle, &stream); result != CUDA_SUCCESS) return result;
  if (event->card != stream->context->card || (!event->imported && event->context != stream->context)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return capture_record(*stream, *event);
  event->captured.reset();
  Submission s;
  s.kind = CommandKind::kMarker;
  s.event = event->record;
  return enqueue(call, *stream, s, Charge::kRecord);
}

enum class EventState { kNeverRecorded, kPending, kDone };
EventState state_of(Card& card, const Event& event) {
  const EventRecord& record = card.event(event.record);
  if (record.recorded == 0) return EventState::kNeverRecorded;
  return record.command == kNone || is_done(card, {record.command, record.command_serial}) ? EventState::kDone
                                                                                           : EventState::kPending;
}

CUresult elapsed_time(float* ms, CUevent from, CUevent to, const char* name) {
  Call call(name, kDriver, Charge::kQuery);
  if (call.result != CUDA_SUCCESS) return call.result;
  Event* a = find_event(call, from);
  Event* b = find_event(call, to);
  if (ms == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (a == nullptr || b == nullptr || a->card != b->card) return CUDA_ERROR_INVALID_HANDLE;
  if (((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  call.process.settle(a->card);
  Card& card = *call.process.device(a->card)->card;
  Card::Guard guard(card);
  const EventState first = state_of(card, *a), second = state_of(card, *b);
  if (first == EventState::kNeverRecorded || second == EventState::kNeverRecorded) return CUDA_ERROR_INVALID_HANDLE;
  if (first == EventState::kPending || second == EventState::kPending) return CUDA_ERROR_NOT_READY;
  const auto ns =
      static_cast<double>(static_cast<int64_t>(card.event(b->record).stamp_ns - card.event(a->record).stamp_ns));
  *ms = static_cast<float>(ns / 1e6);
  return CUDA_SUCCESS;
}

// A word of the process's memory that the host can read: pinned host memory, or the contents behind device memory.
volatile void* word_bytes(Process& process, CUdeviceptr address, uint64_t bytes) {
  Mapping mapping;
  Memory* memory = memory_of(process, address, &mapping);
  if (memory == nullptr) return nullptr;
  std::vector<Span> spans;
  if (!memory->spans(address, bytes, true, &spans) || spans.size() != 1) return nullptr;
  return spans[0].bytes;
}

uint64_t read_word(volatile void* at, bool wide) {
  return wide ? *static_cast<volatile uint64_t*>(at) : *static_cast<volatile uint32_t*>(at);
}

CUresult wait_value(Call& call, Stream& stream, CUdeviceptr address, uint64_t value, unsigned flags, bool wide) {
  const int ordinal = stream.context->card;
  volatile void* bytes = word_bytes(call.process, address, wide ? 8 : 4);
  if (bytes == nullptr || address % (wide ? 8 : 4) != 0) return CUDA_ERROR_INVALID_VALUE;
  Submission s;
  s.kind = CommandKind::kWaitValue;
  s.value = value;
  s.flags = (flags & 3) | (wide ? kWide : 0);
  {
    Card& card = *call.process.device(ordinal)->card;
    Card::Guard guard(card);
    s.cell = cell_for(card, call.process.device(ordinal)->record, address, read_word(bytes, wide));
    if (s.cell == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
    ++card.edit(card.cell(s.cell)).references;  // until the command holds it
  }
  call.process.watch_word(ordinal, address, bytes, wide);
  const CUresult result = enqueue(call, stream, s, Charge::kWaitEvent);
  {
    Card& card = *call.process.device(ordinal)->card;
    Card::Guard guard(card);
    if (--card.edit(card.cell(s.cell)).references == 0) card.free_cell(s.cell);
  }
  call.process.need_service();
  return result;
}

CUresult write_value(Call& call, Stream& stream, CUdeviceptr address, uint64_t value, bool wide) {
  const int ordinal = stream.context->card;
  volatile void* bytes = word_bytes(call.process, address, wide ? 8 : 4);
  if (bytes == nullptr || address % (wide ? 8 : 4) != 0) return CUDA_ERROR_INVALID_VALUE;
  Submission s;
  s.kind = CommandKind::kWriteValue;
  s.value = value;
  s.flags = wide ? kWide : 0;
  {
    Card& card = *call.process.device(ordinal)->card;
    Card::Guard guard(card);
    s.cell = cell_for(card, call.process.device(ordinal)->record, address, read_word(bytes, wide));
    if (s.cell == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
    ++card.edit(card.cell(s.cell)).references;
  }
  ++call.process.writes_under_way;
  s.effect = call.process.add_effect([bytes, value, wide, process = &call.process] {
    --process->writes_under_way;
    if (wide) {
      *static_cast<volatile uint64_t*>(bytes) = value;
    } else {
      *static_cast<volatile uint32_t*>(bytes) = static_cast<uint32_t>(value);
    }
  });
  const CUresult result = enqueue(call, stream, s, Charge::kWaitEvent);
  {
    Card& card = *call.process.device(ordinal)->card;
    Card::Guard guard(card);
    if (--card.edit(card.cell(s.cell)).references == 0) card.free_cell(s.cell);
  }
  call.process.need_service();
  return result;
}

CUresult value_call(CUstream handle, CUdeviceptr address, uint64_t value, unsigned flags, bool wide, bool write,
                    const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) {
    CUstreamBatchMemOpParams op{};
    op.operation = write ? (wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32)
                         : (wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32);
    op.waitValue.address = address;
    op.waitValue.value64 = value;
    op.waitValue.flags = flags;
    return capture_node(*stream, make_memop_node(call.process, {op}));
  }
  return write ? write_value(call, *stream, address, value, wide)
               : wait_value(call, *stream, address, value, flags, wide);
}

}  // namespace

CUresult run_memop(Call& call, Stream& stream, const CUstreamBatchMemOpParams& op) {
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return wait_value(call, stream, op.waitValue.address, op.waitValue.value, op.waitValue.flags, false);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return wait_value(call, stream, op.waitValue.address, op.waitValue.value64, op.waitValue.flags, true);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return write_value(call, stream, op.writeValue.address, op.writeValue.value, false);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return write_value(call, stream, op.writeValue.address, op.writeValue.value64, true);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult run_host_function(Call& call, Stream& stream, std::function<void()> function) {
  Submission s;
  s.kind = CommandKind::kHostFunction;
  s.effect = call.process.add_host_function(std::move(function));
  const CUresult result = enqueue(call, stream, s, Charge::kHostFunction);
  call.process.need_service();
  return result;
}

CUresult wait_for_event(Call& call, Stream& stream, Event& event) {
  Submission s;
  s.kind = CommandKind::kWaitEvent;
  {
    Card& card = *call.process.device(event.card)->card;
    Card::Guard guard(card);
    const EventRecord& record = card.event(event.record);
    if (record.recorded == 0 || record.command == kNone) return CUDA_SUCCESS;
    s.dependency = {record.command, record.command_serial};
    if (is_done(card, s.dependency)) return CUDA_SUCCESS;
  }
  if (event.card != stream.context->card) {
    // Another card's event: seen by a thread of the process, as no engine sees both cards.
    Context* owner = event.context;
    const CommandRef awaited = s.dependency;
    return run_host_function(call, stream, [owner, awaited] { wait_command(*owner, awaited); });
  }
  return enqueue(call, stream, s, Charge::kWaitEvent);
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuStreamCreate(CUstream* out, unsigned flags) {
  return create_stream(out, flags, 0, "cuStreamCreate");
}
CUresult sim_cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return create_stream(out, flags, priority, "cuStreamCreateWithPriority");
}

CUresult sim_cuStreamDestroy_v2(CUstream handle) {
  SIM_ENTER(cuStreamDestroy_v2, kDriver);
  Stream* stream = call.process.streams.find(handle);
  if (stream == nullptr || stream->legacy) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) drop_from_capture(*stream);
  {
    Card& card = *call.process.device(stream->context->card)->card;
    Card::Guard guard(card);
    advance(card, card.card_time(call.host().now_ns()));
    if (card.context(stream->context->record).serial == stream->context->serial) destroy_stream(card, stream->record);
  }
  ObjectsLock objects(call.process);
  call.process.streams.free(stream);
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamDestroy(CUstream handle) {
  return sim_cuStreamDestroy_v2(handle);
}

CUresult sim_cuStreamQuery(CUstream handle) {
  SIM_ENTER(cuStreamQuery, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_not_capturing(*stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  ContextLock lock(*stream->context);
  call.host().charge(Charge::kQuery, 0);
  call.process.settle(stream->context->card);
  Card& card = *call.process.device(stream->context->card)->card;
  Card::Guard guard(card);
  return is_idle_stream(card, stream->record) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sim_cuStreamSynchronize(CUstream handle) {
  SIM_ENTER(cuStreamSynchronize, kContext, Charge::kSync);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_not_capturing(*stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  const CUresult result = wait_stream(call, *stream);
  pools_after_sync(call.process, stream->context->card);
  return result;
}

CUresult sim_cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  SIM_ENTER(cuStreamWaitEvent, kContext);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  Event* event = find_event(call, event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr || event->captured != nullptr) return capture_wait(*stream, *event);
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  return wait_for_event(call, *stream, *event);
}

CUresult sim_cuStreamGetPriority(CUstream handle, int* priority) {
  SIM_ENTER(cuStreamGetPriority, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamGetFlags(CUstream handle, unsigned* flags) {
  SIM_ENTER(cuStreamGetFlags, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamGetId(CUstream handle, unsigned long long* id) {
  SIM_ENTER(cuStreamGetId, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamGetCtx(CUstream handle, CUcontext* context) {
  SIM_ENTER(cuStreamGetCtx, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return sim_cuStreamGetCtx(handle, context);
}
CUresult sim_cuStreamGetDevice(CUstream handle, CUdevice* device) {
  SIM_ENTER(cuStreamGetDevice, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->card;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
  SIM_ENTER(cuStreamCopyAttributes, kContext);
  Stream *to = nullptr, *from = nullptr;
  if (const CUresult result = find_stream(call, to_handle, &to); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_stream(call, from_handle, &from); result != CUDA_SUCCESS) return result;
  to->sync_policy = from->sync_policy;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value) {
  SIM_ENTER(cuStreamGetAttribute, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memset(value, 0, sizeof *value);
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) value->syncPolicy = stream->sync_policy;
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value) {
  SIM_ENTER(cuStreamSetAttribute, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) stream->sync_policy = value->syncPolicy;
  return CUDA_SUCCESS;
}

CUresult sim_cuEventCreate(CUevent* out, unsigned flags) {
  SIM_ENTER(cuEventCreate, kContext, Charge::kCreate);
  constexpr unsigned kAll = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (out == nullptr || (flags & ~kAll) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  ObjectsLock objects(call.process);
  Event* event = call.process.events.make();
  if (event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Card& card = call.card();
  Card::Guard guard(card);
  event->record = card.new_event();
  if (event->record == kNone) {
    call.process.events.free(event);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  EventRecord& record = card.event(event->record);
  record.process = call.device().record;
  record.flags = flags;
  record.references = 1;
  event->context = call.context;
  event->card = call.context->card;
  event->flags = flags;
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy_v2(CUevent handle) {
  SIM_ENTER(cuEventDestroy_v2, kDriver);
  Event* event = find_event(call, handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ObjectsLock objects(call.process);
  {
    Card& card = *call.process.device(event->card)->card;
    Card::Guard guard(card);
    if (--card.edit(card.event(event->record)).references == 0) card.free_event(event->record);
  }
  call.process.events.free(event);
  return CUDA_SUCCESS;
}
CUresult sim_cuEventDestroy(CUevent handle) {
  return sim_cuEventDestroy_v2(handle);
}

CUresult sim_cuEventRecord(CUevent event, CUstream stream) {
  return record_event(event, stream, 0, "cuEventRecord");
}
CUresult sim_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return record_event(event, stream, flags, "cuEventRecordWithFlags");
}

CUresult sim_cuEventQuery(CUevent handle) {
  SIM_ENTER(cuEventQuery, kDriver);
  Event* event = find_event(call, handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->captured != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (const CUresult result = check_unsafe_call(call); result != CUDA_SUCCESS) return result;
  if (event->context != nullptr) {
    if (const CUresult result = context_error(*event->context); result != CUDA_SUCCESS) return result;
    ContextLock lock(*event->context);
    call.host().charge(Charge::kQuery, 0);
  }
  call.process.settle(event->card);
  Card& card = *call.process.device(event->card)->card;
  Card::Guard guard(card);
  return state_of(card, *event) == EventState::kPending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult sim_cuEventSynchronize(CUevent handle) {
  SIM_ENTER(cuEventSynchronize, kDriver, Charge::kSync);
  Event* event = find_event(call, handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->captured != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (const CUresult result = check_unsafe_call(call); result != CUDA_SUCCESS) return result;
  CommandRef command;
  {
    Card& card = *call.process.device(event->card)->card;
    Card::Guard guard(card);
    const EventRecord& record = card.event(event->record);
    if (record.command != kNone) command = {record.command, record.command_serial};
  }
  const WaitMode mode = (event->flags & CU_EVENT_BLOCKING_SYNC) != 0 ? WaitMode::kBlock
                        : event->context != nullptr                  ? wait_mode(*event->context)
                                                                     : WaitMode::kAuto;
  const CUresult result = call.process.wait(
      event->card, [command](Card& card) { return is_done(card, command); },
      [command](Card& card) { return earliest_done(card, command); }, mode);
  pools_after_sync(call.process, event->card);
  return result == CUDA_SUCCESS && event->context != nullptr ? context_error(*event->context) : result;
}

CUresult sim_cuEventElapsedTime(float* ms, CUevent a, CUevent b) {
  return elapsed_time(ms, a, b, "cuEventElapsedTime");
}
CUresult sim_cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) {
  return elapsed_time(ms, a, b, "cuEventElapsedTime_v2");
}

CUresult sim_cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  SIM_ENTER(cuLaunchHostFunc, kContext);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return capture_node(*stream, make_host_node(call.process, {function, data}));
  return run_host_function(call, *stream, [function, data] { function(data); });
}
CUresult sim_cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void* data, unsigned) {
  return sim_cuLaunchHostFunc(handle, function, data);
}

CUresult sim_cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  SIM_ENTER(cuStreamAddCallback, kContext);
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return check_not_capturing(*stream);
  return run_host_function(call, *stream, [callback, handle, data] { callback(handle, CUDA_SUCCESS, data); });
}

#define SIM_VALUE_CALLS(suffix)                                                                    \
  CUresult sim_cuStreamWaitValue32##suffix(CUstream s, CUdeviceptr a, cuuint32_t v, unsigned f) {  \
    return value_call(s, a, v, f, false, false, "cuStreamWaitValue32" #suffix);                    \
  }                                                                                                \
  CUresult sim_cuStreamWaitValue64##suffix(CUstream s, CUdeviceptr a, cuuint64_t v, unsigned f) {  \
    return value_call(s, a, v, f, true, false, "cuStreamWaitValue64" #suffix);                     \
  }                                                                                                \
  CUresult sim_cuStreamWriteValue32##suffix(CUstream s, CUdeviceptr a, cuuint32_t v, unsigned f) { \
    return value_call(s, a, v, f, false, true, "cuStreamWriteValue32" #suffix);                    \
  }                                                                                                \
  CUresult sim_cuStreamWriteValue64##suffix(CUstream s, CUdeviceptr a, cuuint64_t v, unsigned f) { \
    return value_call(s, a, v, f, true, true, "cuStreamWriteValue64" #suffix);                     \
  }
SIM_VALUE_CALLS()
SIM_VALUE_CALLS(_v2)

CUresult sim_cuStreamBatchMemOp_v2(CUstream handle, unsigned count, CUstreamBatchMemOpParams* ops, unsigned flags) {
  SIM_ENTER(cuStreamBatchMemOp_v2, kContext);
  if (ops == nullptr || count == 0 || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return capture_node(*stream, make_memop_node(call.process, {ops, ops + count}));
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult result = run_memop(call, *stream, ops[i]); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
CUresult sim_cuStreamBatchMemOp(CUstream handle, unsigned count, CUstreamBatchMemOpParams* ops, unsigned flags) {
  return sim_cuStreamBatchMemOp_v2(handle, count, ops, flags);
}

CUresult sim_cuCtxRecordEvent(CUcontext, CUevent) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult sim_cuCtxWaitEvent(CUcontext, CUevent) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
}
