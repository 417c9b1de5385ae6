// `sluice doctor --kubeconfig`: the links of a cluster, from the node agents' word on their nodes to the extender in
// kube-scheduler's configuration. What is asked needs a reader's rights; a link that this user may not look at is a
// note that says which right is missing.
//
// Whether kube-scheduler calls the extender stands in a file on the control plane, which nobody can read from here. So
// evidence decides: calls that the scheduler has counted, records on pods, and pods that were bound or wait without
// either.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/cluster_reader.h"
#include "cli/link.h"

namespace sluice::cli {

struct ClusterQuestion {
  std::string node;                     // this one alone; empty: all that have a mode's label or an agent's word
  int lease_patience_ms = 5000;         // a lease that lives is renewed every two seconds
  std::function<void(int)> sleep_ms{};  // for tests; empty: really
};

// The rights that are needed, for a refusal's sentence.
extern const char* const kClusterRights;

std::vector<Link> check_cluster(ClusterReader& cluster, const ClusterQuestion& question);

}  // namespace sluice::cli
