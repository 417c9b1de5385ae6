// Libraries, for those that end contexts.
#pragma once

#include "sim/process.h"

namespace sluice::sim {

// The modules that libraries had in a context are gone with it.
void forget_context_in_libraries(Process& process, const Context& context);

}  // namespace sluice::sim
