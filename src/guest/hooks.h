// Prototypes of all hooks, with the signatures of the functions they stand for.
#pragma once

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

extern "C" {
#define SLUICE_CALL(name)
#define SLUICE_HOOK(name, part) decltype(::name) hook_##name;
#include "guest/hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
}
