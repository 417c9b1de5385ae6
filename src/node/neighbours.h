// Who else gives out this node's cards. Sluice's limits hold for what goes through its grants; a second device plugin,
// or a DRA driver that publishes the same cards, places pods on them outside of these, and a DeviceClass that claims
// one of Sluice's resource names takes pods away before they reach it. Nothing of that can be prevented from here: it
// is said, in the node's condition, and pods with grants go on.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "kube/api_client.h"
#include "node/node_report.h"

namespace sluice::node {

// From a ResourceSliceList (resource.k8s.io) of this node: a driver publishes one of these cards, by UUID, or is
// NVIDIA's for GPUs. nullopt: none does.
std::optional<Condition> claim_by_slices(const json::Value& list, const std::vector<std::string>& uuids);

// From a DeviceClassList: a class stands for one of Sluice's resource names (kube-scheduler asks DRA for them wherever
// a node offers none, and the kubelet then leaves the device plugin out).
std::optional<Condition> claim_by_classes(const json::Value& list);

// Asks the API server now and then; it is no more than a warning, so a cluster without DRA, or one that does not let
// the agent look, says nothing.
class Neighbours {
 public:
  Neighbours(kube::Endpoint endpoint, std::string node_name);
  // Looks when it is time to. Called often.
  void look(const std::vector<std::string>& uuids);
  const std::optional<Condition>& claim() const { return claim_; }

 private:
  std::optional<json::Value> list(const std::string& what, const std::string& query);

  kube::ApiClient api_;
  std::string node_name_;
  std::string version_;  // of the API group; empty: not known
  std::chrono::steady_clock::time_point next_{};
  std::optional<Condition> claim_;
};

}  // namespace sluice::node
