// A neighbour in the search order, as tracers and profilers are: it stands before the driver, defines one of its calls
// and forwards it to the next definition. RTLD_NEXT is taken relative to the caller, which a careless wrapper breaks.
#include <dlfcn.h>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

extern "C" __attribute__((visibility("default"))) CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  static auto* const next = reinterpret_cast<decltype(&cuMemGetInfo_v2)>(dlsym(RTLD_NEXT, "cuMemGetInfo_v2"));
  return next == nullptr ? CUDA_ERROR_NOT_FOUND : next(free, total);
}
