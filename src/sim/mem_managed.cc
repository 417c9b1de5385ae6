// Managed memory is host memory of the process that the card may read too, so contents need no movement. Of the card's
// memory it takes its full size, as far as there is room: more than that is allowed and stays on the host, as with the
// real driver's oversubscription.

#include <sys/mman.h>

#include <algorithm>

#include "sim/mem_state.h"

namespace sluice::sim {
namespace {

// What a managed allocation carries beside its mapping: advice and where it was last sent.
struct Advice {
  bool read_mostly = false;
  CUmemLocation preferred{CU_MEM_LOCATION_TYPE_INVALID, {CU_DEVICE_INVALID}};
  CUmemLocation accessed_by{CU_MEM_LOCATION_TYPE_INVALID, {CU_DEVICE_INVALID}};
  CUmemLocation prefetched{CU_MEM_LOCATION_TYPE_INVALID, {CU_DEVICE_INVALID}};
};

std::map<uint64_t, Advice>& advice_of(Process& process) {
  MemoryState& state = memory_state(process);
  if (state.advice == nullptr) state.advice = std::make_shared<std::map<uint64_t, Advice>>();
  return *static_cast<std::map<uint64_t, Advice>*>(state.advice.get());
}

// The managed allocation that holds the whole range.
bool find_managed(Call& call, CUdeviceptr address, size_t bytes, Mapping* mapping) {
  return memory_of(call.process, address, mapping) != nullptr && mapping->managed &&
         address + bytes <= mapping->address + mapping->bytes;
}

CUmemLocation location_of_device(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

bool valid(Call& call, const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return call.process.device(location.id) != nullptr;
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

int device_number(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CU_DEVICE_INVALID;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

CUresult range_attribute(Call& call, void* data, size_t size, CUmem_range_attribute attribute, const Mapping& mapping) {
  const Advice& advice = advice_of(call.process)[mapping.address];
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = advice.read_mostly;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      value = device_number(advice.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
      value = device_number(advice.accessed_by);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      value = device_number(advice.prefetched);
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (size < sizeof value || size % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  int* out = static_cast<int*>(data);
  std::fill(out, out + size / sizeof value, static_cast<int>(CU_DEVICE_INVALID));
  out[0] = value;
  return CUDA_SUCCESS;
}

CUresult prefetch(Call& call, CUdeviceptr address, size_t bytes, const CUmemLocation& location, CUstream handle) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  Mapping mapping;
  if (bytes == 0 || !valid(call, location) || !find_managed(call, address, bytes, &mapping)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  {
    const MemoryLock lock(call.process);
    advice_of(call.process)[mapping.address].prefetched = location;
  }
  const bool to_card = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  Card& card = *call.process.device(stream->context->card)->card;
  const ProfileData& profile = card.profile();
  const int64_t knob = card.knob(to_card ? Knob::h2d_bytes_per_us : Knob::d2h_bytes_per_us);
  const int64_t speed = knob > 0 ? knob : to_card ? profile.h2d_bytes_per_us : profile.d2h_bytes_per_us;
  Submission what;
  what.kind = to_card ? CommandKind::kCopyToDevice : CommandKind::kCopyToHost;
  what.duration_ns =
      card.knob_ns(Knob::copy_base_ns) + bytes * 1000 / static_cast<uint64_t>(std::max<int64_t>(speed, 1));
  return enqueue(call, *stream, what, Charge::kCopy);
}

CUresult advise(Call& call, CUdeviceptr address, size_t bytes, CUmem_advise what, const CUmemLocation& location) {
  Mapping mapping;
  if (!find_managed(call, address, bytes, &mapping)) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  Advice& advice = advice_of(call.process)[mapping.address];
  const CUmemLocation none{CU_MEM_LOCATION_TYPE_INVALID, {CU_DEVICE_INVALID}};
  switch (what) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      advice.read_mostly = true;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      advice.read_mostly = false;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      advice.preferred = none;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      advice.accessed_by = none;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      if (!valid(call, location)) return CUDA_ERROR_INVALID_DEVICE;
      (what == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? advice.preferred : advice.accessed_by) = location;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult free_managed(Process& process, const Mapping& mapping) {
  const MemoryLock lock(process);
  Device& device = *process.device(mapping.card);
  if (!device.memory->unmap(mapping.address, mapping.bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (mapping.block != kNone) {
    Card& card = *device.card;
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    card.release_block(mapping.block);
  }
  munmap(mapping.host, mapping.bytes);
  advice_of(process).erase(mapping.address);
  return CUDA_SUCCESS;
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  SIM_ENTER(cuMemAllocManaged, kContext | kNoCapture, Charge::kAllocate);
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.address = mapping.allocation = reinterpret_cast<uint64_t>(at);
  mapping.bytes = mapping.allocation_bytes = bytes;
  mapping.host = at;
  mapping.managed = true;
  mapping.context = reinterpret_cast<CUcontext>(call.context);
  Card& card = call.card();
  {
    Card::Guard guard(card);
    advance(card, card.card_time(call.host().now_ns()));
    mapping.block = card.allocate_block(call.device().record, call.context->record, bytes, BlockKind::kManaged);
  }
  if (!call.device().memory->map(mapping)) {
    munmap(at, bytes);
    return CUDA_ERROR_UNKNOWN;
  }
  *address = mapping.address;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  SIM_ENTER(cuMemPrefetchAsync, kContext);
  return prefetch(call, address, bytes, location_of_device(device), stream);
}

CUresult sim_cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                                   CUstream stream) {
  SIM_ENTER(cuMemPrefetchAsync_v2, kContext);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return prefetch(call, address, bytes, location, stream);
}

CUresult sim_cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  SIM_ENTER(cuMemAdvise, kContext);
  return advise(call, address, bytes, advice, location_of_device(device));
}

CUresult sim_cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  SIM_ENTER(cuMemAdvise_v2, kContext);
  return advise(call, address, bytes, advice, location);
}

CUresult sim_cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address,
                                    size_t bytes) {
  SIM_ENTER(cuMemRangeGetAttribute, kContext);
  Mapping mapping;
  if (data == nullptr || !find_managed(call, address, bytes, &mapping)) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  return range_attribute(call, data, size, attribute, mapping);
}

CUresult sim_cuMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                     CUdeviceptr address, size_t bytes) {
  SIM_ENTER(cuMemRangeGetAttributes, kContext);
  Mapping mapping;
  if (data == nullptr || sizes == nullptr || attributes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!find_managed(call, address, bytes, &mapping)) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = range_attribute(call, data[i], sizes[i], attributes[i], mapping);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t, unsigned flags) {
  SIM_ENTER(cuStreamAttachMemAsync, kContext);
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  Mapping mapping;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return find_managed(call, address, 1, &mapping) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
