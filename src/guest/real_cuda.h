// The real driver's functions that the guest knows by type: those it hooks and those it calls itself. Filled once at
// start; a function that the installed driver lacks is an address that answers CUDA_ERROR_NOT_SUPPORTED, so nothing
// here is ever null.
#pragma once

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace sluice::guest {

struct Guest;

struct RealCuda {
#define SLUICE_HOOK(name, part) decltype(&::name) name;
#define SLUICE_CALL(name) decltype(&::name) name;
#include "guest/hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
};

// Fills guest->cuda from the driver seam.
void resolve_real_cuda(Guest* guest);

// The hook that stands for a real function's address, nullptr when that function is not hooked. This, and no table of
// names and versions, is how cuGetProcAddress answers: the real driver chooses the function, we only change the
// address.
// `symbol` is the name the program asked for: drivers may let several functions share one address.
void* hook_for_real(Guest* guest, const char* symbol, void* real);
// The hook of an exported name, nullptr when the name is not hooked.
void* hook_for_name(const char* name);

}  // namespace sluice::guest
