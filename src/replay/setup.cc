#include "replay/setup.h"

#include <fmt/format.h>

#include "core/workload.h"

namespace sluice::replay {

Result<Experiment> one_dimensional(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods,
                                   std::vector<uint32_t> arrivals, std::vector<uint32_t> ranks) {
  if (ranks.size() != nodes.size())
    return invalid(fmt::format("ranks: needs one per node ({}), have {}", nodes.size(), ranks.size()));
  Experiment experiment;
  for (const TraceNode& node : nodes) experiment.nodes.push_back(one_dimensional_node(node));
  for (const TracePod& pod : pods) {
    experiment.requests.push_back(one_dimensional_request(pod));
    experiment.card_milli.push_back(int64_t{pod.cards} * pod.card_milli);
  }
  experiment.arrivals = std::move(arrivals);
  experiment.tie_ranks = std::move(ranks);
  experiment.workload = core::learn_workload(experiment.requests);
  return experiment;
}

}  // namespace sluice::replay
