// Stream-ordered allocations. What costs the card is a pool's reserved memory, not the requests: a pool hands freed
// memory out again without asking the card, and keeps it up to its release threshold. So the charge of a pool is its
// CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, and an allocation is refused only when it would make that grow past the limit.
// On a capturing stream an allocation only adds a node to a graph: hooks_graph_memory.cc charges it later.
#include "guest/booking.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kHugeBytes = 1ull << 60;
constexpr uint64_t kPoolChunkBytes = 32ull << 20;  // pools grow by multiples of it where the card has room
constexpr uint32_t kPoolsAtOnce = 128;  // pools refreshed per call; a program with more is corrected through NVML

uint64_t pool_attribute(Guest* guest, CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  return guest->cuda.cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

uint64_t pool_key(CUmemoryPool pool) {
  return reinterpret_cast<uint64_t>(pool);
}

// Reads the pool and moves its charge there. `credit` bytes were reserved for the growth beforehand.
void settle_pool(Guest* guest, CUmemoryPool pool, uint32_t card, uint64_t credit) {
  const uint64_t reserved = pool_attribute(guest, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  uint64_t charged = credit;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    PoolCharge* entry = guest->memory.pools.insert(pool_key(pool), PoolCharge{0, card});
    if (entry != nullptr) {
      charged += entry->charged_bytes;
      entry->charged_bytes = reserved;
    }
  }
  adjust_memory(guest, card, charged, reserved);
}

// Card whose memory a pool takes; kNoCard: none that is charged (host memory, imported, not in the grant).
uint32_t card_of_pool(Guest* guest, CUmemoryPool pool) {
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (PoolCharge* entry = guest->memory.pools.find(pool_key(pool))) return entry->card;
  }
  // Not made through us: some device's default pool.
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    CUmemoryPool of_device = nullptr;
    if (guest->cards[card].device < 0) continue;
    if (guest->cuda.cuDeviceGetDefaultMemPool(&of_device, guest->cards[card].device) == CUDA_SUCCESS &&
        of_device == pool) {
      return card;
    }
  }
  return current_card(guest);
}

// Held across the driver's call, unlike other locks: the cost of an allocation is a difference of two readings.
class PoolTurn {
 public:
  explicit PoolTurn(Guest* guest) : guest_(guest) {
    for (uint32_t round = 0; !guest->memory.pool_lock.try_lock(); ++round) {
      if (round < 64) {
        guest->seams.waiter->spin_pause();
      } else {
        guest->seams.waiter->sleep_ns(10'000);
      }
    }
  }
  ~PoolTurn() { guest_->memory.pool_lock.unlock(); }
  PoolTurn(const PoolTurn&) = delete;
  PoolTurn& operator=(const PoolTurn&) = delete;

 private:
  Guest* guest_;
};

uint64_t cached_bytes(Guest* guest, CUmemoryPool pool) {
  const uint64_t reserved = pool_attribute(guest, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  const uint64_t used = pool_attribute(guest, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  return reserved > used ? reserved - used : 0;
}

// By how much the pool may grow for an allocation: to be reserved beforehand. Nothing where enough is cached; should
// the pool grow all the same, because that is in pieces that are too small, the growth is reserved afterwards. Near the
// limit it would stand on the card above the limit for a moment: there the pool first gives back as much of its cache.
uint64_t likely_growth(Guest* guest, uint32_t card, CUmemoryPool pool, uint64_t bytes) {
  const uint64_t cached = cached_bytes(guest, pool);
  const uint64_t most = round_up(bytes, kPoolChunkBytes);
  const uint64_t free_bytes = ledger_of(guest, card).view().free_bytes;
  if (cached < bytes) return free_bytes >= most ? most : round_up(bytes, kBlockBytes);
  if (free_bytes >= most) return 0;
  const uint64_t reserved = pool_attribute(guest, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  const uint64_t missing = most - free_bytes;
  guest->cuda.cuMemPoolTrimTo(pool, missing < reserved ? reserved - missing : 0);
  settle_pool(guest, pool, card, 0);
  return cached_bytes(guest, pool) >= bytes ? 0 : most;
}

template <typename Call, typename Undo>
CUresult try_pool(Guest* guest, uint32_t card, CUmemoryPool pool, uint64_t bytes, Call& call, Undo& undo) {
  settle_pool(guest, pool, card, 0);
  const uint64_t growth = likely_growth(guest, card, pool, bytes);
  if (growth != 0) {
    if (CUresult refused = reserve_memory(guest, card, growth)) return refused;
  }
  CUresult result;
  {
    Operation operation(guest, card);
    result = retry_while_full(guest, call);
    guest->points.at(kAfterDriver);
  }
  const uint64_t reserved = pool_attribute(guest, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  uint64_t charged = growth;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (PoolCharge* entry = guest->memory.pools.find(pool_key(pool))) charged += entry->charged_bytes;
  }
  if (result == CUDA_SUCCESS && reserved > charged) {
    const uint64_t extra = reserved - charged;
    if (reserve_memory(guest, card, extra) != CUDA_SUCCESS) {
      undo();
      guest->cuda.cuMemPoolTrimTo(pool, 0);
      settle_pool(guest, pool, card, growth);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    settle_pool(guest, pool, card, growth + extra);
  } else {
    settle_pool(guest, pool, card, growth);
  }
  guest->points.at(kBooked);
  return result;
}

// What the pool caches is charged, and may be what is missing: cached in pieces that are too small it would have every
// larger request refused, for as long as a program keeps the release threshold high. It is given back once, then asked
// again.
template <typename Call, typename Undo>
CUresult allocate_from_pool(Guest* guest, uint32_t card, CUmemoryPool pool, uint64_t bytes, Call&& call, Undo&& undo) {
  if (bytes > kHugeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  PoolTurn turn(guest);
  const CUresult result = try_pool(guest, card, pool, bytes, call, undo);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  guest->cuda.cuMemPoolTrimTo(pool, 0);
  settle_pool(guest, pool, card, 0);
  return try_pool(guest, card, pool, bytes, call, undo);
}

bool capturing(CUresult result, CUstreamCaptureStatus status) {
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

template <typename IsCapturing, typename Call, typename Undo>
CUresult allocate_async(Guest* guest, CUdeviceptr* address, size_t bytes, CUstream stream, IsCapturing is_capturing,
                        Call&& call, Undo&& undo) {
  const uint32_t card = current_card(guest);
  if (address == nullptr || bytes == 0 || !booked(guest, card)) return call();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = is_capturing(stream, &status);
  if (capturing(asked, status)) return call();
  CUmemoryPool pool = nullptr;
  if (guest->cuda.cuDeviceGetMemPool(&pool, guest->cards[card].device) != CUDA_SUCCESS) return call();
  const uint32_t pool_card = card_of_pool(guest, pool);
  if (!booked(guest, pool_card)) return call();
  return allocate_from_pool(guest, pool_card, pool, bytes, call, undo);
}

template <typename IsCapturing, typename Call, typename Undo>
CUresult allocate_given_pool(Guest* guest, CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream,
                             IsCapturing is_capturing, Call&& call, Undo&& undo) {
  if (address == nullptr || bytes == 0 || pool == nullptr) return call();
  const uint32_t card = card_of_pool(guest, pool);
  if (!booked(guest, card)) return call();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = is_capturing(stream, &status);
  if (capturing(asked, status)) return call();
  return allocate_from_pool(guest, card, pool, bytes, call, undo);
}

}  // namespace

void refresh_pools(Guest* guest, uint32_t card) {
  CUmemoryPool pools[kPoolsAtOnce];
  uint32_t count = 0;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    guest->memory.pools.for_each([&](uint64_t key, const PoolCharge& entry) {
      if (entry.card == card && entry.charged_bytes != 0 && count < kPoolsAtOnce) {
        pools[count++] = reinterpret_cast<CUmemoryPool>(key);
      }
    });
  }
  for (uint32_t i = 0; i < count; ++i) {
    // Only ever down: growth belongs to the allocation that is causing it right now.
    const uint64_t reserved = pool_attribute(guest, pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t shrunk = 0;
    {
      SpinGuard guard(guest->memory.lock, guest->seams.waiter);
      PoolCharge* entry = guest->memory.pools.find(pool_key(pools[i]));
      if (entry != nullptr && entry->charged_bytes > reserved) {
        shrunk = entry->charged_bytes - reserved;
        entry->charged_bytes = reserved;
      }
    }
    give_back_memory(guest, card, shrunk);
  }
  refresh_graph_memory(guest, card);
}

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  Guest* guest = enter();
  return allocate_async(
      guest, address, bytes, stream, guest->cuda.cuStreamIsCapturing,
      [&] { return guest->cuda.cuMemAllocAsync(address, bytes, stream); },
      [&] { guest->cuda.cuMemFreeAsync(*address, stream); });
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  Guest* guest = enter();
  return allocate_async(
      guest, address, bytes, stream, guest->cuda.cuStreamIsCapturing_ptsz,
      [&] { return guest->cuda.cuMemAllocAsync_ptsz(address, bytes, stream); },
      [&] { guest->cuda.cuMemFreeAsync_ptsz(*address, stream); });
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Guest* guest = enter();
  return allocate_given_pool(
      guest, address, bytes, pool, stream, guest->cuda.cuStreamIsCapturing,
      [&] { return guest->cuda.cuMemAllocFromPoolAsync(address, bytes, pool, stream); },
      [&] { guest->cuda.cuMemFreeAsync(*address, stream); });
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Guest* guest = enter();
  return allocate_given_pool(
      guest, address, bytes, pool, stream, guest->cuda.cuStreamIsCapturing_ptsz,
      [&] { return guest->cuda.cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream); },
      [&] { guest->cuda.cuMemFreeAsync_ptsz(*address, stream); });
}

CUresult hook_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemPoolCreate(pool, properties);
  if (result != CUDA_SUCCESS || pool == nullptr || properties == nullptr) return result;
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const uint32_t card = on_device ? card_of_device(guest, properties->location.id) : kNoCard;
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  guest->memory.pools.insert(pool_key(*pool), PoolCharge{0, card});
  return result;
}

CUresult hook_cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
                                                 unsigned long long flags) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (result != CUDA_SUCCESS || pool == nullptr) return result;
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  guest->memory.pools.insert(pool_key(*pool), PoolCharge{0, kNoCard});
  return result;
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemPoolTrimTo(pool, keep_bytes);
  const uint32_t card = result == CUDA_SUCCESS ? card_of_pool(guest, pool) : kNoCard;
  if (booked(guest, card)) refresh_pools(guest, card);
  return result;
}

CUresult hook_cuMemPoolDestroy(CUmemoryPool pool) {
  Guest* guest = enter();
  const uint64_t used = pool == nullptr ? 0 : pool_attribute(guest, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  PoolCharge entry = {0, kNoCard};
  bool known = false;
  if (pool != nullptr) {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    known = guest->memory.pools.erase(pool_key(pool), &entry);
  }
  const CUresult result = guest->cuda.cuMemPoolDestroy(pool);
  if (!known) return result;
  if (result != CUDA_SUCCESS) {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    guest->memory.pools.insert(pool_key(pool), entry);
    return result;
  }
  if (!booked(guest, entry.card)) return result;
  // Memory still in use outlives the pool's name, which was the only way to ask for it. It stays charged as overhead
  // until NVML says that it is gone.
  const uint64_t kept = used < entry.charged_bytes ? used : entry.charged_bytes;
  give_back_memory(guest, entry.card, entry.charged_bytes - kept);
  if (kept != 0) {
    CardMemory& memory = guest->memory.cards[entry.card];
    memory.overhead_bytes.fetch_add(kept, std::memory_order_acq_rel);
    memory.tracked_bytes.fetch_sub(kept, std::memory_order_acq_rel);
    memory.overhead_stale.store(1, std::memory_order_relaxed);
  }
  return result;
}

CUresult hook_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  Guest* guest = enter();
  return free_linear(guest, address, [&] { return guest->cuda.cuMemFreeAsync(address, stream); });
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  Guest* guest = enter();
  return free_linear(guest, address, [&] { return guest->cuda.cuMemFreeAsync_ptsz(address, stream); });
}

}  // extern "C"
