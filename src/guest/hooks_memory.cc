// Linear memory: plain, pitched and managed allocations, and their frees.
//
// The driver puts requests under a block's size together into 2 MiB blocks, so the charge follows the blocks: a small
// allocation reserves a whole block, and gives it back when its address turns out to lie in one that is already
// counted. Managed memory is charged in full: its pages may all be on the card at once.
#include "guest/booking.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kHugeBytes = 1ull << 60;  // beyond any card; keeps the arithmetic below from wrapping

uint64_t charge_for(uint64_t bytes) {
  return bytes < kBlockBytes ? kBlockBytes : round_up(bytes, kBlockBytes);
}

// Books an allocation of `bytes` at `address`, for which `reserved` was charged. False: the book is full.
bool book(Guest* guest, uint32_t card, uint64_t address, uint64_t bytes, uint64_t reserved, bool managed) {
  Memory& memory = guest->memory;
  const bool small = bytes < kBlockBytes;
  const CUcontext context = current_context(guest);
  bool block_known = false;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    const Allocation entry = {small ? bytes : reserved, card, small ? 1u : 0u, managed ? 1u : 0u, context, 0};
    if (memory.allocations.insert(address, entry) == nullptr) return false;
    if (small) {
      uint32_t* count = memory.small_blocks.insert(address / kBlockBytes, 0);
      if (count == nullptr) {
        memory.allocations.erase(address);
        return false;
      }
      block_known = (*count)++ != 0;
    }
  }
  if (managed) memory.cards[card].managed_bytes.fetch_add(block_known ? 0 : reserved, std::memory_order_relaxed);
  if (block_known) give_back_memory(guest, card, reserved);
  guest->points.at(kBooked);
  return true;
}

// call(): the real allocation, whose address `address()` tells after it. Releases with the real free when it cannot be
// booked.
template <typename Call, typename Address>
CUresult allocate(Guest* guest, uint64_t bytes, bool managed, Call&& call, Address&& address) {
  const uint32_t card = current_card(guest);
  if (!booked(guest, card) || bytes == 0) return call();
  if (bytes > kHugeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t charge = charge_for(bytes);
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
  if (!book(guest, card, address(), bytes, charge, managed)) {
    guest->cuda.cuMemFree_v2(address());
    give_back_memory(guest, card, charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

template <typename Call, typename Size, typename Pitch, typename Address>
CUresult allocate_pitch(Guest* guest, Size width, Size height, Pitch&& pitch, Call&& call, Address&& address) {
  const uint32_t card = current_card(guest);
  if (!booked(guest, card)) return call();
  // The pitch is the driver's choice; no card in use has asked for more than 512 bytes of alignment.
  uint64_t expected = 0;
  if (__builtin_mul_overflow(round_up(width, 512), static_cast<uint64_t>(height), &expected) || expected > kHugeBytes ||
      width > kHugeBytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (expected == 0) return call();
  uint64_t charge = charge_for(expected);
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
  const uint64_t bytes = static_cast<uint64_t>(pitch()) * height;
  bool kept = true;
  if (charge_for(bytes) > charge) {
    kept = reserve_memory(guest, card, charge_for(bytes) - charge) == CUDA_SUCCESS;
    if (kept) charge = charge_for(bytes);
  } else {
    adjust_memory(guest, card, charge, charge_for(bytes));
    charge = charge_for(bytes);
  }
  if (!kept || !book(guest, card, address(), bytes, charge, false)) {
    guest->cuda.cuMemFree_v2(address());
    give_back_memory(guest, card, charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Guest* guest = enter();
  if (address == nullptr) return guest->cuda.cuMemAlloc_v2(address, bytes);
  return allocate(
      guest, bytes, false, [&] { return guest->cuda.cuMemAlloc_v2(address, bytes); }, [&] { return *address; });
}

CUresult hook_cuMemAlloc(CUdeviceptr_v1* address, unsigned int bytes) {
  Guest* guest = enter();
  if (address == nullptr) return guest->cuda.cuMemAlloc(address, bytes);
  return allocate(
      guest, bytes, false, [&] { return guest->cuda.cuMemAlloc(address, bytes); },
      [&] { return static_cast<CUdeviceptr>(*address); });
}

CUresult hook_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  Guest* guest = enter();
  if (address == nullptr) return guest->cuda.cuMemAllocManaged(address, bytes, flags);
  return allocate(
      guest, bytes, true, [&] { return guest->cuda.cuMemAllocManaged(address, bytes, flags); },
      [&] { return *address; });
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                 unsigned int element) {
  Guest* guest = enter();
  auto call = [&] { return guest->cuda.cuMemAllocPitch_v2(address, pitch, width, height, element); };
  if (address == nullptr || pitch == nullptr) return call();
  return allocate_pitch(guest, width, height, [&] { return *pitch; }, call, [&] { return *address; });
}

CUresult hook_cuMemAllocPitch(CUdeviceptr_v1* address, unsigned int* pitch, unsigned int width, unsigned int height,
                              unsigned int element) {
  Guest* guest = enter();
  auto call = [&] { return guest->cuda.cuMemAllocPitch(address, pitch, width, height, element); };
  if (address == nullptr || pitch == nullptr) return call();
  return allocate_pitch(
      guest, width, height, [&] { return *pitch; }, call, [&] { return static_cast<CUdeviceptr>(*address); });
}

CUresult hook_cuMemFree_v2(CUdeviceptr address) {
  Guest* guest = enter();
  return free_linear(guest, address, [&] { return guest->cuda.cuMemFree_v2(address); });
}

CUresult hook_cuMemFree(CUdeviceptr_v1 address) {
  Guest* guest = enter();
  return free_linear(guest, address, [&] { return guest->cuda.cuMemFree(address); });
}

}  // extern "C"
