// A tiny CUDA runtime for test programs: it binds the driver exactly as NVIDIA's runtime does, which real programs of
// ours cannot use on a simulated card (the runtime checks that the driver is the vendor's own).
//
// dlopen("libcuda.so.1"), dlsym("cuGetProcAddress_v2"), then one look-up per name with the interface version that
// introduced the form, once with flag 0 (legacy default stream) and once with flag 2 (per-thread default stream). What
// stands in front of the driver must answer each of these with its own hook.
#pragma once

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace workloads {

// One pointer per call, null when the driver has no such call (only those that driver_calls.inc does not mark needed).
struct Driver {
#define WORKLOAD_CALL(name, prototype, version) decltype(&::prototype) name = nullptr;
#define WORKLOAD_NEEDED(name, prototype, version) WORKLOAD_CALL(name, prototype, version)
#include "runtime/driver_calls.inc"
#undef WORKLOAD_NEEDED
#undef WORKLOAD_CALL
};

// The driver's calls with legacy default stream. Binds on first use, by any thread. Where no driver can be bound, says
// why in one sentence on stderr and ends the process with kExitNoDriver.
const Driver& driver();

// The same with per-thread default stream (flag 2).
const Driver& driver_per_thread();

// What cuGetProcAddress_v2 gives for a name at a version (1000 x major + 10 x minor) and flags, or null.
void* look_up(const char* name, int version, unsigned long long flags);

// What dlsym gives for an exported symbol ("cuMemAlloc_v2", "cuMemAllocAsync_ptsz"), or null.
void* exported(const char* symbol);

inline constexpr int kExitCudaError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDriver = 3;

}  // namespace workloads
