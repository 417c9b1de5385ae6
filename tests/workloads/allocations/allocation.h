// One way of getting memory from the driver: a row of the tables in this folder. A row allocates, touches what it got,
// gives it back, and says how the driver answered, so that a test can ask every way the same question ("limit plus one
// MiB?") and compare the answers by name.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/driver.h"

namespace workloads::allocations {

// What kind of memory a way takes, which decides whether a limit must refuse it.
enum class Kind {
  kDevice,   // the card's memory, all of the bytes asked for: over the limit it must be refused
  kManaged,  // managed memory: charged in full
  kCode,     // bytes in a module: charged when loaded
  kHeap,     // sizes of the card's own heaps: charged when set
  kContext,  // a context's overhead, whatever bytes were asked for
  kHost,     // host memory: never charged
  kAddress,  // address space or an alias of memory that is charged already: never charged again
};
const char* kind_name(Kind kind);

struct Request {
  uint64_t bytes;  // what to ask for; a multiple of 2 MiB
  CUdevice device;
  CUcontext context;  // current on the calling thread
};

struct Way {
  const char* name;  // "cuMemAlloc_v2", "cuMemCreate+cuMemMap+cuMemRelease": the calls that matter, as exported
  Kind kind;
  // The first result that is not success, or success after everything was given back. CUDA_ERROR_NOT_FOUND: the driver
  // has no such call.
  CUresult (*run)(const Request& request);
};

std::span<const Way> linear_ways();   // cuMemAlloc and its kin, managed and host memory
std::span<const Way> pool_ways();     // stream-ordered allocation
std::span<const Way> virtual_ways();  // cuMemCreate, mapping, sharing, address space
std::span<const Way> array_ways();
std::span<const Way> graph_ways();    // memory that belongs to graphs
std::span<const Way> context_ways();  // contexts, code, heaps

// Writes the first and last byte and waits; proves that the range is memory.
CUresult touch(CUdeviceptr address, uint64_t bytes);

// The exported symbol as a function of the given type, or null.
template <typename Function>
Function* symbol(const char* name) {
  return reinterpret_cast<Function*>(exported(name));
}

// Returns from the calling function unless the call succeeded.
#define WORKLOAD_TRY(call)                             \
  do {                                                 \
    const CUresult try_result = (call);                \
    if (try_result != CUDA_SUCCESS) return try_result; \
  } while (0)

}  // namespace workloads::allocations
