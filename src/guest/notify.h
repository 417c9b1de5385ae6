// What the memory part tells the compute part; defined in the compute part's files.
#pragma once

#include <cstdint>

#include "abi/cuda.h"

namespace sluice::guest {

struct Guest;

// A context was made (or a primary one retained for the first time). Called after the driver's call, no lock held.
void compute_context_created(Guest* guest, uint32_t card, CUcontext context);
// A context is about to be destroyed or reset: its streams and events die with it. Called before the driver's call.
void compute_context_destroying(Guest* guest, uint32_t card, CUcontext context);
// This process was forked from the one that the guest was set up in: no thread but the caller exists, no event, stream
// or context of the parent may be used, slots are claimed anew.
void compute_forked(Guest* guest);

}  // namespace sluice::guest
