// Virtual memory management: physical memory by handle, addresses, and mappings between them, each with a life of its
// own. Memory is the card's until the last handle and the last mapping are gone; releasing the handle of mapped memory
// frees nothing.

#include <sys/mman.h>

#include <algorithm>

#include "sim/mem_state.h"

namespace sluice::sim {
namespace {

std::shared_ptr<Physical> find_handle(Call& call, CUmemGenericAllocationHandle handle) {
  const auto& handles = memory_state(call.process).handles;
  const auto at = handles.find(handle);
  return at != handles.end() ? at->second : nullptr;
}

CUmemGenericAllocationHandle add_handle(Call& call, std::shared_ptr<Physical> memory) {
  MemoryState& state = memory_state(call.process);
  const CUmemGenericAllocationHandle handle = state.next_handle++;
  state.handles[handle] = std::move(memory);
  return handle;
}

bool on_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult check_properties(Call& call, const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((static_cast<unsigned>(properties.requestedHandleTypes) & ~known) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (on_host(properties.location.type)) return CUDA_SUCCESS;
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return call.process.device(properties.location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

std::shared_ptr<Physical> make_host_memory(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto memory = std::make_shared<Physical>();
  memory->host = at;
  memory->bytes = bytes;
  return memory;
}

// The mappings of physical memory that lie within [address, address + bytes), without gaps; empty when there are gaps.
std::vector<std::pair<uint64_t, uint64_t>> mapped_within(Call& call, CUdeviceptr address, size_t bytes) {
  MemoryState& state = memory_state(call.process);
  std::vector<std::pair<uint64_t, uint64_t>> found;
  uint64_t at = address;
  while (at < address + bytes) {
    Mapping mapping;
    if (state.mapped.count(at) == 0 || memory_of(call.process, at, &mapping) == nullptr || mapping.address != at) {
      return {};
    }
    found.emplace_back(at, mapping.bytes);
    at += mapping.bytes;
  }
  return at == address + bytes ? found : std::vector<std::pair<uint64_t, uint64_t>>{};
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                           CUmemAllocationGranularity_flags) {
  SIM_ENTER(cuMemGetAllocationGranularity, kDriver);
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_properties(call, *properties); result != CUDA_SUCCESS) return result;
  *granularity = kMemBlock;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags) {
  SIM_ENTER(cuMemCreate, kDriver, Charge::kAllocate);
  if (out == nullptr || properties == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 || bytes % kMemBlock != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_properties(call, *properties); result != CUDA_SUCCESS) return result;
  const bool host = on_host(properties->location.type);
  const MemoryLock lock(call.process);
  auto memory =
      host ? make_host_memory(bytes) : make_physical(call.process, properties->location.id, bytes, BlockKind::kVmm);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->properties = *properties;
  *out = add_handle(call, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemRelease, kDriver);
  const MemoryLock lock(call.process);
  const auto memory = find_handle(call, handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--memory->handles == 0) {
    memory_state(call.process).handles.erase(handle);
    drop_physical(call.process, *memory);
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                 unsigned long long flags) {
  SIM_ENTER(cuMemAddressReserve, kDriver);
  if (out == nullptr || flags != 0 || bytes == 0 || bytes % kMemBlock != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  const int card = call.thread.stack.empty() ? 0 : call.thread.stack.back()->card;
  const uint64_t address =
      call.process.device(card)->memory->reserve(bytes, std::max<uint64_t>(alignment, kMemBlock), wanted);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  memory_state(call.process).reservations[address] = {card, bytes};
  *out = address;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  SIM_ENTER(cuMemAddressFree, kDriver);
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  const auto at = state.reservations.find(address);
  if (at == state.reservations.end() || at->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = state.mapped.lower_bound(address);
  if (mapped != state.mapped.end() && mapped->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  call.process.device(at->second.card)->memory->unreserve(address, bytes);
  state.reservations.erase(at);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
  SIM_ENTER(cuMemMap, kDriver);
  if (flags != 0 || bytes == 0 || bytes % kMemBlock != 0 || address % kMemBlock != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  const auto memory = find_handle(call, handle);
  if (memory == nullptr || offset % kMemBlock != 0 || offset + bytes > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
  auto reservation = state.reservations.upper_bound(address);
  if (reservation == state.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reservation;
  if (address + bytes > reservation->first + reservation->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!map_physical(call.process, *memory, address, bytes, offset, nullptr, false)) return CUDA_ERROR_INVALID_VALUE;
  memory->mappings += 1;
  state.mapped[address] = memory;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemUnmap(CUdeviceptr address, size_t bytes) {
  SIM_ENTER(cuMemUnmap, kDriver);
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  const auto within = mapped_within(call, address, bytes);
  if (within.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [start, length] : within) {
    const auto memory = state.mapped.at(start);
    call.process.device(memory->card)->memory->unmap(start, length);
    state.mapped.erase(start);
    memory->mappings -= 1;
    drop_physical(call.process, *memory);
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptors, size_t count) {
  SIM_ENTER(cuMemSetAccess, kDriver);
  if (descriptors == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  const auto within = mapped_within(call, address, bytes);
  if (within.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = descriptors[i].location;
    const bool device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && call.process.device(location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (!device && !on_host(location.type)) return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemAccess_flags flags = descriptors[0].flags;
  for (const auto& [start, length] : within) {
    Mapping mapping;
    Memory* memory = memory_of(call.process, start, &mapping);
    memory->unmap(start, length);
    mapping.readable = flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    mapping.writable = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    memory->map(mapping);
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  SIM_ENTER(cuMemGetAccess, kDriver);
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Mapping mapping;
  if (memory_of(call.process, address, &mapping) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = mapping.writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : mapping.readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                              : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  SIM_ENTER(cuMemRetainAllocationHandle, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  Mapping mapping;
  if (memory_of(call.process, reinterpret_cast<uint64_t>(address), &mapping) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const auto at = state.mapped.find(mapping.address);
  if (at == state.mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto memory = at->second;
  memory->handles += 1;
  for (const auto& [handle, known] : state.handles) {
    if (known == memory) return *out = handle, CUDA_SUCCESS;
  }
  *out = add_handle(call, memory);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                    CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemGetAllocationPropertiesFromHandle, kDriver);
  const MemoryLock lock(call.process);
  const auto memory = find_handle(call, handle);
  if (memory == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type, unsigned long long flags) {
  SIM_ENTER(cuMemExportToShareableHandle, kDriver);
  const MemoryLock lock(call.process);
  const auto memory = find_handle(call, handle);
  if (memory == nullptr || out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || memory->host != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if ((memory->properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryTicket ticket = make_ticket(call.process, memory->card, memory->block, memory->owner_serial,
                                          memory->contents_offset, memory->bytes);
  const int fd = export_descriptor(ticket, memory->properties);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* handle,
                                            CUmemAllocationHandleType type) {
  SIM_ENTER(cuMemImportFromShareableHandle, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  MemoryTicket ticket;
  CUmemAllocationProp properties;
  if (!read_descriptor(static_cast<int>(reinterpret_cast<intptr_t>(handle)), &ticket, &properties)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MemoryLock lock(call.process);
  auto memory = redeem_ticket(call.process, ticket);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memory->properties = properties;
  memory->properties.location.id = memory->card;
  *out = add_handle(call, std::move(memory));
  return CUDA_SUCCESS;
}

}  // extern "C"
