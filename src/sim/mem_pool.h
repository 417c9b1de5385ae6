// Memory pools: what cuMemAllocAsync takes from. A pool gets physical memory from the card in chunks of at least 32 MiB
// and hands out pieces; what is given back stays in the pool ("reserved") until a synchronisation finds more of it than
// the release threshold, or the pool is trimmed. A piece freed in stream order may be handed out again to the same
// stream at once, to others when the stream has come past the free.
#pragma once

#include "sim/mem_state.h"

namespace sluice::sim {

struct Pool {
  int card = 0;
  CUmemPoolProps properties{};
  bool is_default = false, imported = false;
  uint64_t threshold = 0;
  int reuse_events = 1, reuse_opportunistic = 1, reuse_internal = 1;
  uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  CUmemAccess_flags host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  std::map<int, CUmemAccess_flags> access;

  struct Chunk {
    std::shared_ptr<Physical> memory;
    uint64_t bytes;
    uint64_t used = 0;  // pieces handed out, and those freed but not yet past
  };
  std::map<uint64_t, Chunk> chunks;   // by first address
  std::map<uint64_t, uint64_t> free;  // address -> bytes, never across chunks
  struct Piece {
    uint64_t bytes;  // of the pool
    uint64_t asked;
  };
  std::map<uint64_t, Piece> live;
  struct Pending {
    uint64_t address, bytes;
    Index stream;
    CommandRef last;
  };
  std::vector<Pending> pending;
};

// The pool that cuMemAllocAsync uses on a card: the one set, else the default one (made on first use).
Pool* current_pool(Process& process, int card);
Pool* default_pool(Process& process, int card);

// CUDA_ERROR_OUT_OF_MEMORY when neither pool nor card have room after waiting for what is on its way back.
CUresult pool_allocate(Process& process, Context* context, Pool& pool, uint64_t bytes, Index stream,
                       CUdeviceptr* address);
// The pool and piece of an address; nullptr when no pool handed it out.
Pool* pool_of(Process& process, CUdeviceptr address);
// stream kNone: at once.
CUresult pool_free(Process& process, Pool& pool, CUdeviceptr address, Index stream);
// Gives chunks that nobody uses back to the card until at most `keep` bytes are reserved.
void pool_trim(Process& process, Pool& pool, uint64_t keep);
// Synchronisation points of a card: every pool falls back to its threshold.
void pools_after_sync(Process& process, int card);
void destroy_pool(Process& process, Pool& pool);

}  // namespace sluice::sim
