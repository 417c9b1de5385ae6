#include "sim/mem_pool.h"

#include <algorithm>

#include "sim/engine.h"

namespace sluice::sim {
namespace {

constexpr uint64_t kPoolUnit = 512;
constexpr uint64_t kChunk = 32 << 20;

Pool* make_pool(Process& process, int card) {
  Pool* pool = memory_state(process).pools.make();
  if (pool == nullptr) return nullptr;
  pool->card = card;
  pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {card}};
  pool->access[card] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return pool;
}

Pool* find_or_make(Process& process, int card, std::map<int, Pool*>& pools) {
  Pool*& pool = pools[card];
  if (pool == nullptr) pool = make_pool(process, card);
  return pool;
}

Pool::Chunk& chunk_of(Pool& pool, uint64_t address) {
  return std::prev(pool.chunks.upper_bound(address))->second;
}

void give_back(Pool& pool, uint64_t address, uint64_t bytes) {
  const auto chunk = std::prev(pool.chunks.upper_bound(address));
  chunk->second.used -= bytes;
  const uint64_t chunk_end = chunk->first + chunk->second.bytes;
  auto next = pool.free.lower_bound(address);
  if (next != pool.free.end() && next->first == address + bytes && next->first < chunk_end) {
    bytes += next->second;
    next = pool.free.erase(next);
  }
  if (next != pool.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address && before->first >= chunk->first) {
      before->second += bytes;
      return;
    }
  }
  pool.free[address] = bytes;
}

// Pieces whose stream has come past their free belong to everybody.
void collect(Process& process, Pool& pool) {
  if (pool.pending.empty()) return;
  Card& card = *process.device(pool.card)->card;
  std::vector<Pool::Pending> done;
  {
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    const auto past = [&](const Pool::Pending& p) { return p.last.index == kNone || is_done(card, p.last); };
    std::copy_if(pool.pending.begin(), pool.pending.end(), std::back_inserter(done), past);
    std::erase_if(pool.pending, past);
  }
  for (const Pool::Pending& p : done) give_back(pool, p.address, p.bytes);
}

uint64_t take_free(Pool& pool, uint64_t bytes) {
  for (auto at = pool.free.begin(); at != pool.free.end(); ++at) {
    const auto [address, size] = *at;
    if (size < bytes) continue;
    pool.free.erase(at);
    if (size > bytes) pool.free[address + bytes] = size - bytes;
    chunk_of(pool, address).used += bytes;
    return address;
  }
  return 0;
}

// The same stream may have its own pieces back before the card has come so far.
uint64_t take_pending(Pool& pool, uint64_t bytes, Index stream) {
  for (Pool::Pending& p : pool.pending) {
    if (p.stream != stream || p.bytes < bytes) continue;
    const uint64_t address = p.address;
    p.address += bytes;
    p.bytes -= bytes;
    std::erase_if(pool.pending, [](const Pool::Pending& q) { return q.bytes == 0; });
    return address;
  }
  return 0;
}

bool grow(Process& process, Pool& pool, uint64_t bytes) {
  const uint64_t most = pool.properties.maxSize;
  // A whole chunk if there is room for one, else just what is needed.
  for (const uint64_t size : {round_up_to(bytes, kChunk), round_up_to(bytes, kMemBlock)}) {
    if (most != 0 && pool.reserved + size > round_up_to(most, kMemBlock)) continue;
    auto memory = make_physical(process, pool.card, size, BlockKind::kPool);
    if (memory == nullptr) continue;
    const uint64_t address = process.device(pool.card)->memory->reserve(size, kMemBlock, 0);
    if (address == 0) {
      memory->handles = 0;
      drop_physical(process, *memory);
      return false;
    }
    pool.chunks[address] = {memory, size};
    pool.free[address] = size;
    pool.reserved += size;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
  }
  return false;
}

void release_chunk(Process& process, Pool& pool, std::map<uint64_t, Pool::Chunk>::iterator at) {
  const uint64_t end = at->first + at->second.bytes;
  pool.free.erase(pool.free.lower_bound(at->first), pool.free.lower_bound(end));
  process.device(pool.card)->memory->unreserve(at->first, at->second.bytes);
  at->second.memory->handles = 0;
  drop_physical(process, *at->second.memory);
  pool.reserved -= at->second.bytes;
  pool.chunks.erase(at);
}

// Waits until every pending piece of the card's pools is free, so that memory can be given back to the card.
void drain(Process& process, int ordinal) {
  MemoryState& state = memory_state(process);
  const auto pending = [&] {
    std::vector<CommandRef> last;
    state.pools.each([&](Pool& pool) {
      if (pool.card != ordinal) return;
      for (const Pool::Pending& p : pool.pending) last.push_back(p.last);
    });
    return last;
  }();
  const auto done = [&](Card& card) {
    return std::all_of(pending.begin(), pending.end(),
                       [&](CommandRef c) { return c.index == kNone || is_done(card, c); });
  };
  const auto bound = [&](Card& card) {
    uint64_t soonest = kNever;
    for (const CommandRef& c : pending) {
      if (c.index != kNone && !is_done(card, c)) soonest = std::min(soonest, earliest_done(card, c));
    }
    return soonest;
  };
  if (!pending.empty()) process.wait(ordinal, done, bound, WaitMode::kAuto);
  state.pools.each([&](Pool& pool) {
    if (pool.card != ordinal) return;
    collect(process, pool);
    pool_trim(process, pool, 0);
  });
}

}  // namespace

Pool* default_pool(Process& process, int card) {
  Pool* pool = find_or_make(process, card, memory_state(process).default_pools);
  if (pool != nullptr) pool->is_default = true;
  return pool;
}

Pool* current_pool(Process& process, int card) {
  Pool* set = memory_state(process).current_pools[card];
  return set != nullptr ? set : default_pool(process, card);
}

CUresult pool_allocate(Process& process, Context* context, Pool& pool, uint64_t bytes, Index stream,
                       CUdeviceptr* address) {
  const uint64_t size = round_up_to(std::max<uint64_t>(bytes, 1), kPoolUnit);
  collect(process, pool);
  uint64_t at = take_free(pool, size);
  if (at == 0 && stream != kNone) at = take_pending(pool, size, stream);
  if (at == 0 && grow(process, pool, size)) at = take_free(pool, size);
  if (at == 0) {
    drain(process, pool.card);
    at = take_free(pool, size);
    if (at == 0 && grow(process, pool, size)) at = take_free(pool, size);
  }
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto chunk = std::prev(pool.chunks.upper_bound(at));
  Physical& memory = *chunk->second.memory;
  if (!map_physical(process, memory, at, std::max<uint64_t>(bytes, 1), at - chunk->first,
                    reinterpret_cast<CUcontext>(context), true)) {
    give_back(pool, at, size);
    return CUDA_ERROR_UNKNOWN;
  }
  pool.live[at] = {size, std::max<uint64_t>(bytes, 1)};
  pool.used += size;
  pool.used_high = std::max(pool.used_high, pool.used);
  *address = at;
  return CUDA_SUCCESS;
}

Pool* pool_of(Process& process, CUdeviceptr address) {
  Pool* found = nullptr;
  memory_state(process).pools.each([&](Pool& pool) {
    if (pool.live.count(address) != 0) found = &pool;
  });
  return found;
}

CUresult pool_free(Process& process, Pool& pool, CUdeviceptr address, Index stream) {
  const auto piece = pool.live.find(address);
  if (piece == pool.live.end()) return CUDA_ERROR_INVALID_VALUE;
  const Pool::Piece freed = piece->second;
  pool.live.erase(piece);
  pool.used -= freed.bytes;
  Device& device = *process.device(pool.card);
  device.memory->unmap(address, freed.asked);
  Pool::Pending pending{address, freed.bytes, stream, {}};
  if (stream != kNone) {
    Card::Guard guard(*device.card);
    pending.last = last_command(*device.card, stream);
  }
  if (pending.last.index == kNone) {
    give_back(pool, address, freed.bytes);
  } else {
    pool.pending.push_back(pending);
  }
  return CUDA_SUCCESS;
}

void pool_trim(Process& process, Pool& pool, uint64_t keep) {
  collect(process, pool);
  for (auto at = pool.chunks.begin(); at != pool.chunks.end() && pool.reserved > keep;) {
    const auto chunk = at++;
    if (chunk->second.used == 0) release_chunk(process, pool, chunk);
  }
}

void pools_after_sync(Process& process, int card) {
  if (process.memory_state == nullptr) return;
  const MemoryLock lock(process);
  memory_state(process).pools.each([&](Pool& pool) {
    if (pool.card == card && !pool.chunks.empty()) pool_trim(process, pool, pool.threshold);
  });
}

void destroy_pool(Process& process, Pool& pool) {
  MemoryState& state = memory_state(process);
  for (auto& [card, current] : state.current_pools) {
    if (current == &pool) current = nullptr;
  }
  Memory& memory = *process.device(pool.card)->memory;
  for (const auto& [address, piece] : pool.live) memory.unmap(address, piece.asked);
  pool.live.clear();
  pool.pending.clear();
  while (!pool.chunks.empty()) release_chunk(process, pool, pool.chunks.begin());
  state.pools.free(&pool);
}

}  // namespace sluice::sim
