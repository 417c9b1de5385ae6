// What a process has allocated beyond plain linear memory: memory pools, physical memory with handles (VMM), arrays,
// imported memory. Physical blocks and addresses are separate things in this simulator (memory.h), so each kind of
// allocation is some combination of three steps: a block of the card, a place for contents, a mapping of addresses.
//
// The files mem_*.cc hold the calls of these kinds: managed memory, arrays and mipmaps,
// cuMem*Async and pools, virtual memory management, IPC and external memory, graph memory, and (library.cc, linker.cc)
// code that belongs to no context. Plain cuMemAlloc, host memory and linear copies are elsewhere.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/api.h"

namespace sluice::sim {

constexpr uint64_t kMemBlock = 2 << 20;  // physical granularity
inline uint64_t round_up_to(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

// Physical memory of a card that can be mapped, exported and referenced: what cuMemCreate makes and imports give.
// Lives while handles or mappings refer to it; each importer holds the card's block by a reference of its own.
struct Physical {
  int card = 0;
  Index block = kNone;  // kNone: host memory
  uint64_t bytes = 0;
  uint32_t owner_serial = 0;  // whose contents file
  uint64_t contents_offset = 0;
  bool own_contents = false;  // the place in the file is ours to give back
  void* host = nullptr;       // location HOST: anonymous memory
  CUmemAllocationProp properties{};
  unsigned handles = 1;
  unsigned mappings = 0;
};

struct Array {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  uint64_t row_bytes = 0, rows = 0, slices = 0;  // of contents
  std::shared_ptr<Physical> memory;              // nothing for sparse and deferred arrays
  uint64_t address = 0;                          // where copies find it; programs never see it
  bool level = false;                            // belongs to a mipmap, not to be destroyed alone
};

struct Mipmap {
  Context* context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  std::shared_ptr<Physical> memory;
  uint64_t address = 0, bytes = 0;
  std::vector<Array*> levels;
};

struct External {
  int card = 0;
  std::shared_ptr<Physical> memory;
  std::vector<uint64_t> mapped;
};

struct Pool;

struct MemoryState {
  HostLock lock;  // guards all of it; may be held across waits. Order: this, objects, Memory's own, the card's
  HandlePool<Array> arrays;
  HandlePool<Mipmap> mipmaps;
  HandlePool<Pool> pools;
  HandlePool<External> externals;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles;
  CUmemGenericAllocationHandle next_handle = 1;
  // Addresses of cuMemAddressReserve, by start; mappings of physical memory, by address.
  struct Reservation {
    int card;
    uint64_t bytes;
  };
  std::map<uint64_t, Reservation> reservations;
  std::map<uint64_t, std::shared_ptr<Physical>> mapped;
  std::map<uint64_t, std::shared_ptr<Physical>> imported;  // cuIpcOpenMemHandle
  std::map<int, Pool*> default_pools, current_pools;
  std::shared_ptr<void> graph;   // mem_graph.cc
  std::shared_ptr<void> advice;  // mem_managed.cc
};
// Of a process; made at first use.
MemoryState& memory_state(Process& process);

class MemoryLock {
 public:
  explicit MemoryLock(Process& process) : process_(process) { process_.host().lock(memory_state(process_).lock); }
  ~MemoryLock() { process_.host().unlock(memory_state(process_).lock); }
  MemoryLock(const MemoryLock&) = delete;
  MemoryLock& operator=(const MemoryLock&) = delete;

 private:
  Process& process_;
};

// A block of the card with a place for contents; nullptr when the card is full. The process attaches if it had not.
// It is charged to the process alone: pools, handles and arrays may outlive the context that was current.
std::shared_ptr<Physical> make_physical(Process& process, int card, uint64_t bytes, BlockKind kind);
// One mapping less or one handle less: the last one frees the memory.
void drop_physical(Process& process, Physical& memory);
// Maps all of `memory` from `offset` at addresses; false when they are taken.
bool map_physical(Process& process, const Physical& memory, uint64_t address, uint64_t bytes, uint64_t offset,
                  CUcontext context, bool accessible);

// What a context takes with it when it ends: its arrays, its managed memory, what it opened of other processes.
void release_context_memory(Process& process, const Context& context);
// cuMemFree of something that plain allocation did not make: true when it was pool, graph or managed memory (*result
// says how that went) or memory with a release of its own, which cuMemFree refuses.
bool free_elsewhere(Process& process, CUdeviceptr address, const Mapping& mapping, CUresult* result);
CUresult free_managed(Process& process, const Mapping& mapping);
void close_imported(Process& process, uint64_t address);  // cuIpcCloseMemHandle, with the memory lock held

// What another process needs to reach a piece of memory; travels in IPC handles and in exported descriptors.
struct MemoryTicket {
  char magic[8];           // "SluiceM1"
  unsigned char uuid[16];  // of the card
  int32_t exporter_pid;
  uint32_t block, block_serial, owner_serial;
  uint64_t bytes, contents_offset;
};
static_assert(sizeof(MemoryTicket) <= CU_IPC_HANDLE_SIZE);
MemoryTicket make_ticket(Process& process, int card, Index block, uint32_t owner_serial, uint64_t contents_offset,
                         uint64_t bytes);
// Takes a reference on the block that a ticket names. nullptr: not a ticket, no such card here, or freed meanwhile.
std::shared_ptr<Physical> redeem_ticket(Process& process, const MemoryTicket& ticket);
// A descriptor (close-on-exec memfd) that holds a ticket and the properties; -1 with errno.
int export_descriptor(const MemoryTicket& ticket, const CUmemAllocationProp& properties);
bool read_descriptor(int fd, MemoryTicket* ticket, CUmemAllocationProp* properties);

}  // namespace sluice::sim
