// From trace files to an Experiment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/experiment.h"
#include "replay/trace.h"

namespace sluice::replay {

// The one-dimensional experiment of the trace. `arrivals` are row numbers of `pods`, `ranks` one per node.
Result<Experiment> one_dimensional(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods,
                                   std::vector<uint32_t> arrivals, std::vector<uint32_t> ranks);

}  // namespace sluice::replay
