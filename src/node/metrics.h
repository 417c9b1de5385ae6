// The node in Prometheus text format, for the Kubernetes mode: every figure labelled with the pod and container it
// belongs to. Three families of names stand side by side: ACK's own (DCGM_CUSTOM_*), the few of DCGM's exporter that
// dashboards are built on (DCGM_FI_DEV_*), and ours (sluice_*). docs/metrics.md lists them. Pure: a snapshot in, text
// out; nothing is counted here.
#pragma once

#include <string>
#include <vector>

#include "agent/protocol.h"
#include "node/pods.h"
#include "node/strangers.h"

namespace sluice::node {

// A figure of the agent itself, without labels but the node's.
struct AgentFigure {
  std::string name;  // "sluice_agent_..."
  std::string help;
  bool counter = true;
  double value = 0;
};

struct NodeSnapshot {
  std::string node_name;
  std::string mode;        // the label's word that is in force
  agent::ListAnswer node;  // as an administrator sees it
  std::vector<ContainerGrant> containers;
  std::vector<Stranger> strangers;
  std::vector<AgentFigure> figures;
  bool device_series = true;  // DCGM_FI_DEV_*; off where NVIDIA's exporter runs too, so that no sum counts twice
};

std::string node_metrics_text(const NodeSnapshot& snapshot);

}  // namespace sluice::node
