// Arrays, for those that copy from and to them.
#pragma once

#include "sim/mem_state.h"

namespace sluice::sim {

// With the memory lock held. nullptr: no such array.
Array* find_array(Process& process, CUarray handle);

}  // namespace sluice::sim
