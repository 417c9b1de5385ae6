// The published rule by which a trace and a seed become an order of arrivals and an order of nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "replay/trace.h"

namespace sluice::replay {

struct Arrivals {
  std::vector<uint32_t> pods;   // row numbers of the trace, in order of arrival
  std::vector<uint32_t> ranks;  // per node row: its place in the random order that breaks ties
};

// Pods by name, shuffled; then drawn with replacement until requests reach `load` x capacity (or removed at random
// until they do not exceed it). Draws are Go's math/rand, so seed 42 on an openb trace is the published run. Errors: a
// trace that asks for no card.
Result<Arrivals> generate_arrivals(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods, int64_t seed,
                                   double load = 1.3);

}  // namespace sluice::replay
