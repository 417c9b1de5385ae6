// Placement policies: functions score(node, request) -> (score, cards), higher is better. Which one is best depends on
// what will come next: `binpack` and `spread` look only at how full a node is; `fragmentation` and the default look at
// what known workloads could still use afterwards (core/fragmentation.h) and therefore need a Workload.
//
// Scores are whole numbers on purpose. Equal scores are broken by a fixed order of nodes, so that equal choices pile
// onto the same node; finer scores scatter equal nodes by rounding noise and measure worse (docs/placement.md).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace sluice::core {

enum class PolicyName {
  kDefault,        // ours; without a workload it is binpack
  kBinpack,        // the fullest card that fits, on the fullest node
  kSpread,         // the emptiest card on the emptiest node
  kFragmentation,  // FGD (Weng et al., USENIX ATC '23) as published
  kBestFit,        // the published baseline: least CPU and GPU left
};
const char* to_string(PolicyName name);  // "default", "binpack", "spread", "FGD", "BestFit"
// Also "fragmentation" for FGD.
Result<PolicyName> parse_policy(const std::string& name);

struct Policy {
  PolicyName name = PolicyName::kDefault;
  // What memory counts against compute in binpack and spread, 0..1; compute counts the rest.
  double memory_weight = 0.5;
};

}  // namespace sluice::core
