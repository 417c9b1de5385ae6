// Plain device memory, host memory that the card sees, and questions about pointers. Pools, virtual memory management,
// managed memory, IPC and arrays are in files of their own.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "sim/api.h"

namespace sluice::sim {

namespace {

constexpr uint64_t kPage = 4096;

CUresult allocate(Call& call, uint64_t bytes, CUdeviceptr* out) {
  call.host().charge(Charge::kAllocate, call.card().knob_ns(Knob::alloc_ns));
  return call.device().memory->allocate(reinterpret_cast<CUcontext>(call.context), call.context->record, bytes,
                                        BlockKind::kDevice, out);
}

CUresult map_host(Call& call, void* at, uint64_t bytes, unsigned flags, bool registered) {
  Mapping m;
  m.address = m.allocation = reinterpret_cast<uint64_t>(at);
  m.bytes = m.allocation_bytes = bytes;
  m.host = at;
  m.context = reinterpret_cast<CUcontext>(call.context);
  m.type = CU_MEMORYTYPE_HOST;
  m.host_flags = flags | (registered ? 0x10000u : 0u);
  return call.device().memory->map(m) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult host_alloc(void** out, size_t bytes, unsigned flags, const char* name) {
  Call call(name, kContext | kNoCapture, Charge::kAllocate);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (out == nullptr || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t rounded = (bytes + kPage - 1) / kPage * kPage;
  void* at = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult result = map_host(call, at, bytes, flags, false); result != CUDA_SUCCESS) {
    munmap(at, rounded);
    return result;
  }
  *out = at;
  return CUDA_SUCCESS;
}

bool find_host(Process& process, const void* pointer, Mapping* m, Memory** memory) {
  *memory = memory_of(process, reinterpret_cast<uint64_t>(pointer), m);
  return *memory != nullptr && m->host != nullptr && !m->managed;
}

CUresult pointer_attribute(Process& process, CUpointer_attribute attribute, void* out, CUdeviceptr pointer) {
  Mapping m;
  Memory* memory = memory_of(process, pointer, &m);
  if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
    *static_cast<unsigned*>(out) = memory != nullptr && m.managed;
    return memory != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(out) = m.context;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(out) = m.type;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(out) = pointer;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (m.host == nullptr) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(out) = static_cast<char*>(m.host) + (pointer - m.address);
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<int*>(out) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(out) = m.buffer_id;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(out) = m.card;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(out) = m.block != kNone && !m.managed;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(out) = m.allocation;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(out) = m.allocation_bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<int*>(out) = 1;
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(out) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<int*>(out) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<int*>(out) = m.writable ? 3 : 1;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(out) = nullptr;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(out) = m.bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(out) = m.address;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(out) = m.block;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// What attributes read for a pointer that the driver does not know (cuPointerGetAttributes reports no error then).
void clear_attribute(CUpointer_attribute attribute, void* out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<int*>(out) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(out) = -2;
      break;
    default:
      std::memset(out, 0, 8);
      break;
  }
}

}  // namespace

// Waits as cuMemFree does.
CUresult wait_for_free(Call& call, const Mapping& m) {
  if (call.process.device(m.card)->card->knob(Knob::free_synchronises) == 0) return CUDA_SUCCESS;
  Context* owner = call.process.contexts.find(m.context);
  return owner != nullptr ? wait_context(*owner) : CUDA_SUCCESS;
}

// Frees of memory that other parts allocated (managed, pools): true when it was theirs. Weak: nobody's.
__attribute__((weak)) bool free_elsewhere(Process&, CUdeviceptr, const Mapping&, CUresult*) {
  return false;
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  SIM_ENTER(cuMemAlloc_v2, kContext | kNoCapture);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return allocate(call, bytes, out);
}
CUresult sim_cuMemAlloc(CUdeviceptr_v1* out, unsigned bytes) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;  // addresses of 64 bits do not fit into the first generation's 32
}

CUresult sim_cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  SIM_ENTER(cuMemAllocPitch_v2, kContext | kNoCapture);
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  const size_t wide = (width + 511) / 512 * 512;
  if (wide > SIZE_MAX / height) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = allocate(call, wide * height, out);
  if (result == CUDA_SUCCESS) *pitch = wide;
  return result;
}

CUresult sim_cuMemFree_v2(CUdeviceptr pointer) {
  SIM_ENTER(cuMemFree_v2, kContext | kNoCapture);
  if (pointer == 0) return CUDA_SUCCESS;
  Mapping m;
  Memory* memory = memory_of(call.process, pointer, &m);
  if (memory == nullptr || m.allocation != pointer) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = wait_for_free(call, m); result != CUDA_SUCCESS) return result;
  call.host().charge(Charge::kAllocate, call.card().knob_ns(Knob::alloc_ns));
  CUresult result = CUDA_SUCCESS;
  if (free_elsewhere(call.process, pointer, m, &result)) return result;
  return memory->free(pointer);
}
CUresult sim_cuMemFree(CUdeviceptr_v1 pointer) {
  return sim_cuMemFree_v2(pointer);
}

CUresult sim_cuMemGetInfo_v2(size_t* free, size_t* total) {
  SIM_ENTER(cuMemGetInfo_v2, kContext | kNoCapture, Charge::kQuery);
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.process.settle(call.context->card);
  Card& card = call.card();
  Card::Guard guard(card);
  *free = card.free_bytes();
  *total = card.capacity_bytes();
  return CUDA_SUCCESS;
}
CUresult sim_cuMemGetInfo(unsigned* free, unsigned* total) {
  size_t wide_free = 0, wide_total = 0;
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = sim_cuMemGetInfo_v2(&wide_free, &wide_total);
  *free = static_cast<unsigned>(std::min<size_t>(wide_free, 0xffffffff));
  *total = static_cast<unsigned>(std::min<size_t>(wide_total, 0xffffffff));
  return result;
}

CUresult sim_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  SIM_ENTER(cuMemGetAddressRange_v2, kContext);
  Mapping m;
  if (memory_of(call.process, pointer, &m) == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = m.allocation;
  if (bytes != nullptr) *bytes = m.allocation_bytes;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return host_alloc(out, bytes, flags, "cuMemHostAlloc");
}
CUresult sim_cuMemAllocHost_v2(void** out, size_t bytes) {
  return host_alloc(out, bytes, 0, "cuMemAllocHost_v2");
}
CUresult sim_cuMemAllocHost(void** out, unsigned bytes) {
  return host_alloc(out, bytes, 0, "cuMemAllocHost");
}

CUresult sim_cuMemFreeHost(void* pointer) {
  SIM_ENTER(cuMemFreeHost, kContext | kNoCapture);
  if (pointer == nullptr) return CUDA_SUCCESS;
  Mapping m;
  Memory* memory = nullptr;
  if (!find_host(call.process, pointer, &m, &memory) || m.host != pointer || (m.host_flags & 0x10000) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = wait_for_free(call, m); result != CUDA_SUCCESS) return result;
  memory->unmap(m.address, m.bytes);
  munmap(pointer, (m.bytes + kPage - 1) / kPage * kPage);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  SIM_ENTER(cuMemHostRegister_v2, kContext | kNoCapture, Charge::kAllocate);
  if (pointer == nullptr || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  return map_host(call, pointer, bytes, flags, true);
}
CUresult sim_cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return sim_cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult sim_cuMemHostUnregister(void* pointer) {
  SIM_ENTER(cuMemHostUnregister, kContext | kNoCapture);
  Mapping m;
  Memory* memory = nullptr;
  if (!find_host(call.process, pointer, &m, &memory) || m.host != pointer || (m.host_flags & 0x10000) == 0) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  if (const CUresult result = wait_for_free(call, m); result != CUDA_SUCCESS) return result;
  memory->unmap(m.address, m.bytes);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  SIM_ENTER(cuMemHostGetDevicePointer_v2, kContext);
  Mapping m;
  Memory* memory = nullptr;
  if (out == nullptr || flags != 0 || !find_host(call.process, pointer, &m, &memory)) return CUDA_ERROR_INVALID_VALUE;
  *out = m.address + static_cast<uint64_t>(static_cast<char*>(pointer) - static_cast<char*>(m.host));
  return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned* flags, void* pointer) {
  SIM_ENTER(cuMemHostGetFlags, kContext);
  Mapping m;
  Memory* memory = nullptr;
  if (flags == nullptr || !find_host(call.process, pointer, &m, &memory) || (m.host_flags & 0x10000) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = m.host_flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult sim_cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  SIM_ENTER(cuPointerGetAttribute, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(call.process, attribute, out, pointer);
}

CUresult sim_cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr pointer) {
  SIM_ENTER(cuPointerGetAttributes, kDriver);
  if (attributes == nullptr || out == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (out[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (pointer_attribute(call.process, attributes[i], out[i], pointer) != CUDA_SUCCESS)
      clear_attribute(attributes[i], out[i]);
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  SIM_ENTER(cuPointerSetAttribute, kDriver);
  Mapping m;
  if (value == nullptr || memory_of(call.process, pointer, &m) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}
