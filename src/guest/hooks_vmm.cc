// Physical memory with handles and mappings. It stays on the card until every handle is released *and* every mapping is
// gone: un-charging at cuMemRelease would let a program create, map, release and start again until the card is full.
// Only memory located on a device is charged; host locations are system memory. Handles imported from another process
// are charged where they were created, and claimed here (share.h).
#include "guest/booking.h"
#include "guest/hooks.h"
#include "guest/share.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kHugeBytes = 1ull << 60;

// What is left to be undone when nothing keeps the memory any more.
struct Freed {
  uint64_t bytes = 0;
  uint32_t card = 0;
  uint64_t exports = 0;
  uint64_t claim = 0;
};

// Under memory.lock. Takes the record apart when nothing keeps it; nothing to undo when it lives on.
Freed drop_if_dead(Guest* guest, Physical* physical) {
  if (physical->handles != 0 || physical->mappings != 0) return {};
  const Freed freed = {physical->bytes, physical->card, share_take(guest, reinterpret_cast<uint64_t>(physical)),
                       physical->claim};
  guest->memory.physical_pool.give(physical);
  return freed;
}

void settle(Guest* guest, const Freed& freed) {
  share_drop(guest, freed.exports);
  drop_claim(guest, Claim{freed.claim, freed.card});
  give_back_memory(guest, freed.card, freed.bytes);
}

// Key of one mapped part of an array, as good as unique: the fields that name it, mixed.
uint64_t part_key(const CUarrayMapInfo& info) {
  uint64_t key = mix64(reinterpret_cast<uint64_t>(info.resource.array) ^ 0x9e3779b97f4a7c15ull);
  const auto add = [&key](uint64_t value) { key = mix64(key ^ (value + 0x9e3779b97f4a7c15ull)); };
  add(static_cast<uint64_t>(info.subresourceType));
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    add(info.subresource.miptail.layer);
    add(info.subresource.miptail.offset);
  } else {
    add(info.subresource.sparseLevel.level);
    add(info.subresource.sparseLevel.layer);
    add(info.subresource.sparseLevel.offsetX);
    add(info.subresource.sparseLevel.offsetY);
    add(info.subresource.sparseLevel.offsetZ);
  }
  return key | 1ull;  // device addresses of mappings are even
}

void add_mapping(Guest* guest, uint64_t key, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  Physical** physical = guest->memory.physical.find(handle);
  if (physical == nullptr) return;
  if (guest->memory.mappings.insert(key, Mapping{*physical, bytes}) != nullptr) ++(*physical)->mappings;
}

// Bytes covered by the mapping that was removed, 0 when there is none at the key.
uint64_t remove_mapping(Guest* guest, uint64_t key) {
  Freed freed;
  Mapping mapping = {};
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (!guest->memory.mappings.erase(key, &mapping)) return 0;
    --mapping.physical->mappings;
    freed = drop_if_dead(guest, mapping.physical);
  }
  settle(guest, freed);
  return mapping.bytes;
}

void map_array_parts(Guest* guest, const CUarrayMapInfo* list, unsigned int count) {
  for (unsigned int i = 0; i < count; ++i) {
    const CUarrayMapInfo& info = list[i];
    const uint64_t key = part_key(info);
    remove_mapping(guest, key);
    if (info.memOperationType == CU_MEM_OPERATION_TYPE_MAP) add_mapping(guest, key, 1, info.memHandle.memHandle);
  }
}

}  // namespace
}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                          unsigned long long flags) {
  Guest* guest = enter();
  auto call = [&] { return guest->cuda.cuMemCreate(handle, bytes, properties, flags); };
  if (handle == nullptr || properties == nullptr || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return call();
  }
  const uint32_t card = card_of_device(guest, properties->location.id);
  if (!booked(guest, card) || bytes == 0) return call();
  if (bytes > kHugeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t charge = round_up(bytes, kBlockBytes);
  if (CUresult refused = reserve_memory(guest, card, charge)) return refused;
  CUresult result;
  {
    Operation operation(guest, card);
    result = retry_while_full(guest, call);
    guest->points.at(kAfterDriver);
  }
  if (result != CUDA_SUCCESS) {
    give_back_memory(guest, card, charge);
    return result;
  }
  bool kept = false;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    Physical* physical = guest->memory.physical_pool.take();
    if (physical != nullptr) {
      *physical = Physical{charge, card, 1, 0, 0};
      kept = guest->memory.physical.insert(*handle, physical) != nullptr;
      if (!kept) guest->memory.physical_pool.give(physical);
    }
  }
  guest->points.at(kBooked);
  if (kept) return CUDA_SUCCESS;
  guest->cuda.cuMemRelease(*handle);
  give_back_memory(guest, card, charge);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
  Guest* guest = enter();
  Physical* physical = nullptr;
  bool last_handle = false;
  {
    // Out of the book before the driver may give the same handle value to another thread.
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    Physical** found = guest->memory.physical.find(handle);
    if (found != nullptr) {
      physical = *found;
      last_handle = physical->handles == 1;
      if (last_handle) guest->memory.physical.erase(handle);
    }
  }
  if (physical == nullptr) return guest->cuda.cuMemRelease(handle);
  const uint32_t card = physical->card;
  CUresult result;
  {
    Operation operation(guest, card);
    guest->points.at(kBeforeDriverFree);
    result = guest->cuda.cuMemRelease(handle);
    guest->points.at(kAfterDriverFree);
  }
  Freed freed;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (result == CUDA_SUCCESS) {
      --physical->handles;
      freed = drop_if_dead(guest, physical);
    } else if (last_handle) {
      guest->memory.physical.insert(handle, physical);
    }
  }
  settle(guest, freed);
  return result;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemRetainAllocationHandle(handle, address);
  if (result != CUDA_SUCCESS || handle == nullptr) return result;
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  Mapping* mapping = guest->memory.mappings.find(reinterpret_cast<uint64_t>(address));
  Physical** known = guest->memory.physical.find(*handle);
  if (known != nullptr) {
    ++(*known)->handles;
  } else if (mapping != nullptr && guest->memory.physical.insert(*handle, mapping->physical) != nullptr) {
    ++mapping->physical->handles;  // another value for the same memory
  }
  return result;
}

CUresult hook_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags) {
  Guest* guest = enter();
  Claim claim;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (Physical** found = guest->memory.physical.find(handle)) claim = Claim{(*found)->claim, (*found)->card};
  }
  if (CUresult refused = raise_claim(guest, claim, offset + bytes)) return refused;
  const CUresult result = guest->cuda.cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) add_mapping(guest, address, bytes, handle);
  return result;
}

CUresult hook_cuMemUnmap(CUdeviceptr address, size_t bytes) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemUnmap(address, bytes);
  if (result != CUDA_SUCCESS) return result;
  // The range may hold several whole mappings; parts that were not charged are passed over block by block.
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t covered = remove_mapping(guest, at);
    at += covered != 0 ? covered : kBlockBytes;
  }
  return result;
}

CUresult hook_cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemMapArrayAsync(list, count, stream);
  if (result == CUDA_SUCCESS && list != nullptr) map_array_parts(guest, list, count);
  return result;
}

CUresult hook_cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemMapArrayAsync_ptsz(list, count, stream);
  if (result == CUDA_SUCCESS && list != nullptr) map_array_parts(guest, list, count);
  return result;
}

}  // extern "C"
