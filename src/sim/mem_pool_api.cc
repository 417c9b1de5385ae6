// cuMemAllocAsync and the calls about pools.
//
// Memory of a pool is there from the moment of the call; "in stream order" concerns only when a freed piece may serve
// somebody else. On a capturing stream an allocation becomes a node of the graph instead (graph_memory in
// mem_graph.cc).

#include <algorithm>
#include <cstring>

#include "sim/mem_graph.h"
#include "sim/mem_pool.h"

namespace sluice::sim {
namespace {

Pool* find_pool(Call& call, CUmemoryPool handle) {
  return memory_state(call.process).pools.find(reinterpret_cast<void*>(handle));
}

CUmemoryPool handle_of(Pool* pool) {
  return reinterpret_cast<CUmemoryPool>(pool);
}

CUresult allocate_async(Call& call, CUdeviceptr* address, size_t bytes, Pool* pool, CUstream handle) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int card = stream->context->card;
  if (stream->capture != nullptr) {
    return capture_memory_alloc(call, *stream, pool != nullptr ? pool->card : card, bytes, address);
  }
  const MemoryLock lock(call.process);
  if (pool == nullptr) pool = current_pool(call.process, card);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;  // only its exporter allocates from it
  return pool_allocate(call.process, stream->context, *pool, bytes, stream->record, address);
}

bool valid_location(Call& call, const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 && location.id < call.process.device_count();
}

// Attributes that are 64-bit counters.
uint64_t* counter(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool.threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return &pool.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return &pool.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool.used_high;
    default:
      return nullptr;
  }
}

int* flag(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool.reuse_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool.reuse_opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool.reuse_internal;
    default:
      return nullptr;
  }
}

// What an importer needs of one allocation of an exported pool; lies in CUmemPoolPtrExportData.
struct PoolPointerTicket {
  MemoryTicket ticket;
};
static_assert(sizeof(PoolPointerTicket) <= sizeof(CUmemPoolPtrExportData));

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemAllocAsync, kContext, Charge::kAllocate);
  return allocate_async(call, address, bytes, nullptr, stream);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool handle, CUstream stream) {
  SIM_ENTER(cuMemAllocFromPoolAsync, kContext, Charge::kAllocate);
  Pool* pool = nullptr;
  {
    const MemoryLock lock(call.process);
    pool = find_pool(call, handle);
  }
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate_async(call, address, bytes, pool, stream);
}

CUresult sim_cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  SIM_ENTER(cuMemFreeAsync, kContext, Charge::kAllocate);
  if (address == 0) return CUDA_SUCCESS;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return capture_memory_free(call, *stream, address);
  {
    const MemoryLock lock(call.process);
    if (graph_free(call.process, address)) return CUDA_SUCCESS;
    if (Pool* pool = pool_of(call.process, address)) return pool_free(call.process, *pool, address, stream->record);
  }
  // Plain allocations may be freed in stream order too: after what the stream has to do before.
  if (const CUresult result = wait_stream(call, *stream); result != CUDA_SUCCESS) return result;
  Mapping mapping;
  Memory* memory = memory_of(call.process, address, &mapping);
  return memory != nullptr ? memory->free(address) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  SIM_ENTER(cuMemPoolCreate, kDriver, Charge::kCreate);
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
  if (!valid_location(call, properties->location)) return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((static_cast<unsigned>(properties->handleTypes) & ~known) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const MemoryLock lock(call.process);
  Pool* pool = memory_state(call.process).pools.make();
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->card = properties->location.id;
  pool->properties = *properties;
  pool->access[pool->card] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  *out = handle_of(pool);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool handle) {
  SIM_ENTER(cuMemPoolDestroy, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  destroy_pool(call.process, *pool);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  SIM_ENTER(cuMemPoolTrimTo, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  pool_trim(call.process, *pool, keep);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  SIM_ENTER(cuMemPoolGetAttribute, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const uint64_t* number = counter(*pool, attribute)) {
    *static_cast<cuuint64_t*>(value) = *number;
    return CUDA_SUCCESS;
  }
  if (const int* number = flag(*pool, attribute)) {
    *static_cast<int*>(value) = *number;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
      *static_cast<int*>(value) = pool->properties.allocType;
      break;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
      *static_cast<int*>(value) = pool->properties.handleTypes;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
      *static_cast<int*>(value) = pool->card;
      break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
      *static_cast<int*>(value) = CU_MEM_LOCATION_TYPE_DEVICE;
      break;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
      *static_cast<cuuint64_t*>(value) = pool->properties.maxSize;
      break;
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
      *static_cast<int*>(value) = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  SIM_ENTER(cuMemPoolSetAttribute, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* number = flag(*pool, attribute)) {
    *number = *static_cast<int*>(value);
    return CUDA_SUCCESS;
  }
  const uint64_t wanted = *static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold = wanted;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // high-water marks can only be set back
      if (wanted != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (wanted != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  SIM_ENTER(cuMemPoolSetAccess, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || (map == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!valid_location(call, map[i].location)) return CUDA_ERROR_INVALID_DEVICE;
    if (map[i].location.id == pool->card && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;  // its own card always has access
    }
  }
  for (size_t i = 0; i < count; ++i) pool->access[map[i].location.id] = map[i].flags;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  SIM_ENTER(cuMemPoolGetAccess, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto at = pool->access.find(location->id);
  *flags = at != pool->access.end() ? at->second : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  SIM_ENTER(cuDeviceGetDefaultMemPool, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  *out = handle_of(default_pool(call.process, device));
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  SIM_ENTER(cuDeviceGetMemPool, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  *out = handle_of(current_pool(call.process, device));
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  SIM_ENTER(cuDeviceSetMemPool, kDriver);
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || pool->card != device) return CUDA_ERROR_INVALID_VALUE;
  memory_state(call.process).current_pools[device] = pool;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return sim_cuDeviceGetDefaultMemPool(out, location->id);
}

CUresult sim_cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return sim_cuDeviceGetMemPool(out, location->id);
}

CUresult sim_cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return sim_cuDeviceSetMemPool(location->id, pool);
}

CUresult sim_cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  SIM_ENTER(cuMemPoolExportToShareableHandle, kDriver);
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (pool->properties.handleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The descriptor names the pool's card and owner; its allocations are exported one by one.
  CUmemAllocationProp properties{};
  properties.type = pool->properties.allocType;
  properties.location = pool->properties.location;
  const MemoryTicket ticket =
      make_ticket(call.process, pool->card, kNone, call.process.device(pool->card)->serial, 0, 0);
  const int fd = export_descriptor(ticket, properties);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type,
                                                unsigned long long flags) {
  SIM_ENTER(cuMemPoolImportFromShareableHandle, kDriver);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  MemoryTicket ticket;
  CUmemAllocationProp properties;
  if (!read_descriptor(static_cast<int>(reinterpret_cast<intptr_t>(handle)), &ticket, &properties)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const MemoryLock lock(call.process);
  for (int i = 0; i < call.process.device_count(); ++i) {
    const CardFile& file = call.process.device(i)->card->file();
    if (std::memcmp(file.uuid_bytes, ticket.uuid, sizeof ticket.uuid) != 0) continue;
    Pool* pool = memory_state(call.process).pools.make();
    if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->card = i;
    pool->imported = true;
    pool->properties.allocType = properties.type;
    pool->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {i}};
    pool->access[i] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    *out = handle_of(pool);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  SIM_ENTER(cuMemPoolExportPointer, kDriver);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  Pool* pool = pool_of(call.process, address);
  if (pool == nullptr || pool->properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  const auto chunk = std::prev(pool->chunks.upper_bound(address));
  const Physical& memory = *chunk->second.memory;
  const MemoryTicket ticket =
      make_ticket(call.process, pool->card, memory.block, memory.owner_serial,
                  memory.contents_offset + (address - chunk->first), pool->live.at(address).bytes);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle, CUmemPoolPtrExportData* data) {
  SIM_ENTER(cuMemPoolImportPointer, kDriver);
  if (out == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  Pool* pool = find_pool(call, handle);
  if (pool == nullptr || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  MemoryTicket ticket;
  std::memcpy(&ticket, data, sizeof ticket);
  auto memory = redeem_ticket(call.process, ticket);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = round_up_to(memory->bytes, kMemBlock);
  const uint64_t address = call.process.device(pool->card)->memory->reserve(size, kMemBlock, 0);
  if (address == 0 || !map_physical(call.process, *memory, address, memory->bytes, 0, nullptr, true)) {
    memory->handles = 0;
    drop_physical(call.process, *memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pool->live[address] = {memory->bytes, memory->bytes};
  pool->chunks[address] = {memory, size, memory->bytes};
  *out = address;
  return CUDA_SUCCESS;
}

}  // extern "C"
