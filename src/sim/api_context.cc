// Contexts: creating, being current, primary ones, limits.
#include <algorithm>

#include "sim/api.h"
#include "sim/library.h"
#include "sim/mem_pool.h"
#include "sim/mem_state.h"
#include "sim/module.h"

namespace sluice::sim {

namespace {

constexpr size_t kDefaultStack = 1024, kDefaultHeap = 8 << 20, kDefaultFifo = 1 << 20;

// A context of this process on that card in exclusive mode.
bool card_is_taken(Card& card, Index own) {
  if (card.knob(Knob::exclusive_process) == 0) return false;
  for (Index i = 1; i <= card.header().tables.processes.high; ++i) {
    const ProcessRecord& p = card.process(i);
    if (i != own && p.state == LiveState::kLive && p.first_context != kNone) return true;
  }
  return false;
}

CUresult place_context(Process& process, int ordinal, Context& context) {
  Device& device = *process.device(ordinal);
  Card& card = *device.card;
  Card::Guard guard(card);
  advance(card, card.card_time(process.host().now_ns()));
  if (card.header().lost != 0) return CUDA_ERROR_UNKNOWN;
  if (card_is_taken(card, device.record)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  context.record = make_context(card, device.record, context.flags);
  if (context.record == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  context.serial = card.context(context.record).serial;
  const int64_t knob = card.knob(Knob::context_bytes);
  const int64_t bytes = knob >= 0 ? knob : card.profile().context_bytes;
  if (bytes == 0) return CUDA_SUCCESS;
  context.overhead_block =
      card.allocate_block(device.record, context.record, static_cast<uint64_t>(bytes), BlockKind::kContext);
  if (context.overhead_block != kNone) return CUDA_SUCCESS;
  destroy_context(card, context.record);
  context.record = kNone;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Memory that a raised limit takes at once.
CUresult resize_limit_block(Context& context, Index* block, uint64_t bytes, BlockKind kind) {
  Device& device = *context.process->device(context.card);
  Card& card = *device.card;
  Card::Guard guard(card);
  advance(card, card.card_time(context.process->host().now_ns()));
  Index made = kNone;
  if (bytes > 0) {
    made = card.allocate_block(device.record, context.record, bytes, kind);
    if (made == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (*block != kNone) card.release_block(*block);
  *block = made;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create_context(Process& process, int ordinal, unsigned flags, unsigned api_version, bool primary,
                        Context** made) {
  Device* device = process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_MASK || flags > 0xff) return CUDA_ERROR_INVALID_VALUE;
  process.host().charge(Charge::kContext, device->card->knob_ns(Knob::context_ns));
  if (const CUresult result = process.attach(ordinal); result != CUDA_SUCCESS) return result;
  ObjectsLock objects(process);
  Context* context = process.contexts.make();
  if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  context->process = &process;
  context->card = ordinal;
  context->flags = flags;
  context->api_version = api_version;
  context->primary = primary;
  context->limits[CU_LIMIT_STACK_SIZE] = kDefaultStack;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = kDefaultFifo;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = kDefaultHeap;
  context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  if (const CUresult result = place_context(process, ordinal, *context); result != CUDA_SUCCESS) {
    process.contexts.free(context);
    return result;
  }
  context->id = context->serial;
  *made = context;
  return CUDA_SUCCESS;
}

// Everything that hangs on a context goes with it.
void destroy_context_object(Context& context) {
  Process& process = *context.process;
  Device& device = *process.device(context.card);
  std::vector<Module*> modules;
  module_state(process).modules.each([&](Module& m) {
    if (m.context == &context) modules.push_back(&m);
  });
  for (Module* m : modules) unload_module(*m);
  forget_context_in_libraries(process, context);
  release_context_memory(process, context);
  device.memory->release_context(reinterpret_cast<CUcontext>(&context));
  ObjectsLock objects(process);
  std::vector<Stream*> streams;
  process.streams.each([&](Stream& s) {
    if (s.context == &context) streams.push_back(&s);
  });
  for (Stream* s : streams) process.streams.free(s);
  std::vector<Event*> events;
  process.events.each([&](Event& e) {
    if (e.context == &context) events.push_back(&e);
  });
  {
    Card& card = *device.card;
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    for (Event* e : events) {
      if (e->record != kNone && --card.edit(card.event(e->record)).references == 0) card.free_event(e->record);
      card.commit();  // there may be a hundred thousand
    }
    if (card.context(context.record).serial == context.serial) {
      for (const Index block : {context.overhead_block, context.local_block, context.heap_block}) {
        if (block != kNone) card.release_block(block);
      }
      destroy_context(card, context.record);
      advance(card, card.header().now_ns);
    }
  }
  for (Event* e : events) process.events.free(e);
  if (device.primary == &context) device.primary = nullptr;
  process.contexts.free(&context);
}

namespace {

CUresult make_current_context(CUcontext* out, unsigned flags, CUdevice ordinal, unsigned api_version,
                              const char* name) {
  Call call(name, kDriver | kNoCapture);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = create_context(call.process, ordinal, flags, api_version, false, &context);
      result != CUDA_SUCCESS) {
    return result;
  }
  call.thread.stack.push_back(context);
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

Context* handle_to_context(Call& call, CUcontext handle) {
  return call.process.contexts.find(handle);
}

CUresult reset_primary(Call& call, CUdevice ordinal) {
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary == nullptr) return CUDA_SUCCESS;
  wait_context(*device->primary);
  destroy_context_object(*device->primary);
  return CUDA_SUCCESS;
}

CUresult destroy_by_handle(CUcontext handle, const char* name) {
  Call call(name, kDriver);
  if (call.result != CUDA_SUCCESS) return call.result;
  Context* context = handle_to_context(call, handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  wait_context(*context);
  auto& stack = call.thread.stack;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  std::replace(stack.begin(), stack.end(), context, static_cast<Context*>(nullptr));
  destroy_context_object(*context);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuCtxCreate(CUcontext* out, unsigned flags, CUdevice d) {
  return make_current_context(out, flags, d, 3010, "cuCtxCreate");
}
CUresult sim_cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice d) {
  return make_current_context(out, flags, d, 3020, "cuCtxCreate_v2");
}
CUresult sim_cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice d) {
  if (count != 0 && affinity != nullptr) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return make_current_context(out, flags, d, 3020, "cuCtxCreate_v3");
}
CUresult sim_cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned flags, CUdevice d) {
  if (params != nullptr && params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return make_current_context(out, flags, d, 3020, "cuCtxCreate_v4");
}

CUresult sim_cuCtxDestroy(CUcontext c) {
  return destroy_by_handle(c, "cuCtxDestroy");
}
CUresult sim_cuCtxDestroy_v2(CUcontext c) {
  return destroy_by_handle(c, "cuCtxDestroy_v2");
}
CUresult sim_cuCtxDetach(CUcontext c) {
  return destroy_by_handle(c, "cuCtxDetach");
}
CUresult sim_cuCtxAttach(CUcontext* out, unsigned) {
  SIM_ENTER(cuCtxAttach, kContext);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUcontext>(call.context);
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxPushCurrent_v2(CUcontext handle) {
  SIM_ENTER(cuCtxPushCurrent_v2, kDriver);
  Context* context = handle_to_context(call, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  call.thread.stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxPushCurrent(CUcontext c) {
  return sim_cuCtxPushCurrent_v2(c);
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext* out) {
  SIM_ENTER(cuCtxPopCurrent_v2, kDriver);
  if (call.thread.stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = reinterpret_cast<CUcontext>(call.thread.stack.back());
  call.thread.stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxPopCurrent(CUcontext* out) {
  return sim_cuCtxPopCurrent_v2(out);
}

CUresult sim_cuCtxSetCurrent(CUcontext handle) {
  SIM_ENTER(cuCtxSetCurrent, kDriver);
  auto& stack = call.thread.stack;
  if (handle == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  Context* context = handle_to_context(call, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) {
    stack.push_back(context);
  } else {
    stack.back() = context;
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext* out) {
  SIM_ENTER(cuCtxGetCurrent, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = call.thread.stack.empty() ? nullptr : reinterpret_cast<CUcontext>(call.thread.stack.back());
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice* device) {
  SIM_ENTER(cuCtxGetDevice, kContext);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.context->card;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  if (handle == nullptr) return sim_cuCtxGetDevice(device);
  SIM_ENTER(cuCtxGetDevice_v2, kDriver);
  Context* context = handle_to_context(call, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->card;
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetFlags(unsigned* flags) {
  SIM_ENTER(cuCtxGetFlags, kContext);
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = call.context->flags;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxSetFlags(unsigned flags) {
  SIM_ENTER(cuCtxSetFlags, kContext);
  if (flags > 0xff) return CUDA_ERROR_INVALID_VALUE;
  call.context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetId(CUcontext handle, unsigned long long* id) {
  SIM_ENTER(cuCtxGetId, kDriver);
  Context* context = handle != nullptr           ? handle_to_context(call, handle)
                     : call.thread.stack.empty() ? nullptr
                                                 : call.process.contexts.find(call.thread.stack.back());
  if (context == nullptr) return handle != nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  SIM_ENTER(cuCtxGetApiVersion, kDriver);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = handle != nullptr           ? handle_to_context(call, handle)
                     : call.thread.stack.empty() ? nullptr
                                                 : call.process.contexts.find(call.thread.stack.back());
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIM_ENTER(cuCtxGetStreamPriorityRange, kContext);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxSynchronize() {
  SIM_ENTER(cuCtxSynchronize, kContext | kNoCapture, Charge::kSync);
  const CUresult result = wait_context(*call.context);
  pools_after_sync(call.process, call.context->card);
  return result;
}
CUresult sim_cuCtxSynchronize_v2(CUcontext handle) {
  if (handle == nullptr) return sim_cuCtxSynchronize();
  SIM_ENTER(cuCtxSynchronize_v2, kDriver | kNoCapture, Charge::kSync);
  Context* context = handle_to_context(call, handle);
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : wait_context(*context);
}

CUresult sim_cuCtxGetLimit(size_t* value, CUlimit limit) {
  SIM_ENTER(cuCtxGetLimit, kContext);
  if (value == nullptr || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = call.context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetLimit(CUlimit limit, size_t value) {
  SIM_ENTER(cuCtxSetLimit, kContext | kNoCapture);
  if (limit < 0) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  Context& context = *call.context;
  CUresult result = CUDA_SUCCESS;
  if (limit == CU_LIMIT_STACK_SIZE) {
    if (value > 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
    // Local memory is laid out for every thread that fits on the card.
    const ProfileData& p = call.card().profile();
    const uint64_t more = value > kDefaultStack ? (value - kDefaultStack) * uint64_t{p.sms} * p.threads_per_sm : 0;
    wait_context(context);
    result = resize_limit_block(context, &context.local_block, more, BlockKind::kLocalMemory);
  } else if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
    result = resize_limit_block(context, &context.heap_block, value > kDefaultHeap ? value - kDefaultHeap : 0,
                                BlockKind::kHeap);
  }
  if (result == CUDA_SUCCESS) context.limits[limit] = value;
  return result;
}

CUresult sim_cuCtxGetCacheConfig(CUfunc_cache* config) {
  SIM_ENTER(cuCtxGetCacheConfig, kContext);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = call.context->cache_config;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxSetCacheConfig(CUfunc_cache config) {
  SIM_ENTER(cuCtxSetCacheConfig, kContext);
  call.context->cache_config = config;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  SIM_ENTER(cuCtxGetSharedMemConfig, kContext);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = call.context->shared_config;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxSetSharedMemConfig(CUsharedconfig config) {
  SIM_ENTER(cuCtxSetSharedMemConfig, kContext);
  call.context->shared_config = config;
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxResetPersistingL2Cache() {
  SIM_ENTER(cuCtxResetPersistingL2Cache, kContext);
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxGetExecAffinity(CUexecAffinityParam*, CUexecAffinityType) {
  SIM_ENTER(cuCtxGetExecAffinity, kContext);
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult sim_cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  SIM_ENTER(cuCtxEnablePeerAccess, kContext);
  Context* peer = handle_to_context(call, handle);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != 0 || peer == call.context) return CUDA_ERROR_INVALID_VALUE;
  auto& peers = call.context->peers;
  if (std::find(peers.begin(), peers.end(), peer) != peers.end()) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  if (peer->card == call.context->card) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  peers.push_back(peer);
  return CUDA_SUCCESS;
}
CUresult sim_cuCtxDisablePeerAccess(CUcontext handle) {
  SIM_ENTER(cuCtxDisablePeerAccess, kContext);
  auto& peers = call.context->peers;
  const auto at = std::find(peers.begin(), peers.end(), handle_to_context(call, handle));
  if (at == peers.end()) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  peers.erase(at);
  return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  SIM_ENTER(cuDevicePrimaryCtxRetain, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device->primary == nullptr) {
    Context* made = nullptr;
    const CUresult result = create_context(call.process, ordinal, device->primary_flags, 3020, true, &made);
    if (result != CUDA_SUCCESS) return result;
    device->primary = made;
  }
  ++device->primary_references;
  *out = reinterpret_cast<CUcontext>(device->primary);
  return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  SIM_ENTER(cuDevicePrimaryCtxRelease_v2, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (device->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary_references == 0) return reset_primary(call, ordinal);
  return CUDA_SUCCESS;
}
CUresult sim_cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return sim_cuDevicePrimaryCtxRelease_v2(ordinal);
}

CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  SIM_ENTER(cuDevicePrimaryCtxReset_v2, kDriver);
  return reset_primary(call, ordinal);
}
CUresult sim_cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return sim_cuDevicePrimaryCtxReset_v2(ordinal);
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags > 0xff) return CUDA_ERROR_INVALID_VALUE;
  device->primary_flags = flags;
  if (device->primary != nullptr) device->primary->flags = flags;
  return CUDA_SUCCESS;
}
CUresult sim_cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
  if (Device* device = current_process().device(ordinal); device != nullptr && device->primary != nullptr) {
    return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  }
  return sim_cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  SIM_ENTER(cuDevicePrimaryCtxGetState, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = device->primary_flags;
  *active = device->primary != nullptr;
  return CUDA_SUCCESS;
}
}
