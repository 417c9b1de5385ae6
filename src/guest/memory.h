// What this process has of each card's memory, as far as the driver's calls tell: the guest's private book. The shared
// ledger (ledger.h) holds only the sum of it per process and card; the book says what each free gives back.
//
// Every allocating hook does the same three steps: reserve the most it can cost, call the driver, correct the
// reservation to what it did cost. Freeing: the driver first, then the ledger, so that at any kill the ledger holds at
// least what the card does. Cards whose grant sets no memory limit are not booked at all: their calls pass through.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/cuda.h"
#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"
#include "guest/map.h"
#include "guest/spin.h"
#include "page/grant.h"

namespace sluice::guest {

struct Guest;

// The driver gives out memory in blocks of 2 MiB; smaller requests share a block.
inline constexpr uint64_t kBlockBytes = 2ull << 20;
constexpr uint64_t round_up(uint64_t value, uint64_t granule) {
  return (value + granule - 1) / granule * granule;
}

struct Allocation {
  uint64_t bytes;  // charged
  uint32_t card;
  uint32_t small_block;  // 1: lives in shared blocks, counted there; bytes = requested
  uint32_t managed;
  CUcontext context;     // dies with it
  uint64_t exports = 0;  // of an allocation that is being freed: as share_take() gave them
};

// Physical memory of the virtual memory calls: charged until its handles and its mappings are all gone. Imported:
// bytes is 0, and a claim stands for it instead.
struct Physical {
  uint64_t bytes;
  uint32_t card;
  uint32_t handles;
  uint32_t mappings;
  uint64_t claim;  // page::share_byte of what was imported; 0: made here
};

// What another process made and this one has open, by the address or handle that it got.
struct Import {
  uint64_t claim;
  uint32_t card;
  uint32_t opens;
  CUcontext context;  // dies with it; nullptr: does not
};

// A read lock that says what this process exports or has claimed (page/share.h).
struct ShareLock {
  uint64_t units;
  uint64_t next;  // exports: the next name of the same memory, 0 at the end
  uint32_t holds;
};

struct Mapping {
  Physical* physical;
  uint64_t bytes;
};

// A pool's cached and used memory as last read and charged.
struct PoolCharge {
  uint64_t charged_bytes;
  uint32_t card;
};

struct Context {
  uint32_t card;
  uint32_t defaults_known;     // bit per limit
  uint64_t default_limits[3];  // stack, printf, heap: what the context came with, part of its estimate
  uint64_t limits_bytes;       // charged for limits above those
};

struct Primary {
  uint32_t retains;
  uint32_t active;
  uint32_t booked;
  CUcontext context;
};

struct GraphExec {
  uint64_t bytes;   // most that its allocation nodes can need
  uint64_t credit;  // reserved for the launch in progress
  uint32_t card;
};

// Per card, private.
struct CardMemory {
  std::atomic<uint64_t> tracked_bytes;   // charged for allocations, pools, graphs and limits
  std::atomic<uint64_t> managed_bytes;   // part of it that the driver does not attribute to the process
  std::atomic<uint64_t> limits_bytes;    // part of it: stack, heap and printf limits above the defaults
  std::atomic<uint64_t> overhead_bytes;  // charged for contexts and code
  std::atomic<uint32_t> contexts;
  std::atomic<uint32_t> operations;       // calls to the driver that change memory, in progress
  std::atomic<uint64_t> operations_done;  // and finished, ever
  std::atomic<uint32_t> overhead_stale;   // code was loaded or unloaded since the last measurement
  std::atomic<uint64_t> measured_at_ns;
  nvmlDevice_t nvml_device;      // under measure_lock
  uint64_t graph_charged_bytes;  // of CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
  Primary primary;
};

struct Memory {
  SpinLock lock;  // the maps below and the fields of CardMemory that are not atomic
  CardMemory cards[page::kMaxCards];
  HashMap<Allocation> allocations;  // by device address
  HashMap<uint32_t> small_blocks;   // live small allocations by address / kBlockBytes
  HashMap<Allocation> arrays;       // by handle, arrays and mipmapped arrays
  HashMap<Physical*> physical;      // by allocation handle
  HashMap<Mapping> mappings;        // by mapped address, and by a hash of an array's mapped part
  HashMap<PoolCharge> pools;        // by pool handle
  HashMap<Context> contexts;        // by context handle; primary contexts are in CardMemory
  HashMap<GraphExec> graph_execs;   // by handle, only those with allocation nodes
  std::atomic<uint32_t> graph_exec_count;
  HashMap<uint32_t> unloaded_libraries;  // by handle: unloaded by us, the program will unload it again
  Pool<Physical> physical_pool;
  SpinLock share_lock;                  // the maps of what is shared; held while their locks are set
  HashMap<ShareLock> share_locks;       // by page::share_byte
  HashMap<uint64_t> exported;           // first name (page::share_byte) by address, handle's record or pool pointer
  HashMap<Import> imports;              // by address or handle
  std::atomic<uint32_t> shares;         // entries of the two above: nothing is looked up while there are none
  SpinLock measure_lock;                // one measurement at a time; try_lock only
  std::atomic<uint32_t> nvml_state;     // 0 untried, 1 usable, 2 not
  SpinLock pool_lock;                   // one pool allocation at a time: its cost is a difference of two readings
  std::atomic<uint64_t> last_retry_ns;  // when waiting for the card to free memory last did not help
};

// Forgets everything, in a forked child: none of it is this process's. The storage is kept.
void memory_forget(Guest* guest);

// For the compute part's graph hooks. A graph with allocation nodes takes its memory at its first launch, and again at
// any launch after a trim. begin: CUDA_ERROR_OUT_OF_MEMORY when that does not fit; else call end after the launch,
// whatever its result. Both return at once for graphs without such nodes.
CUresult memory_before_graph_launch(Guest* guest, CUgraphExec exec);
void memory_after_graph_launch(Guest* guest, CUgraphExec exec);
void memory_graph_exec_destroyed(Guest* guest, CUgraphExec exec);

}  // namespace sluice::guest
