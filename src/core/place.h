// Placement for a caller with a handful of nodes (a command line on one machine, the agent, a test): one function from
// nodes and request to a placement or a reason. The scheduler and the replay use core/cluster.h, which gives the same
// answers and remembers scores between decisions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/feasible.h"
#include "core/node.h"
#include "core/policy.h"
#include "core/request.h"

namespace sluice::core {

struct Placed {
  size_t node = 0;  // position in the list given
  Placement placement;
};

// Chooses node and cards; books nothing. Nodes of equal score: the first in the list. An error is kExhausted (may fit
// later) or kInvalid (never fits on these nodes); its message holds rule, need and have for each rule that refused.
Result<Placed> place(std::span<const Node> nodes, const Request& request, const Policy& policy = {},
                     const std::string& unit = "GiB");

}  // namespace sluice::core
