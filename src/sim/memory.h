// Device addresses of one process on one card, and the contents behind them.
//
// Device addresses come from a range that is reserved PROT_NONE in the process, so a program that reads one on the
// host faults as it would on hardware. The bytes themselves lie in a sparse file next to the card's, one per process,
// mapped elsewhere; an importer (IPC) maps the exporter's file. Allocations of at most 1 MiB share 2 MiB blocks, as the
// real driver's do; bigger ones have a block each. Physical memory (Card::allocate_block) and addresses are separate,
// so that virtual memory management, pools and IPC are built of the same two parts.
//
// One Memory per process and card, guarded by its own lock; lock order: context lock, memory lock, card lock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "abi/cuda.h"
#include "sim/card.h"

namespace sluice::sim {

class Process;

// A run of addresses with one physical block behind it.
struct Mapping {
  uint64_t address = 0, bytes = 0;
  Index block = kNone;           // physical memory; kNone: host memory, or addresses without memory
  uint32_t owner_serial = 0;     // whose contents file
  uint64_t contents_offset = 0;  // of address's first byte in it
  void* host = nullptr;          // host memory seen by the device (cuMemHostAlloc, cuMemHostRegister, managed)
  int card = 0;
  uint64_t allocation = 0, allocation_bytes = 0;  // cuMemGetAddressRange
  CUcontext context = nullptr;
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  bool managed = false;
  uint32_t host_flags = 0;
  uint64_t buffer_id = 0;
  bool readable = true, writable = true;  // cuMemSetAccess
};

// Where bytes really are. Spans never cross a mapping; null bytes are beyond the contents budget (reads give 0).
struct Span {
  char* bytes = nullptr;
  uint64_t length = 0;
};

class Memory {
 public:
  Memory(Process& process, int card);
  ~Memory();

  // cuMemAlloc. CUDA_ERROR_OUT_OF_MEMORY when the card is full. kind names what it is in the log.
  CUresult allocate(CUcontext context, Index context_record, uint64_t bytes, BlockKind kind, CUdeviceptr* address);
  // cuMemFree; CUDA_ERROR_INVALID_VALUE unless address is the start of such an allocation.
  CUresult free(CUdeviceptr address);

  // Addresses alone (cuMemAddressReserve): alignment 0 is 2 MiB. 0 when there are none.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t wanted);
  void unreserve(uint64_t address, uint64_t bytes);
  // A place for contents in this process's file.
  uint64_t reserve_contents(uint64_t bytes);
  void release_contents(uint64_t offset, uint64_t bytes);

  // Adds or removes a mapping (VMM, IPC, pools, managed, host). Overlap is refused.
  bool map(const Mapping& mapping);
  bool unmap(uint64_t address, uint64_t bytes);

  // The mapping that holds an address; copies, so that no lock is needed after.
  bool find(uint64_t address, Mapping* out);
  // Bytes behind [address, address + length); false when any part of it is not mapped.
  bool spans(uint64_t address, uint64_t length, bool for_writing, std::vector<Span>* out);

  // Everything of one context (cuCtxDestroy), everything (exit).
  void release_context(CUcontext context);
  // Managed allocations made in a context.
  std::vector<Mapping> managed_of(const void* context);
  uint64_t mappings();

 private:
  struct File;
  struct Chunk;
  File* file_of(uint32_t serial);
  bool open_range();
  uint64_t kept_prefix(File& file, uint64_t offset, uint64_t length, bool for_writing, bool* kept);
  bool keep_granule(File& file, uint64_t granule);
  void drop_contents(uint64_t offset, uint64_t bytes);
  CUresult allocate_block(Index context_record, uint64_t bytes, BlockKind kind, Index* block);
  CUresult allocate_small(CUcontext context, Index context_record, uint64_t bytes, BlockKind kind, CUdeviceptr* out);
  void free_small(Chunk& chunk, uint64_t address, uint64_t bytes);

  Process& process_;
  int card_;
  std::recursive_mutex lock_;
  uint64_t base_ = 0, range_ = 0;
  std::map<uint64_t, uint64_t> free_addresses_;  // start -> bytes
  std::map<uint64_t, uint64_t> free_contents_;
  std::map<uint64_t, Mapping> mappings_;  // by address
  std::map<uint64_t, std::unique_ptr<Chunk>> chunks_;
  std::unordered_map<CUcontext, Chunk*> roomy_;  // where the next small allocation is tried first
  std::map<uint32_t, std::unique_ptr<File>> files_;
  uint64_t next_buffer_id_ = 1;
};

// Finds the memory that an address of the process belongs to: any card, or host memory known to the driver.
Memory* memory_of(Process& process, uint64_t address, Mapping* mapping);

}  // namespace sluice::sim
