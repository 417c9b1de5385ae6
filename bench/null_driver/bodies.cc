// A driver with no card behind it: every call returns success at once, with handles and answers that a program (and a
// library in front of the driver) can go on with. Against it, what remains of a launch is the caller and whatever
// stands in between, which is what bench/launch_path measures. Elapsed times are always 0, so a limiter sees no busy
// time and keeps its gate open.
//
// NULL_DRIVER_TIMED makes one whose streams take time, without a card's queues or locks: a launch adds
// SLUICE_NULL_KERNEL_NS to its stream's end and returns (after SLUICE_NULL_LAUNCH_NS), an event is stamped at the end
// of what stands before it and is not ready until then, a record costs its caller SLUICE_NULL_RECORD_NS, a
// synchronisation waits. SLUICE_NULL_SLOW_AFTER=N: from the N-th launch on that time runs 10,000 times slower.
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"
#include "abi/lookup.h"

namespace {

constexpr int kDriverVersion = CUDA_VERSION;
constexpr size_t kMemoryBytes = size_t{32510} << 20;
constexpr int kMultiprocessors = 80;

std::atomic<uintptr_t> g_next_handle{0x100000};
std::atomic<unsigned long long> g_next_address{0x7f0000000000};
thread_local CUcontext g_current = nullptr;

// Handles are addresses that nobody dereferences; they only have to differ.
template <typename Handle>
CUresult give(Handle* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<Handle>(g_next_handle.fetch_add(64, std::memory_order_relaxed));
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult answer(Value* out, Value value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

CUcontext primary() {
  return reinterpret_cast<CUcontext>(uintptr_t{0x1000});
}

CUresult allocate(CUdeviceptr* address, size_t bytes) {
  return answer(address, static_cast<CUdeviceptr>(g_next_address.fetch_add((bytes + 511) / 512 * 512)));
}

// Addresses of all exports, in the order of the table. Declared without prototypes, as exports.cc defines them.
#define SLUICE_CALL(name, base, since, stream, group) extern "C" char null_address_##name __asm__(#name);
}  // namespace
#include "abi/cuda_calls.inc"
#undef SLUICE_CALL
namespace {
const void* const kAddresses[] = {
#define SLUICE_CALL(name, base, since, stream, group) &null_address_##name,
#include "abi/cuda_calls.inc"
#undef SLUICE_CALL
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult cuDriverGetVersion(int* version) {
  return answer(version, kDriverVersion);
}
CUresult cuDeviceGetCount(int* count) {
  return answer(count, 1);
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return ordinal == 0 ? answer(device, 0) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  strncpy(name, "null card", static_cast<size_t>(length));
  name[length - 1] = '\0';
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memset(uuid, 0x5a, sizeof *uuid);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid(uuid, device);
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return answer(value, kMultiprocessors);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return answer(value, 2048);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return answer(value, 1024);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return answer(value, 7);
    default:
      return answer(value, 0);
  }
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  return answer(bytes, kMemoryBytes);
}
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  answer(free_bytes, kMemoryBytes);
  return answer(total_bytes, kMemoryBytes);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return answer(context, primary());
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  answer(flags, 0u);
  return answer(active, 1);
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice) {
  const CUresult result = give(context);
  if (result == CUDA_SUCCESS) g_current = *context;
  return result;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  g_current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  return answer(context, g_current);
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return cuCtxSetCurrent(context);
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (context != nullptr) *context = g_current;
  g_current = primary();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  return answer(device, 0);
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext, unsigned long long* id) {
  return answer(id, 1ull);
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
  return answer(context, g_current);
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return answer(id, static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(stream)));
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  return answer(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  return give(module);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned int, CUjit_option*, void**) {
  return give(module);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  return give(function);
}
#ifndef NULL_DRIVER_TIMED
CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  return give(stream);
}
CUresult cuEventCreate(CUevent* event, unsigned int) {
  return give(event);
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  return answer(milliseconds, 0.0f);
}
#endif
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  return cuStreamCreate(stream, flags);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
CUresult cuGraphCreate(CUgraph* graph, unsigned int) {
  return give(graph);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph, unsigned long long) {
  return give(exec);
}
CUresult cuStreamEndCapture(CUstream, CUgraph* graph) {
  return give(graph);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return allocate(address, bytes);
}
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  return allocate(address, bytes);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream) {
  return allocate(address, bytes);
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int) {
  return answer(address, calloc(1, bytes > 0 ? bytes : 1));
}
CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return cuMemHostAlloc(address, bytes, 0);
}
CUresult cuMemFreeHost(void* address) {
  free(address);
  return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned int) {
  return answer(address, static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(host)));
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  return answer(name, result == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN");
}
CUresult cuGetErrorString(CUresult, const char** text) {
  return answer(text, "the null driver has no error texts");
}

CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = sluice::abi::find_for_version(symbol, version, (flags & 2) != 0);
  const bool known = found.status == sluice::abi::LookupStatus::kFound;
  *address = known ? const_cast<void*>(kAddresses[found.index]) : nullptr;
  if (status != nullptr) {
    *status = known ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, address, version, flags, nullptr);
}

#ifdef NULL_DRIVER_EXTRA_INSTRUCTIONS
// The same driver with a launch that is slower by a known number of instructions: what the benchmark must notice.
CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream, void**, void**) {
  __asm__ volatile(".rept %c0\n nop\n .endr" : : "i"(NULL_DRIVER_EXTRA_INSTRUCTIONS));
  return CUDA_SUCCESS;
}
#endif

}  // extern "C"
#pragma GCC visibility pop
