// What one container of one pod was given, as the parts of the Kubernetes mode tell it to one another: who makes grants
// lists them, metrics and the watchdog read them. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::node {

// One card of a container's grant.
struct ContainerCard {
  int32_t index = 0;  // NVML order on the node
  std::string uuid;
  int64_t units = 0;         // of the card's
  int64_t memory_mib = 0;    // the limit; of a whole card, all of it
  int32_t core_percent = 0;  // 0: not limited

  bool operator==(const ContainerCard&) const = default;
};

struct ContainerGrant {
  std::string name_space;
  std::string pod;
  std::string pod_uid;
  std::string container;
  std::string container_id;  // the runtime's, without "containerd://"; empty until the kubelet has reported it
  std::string grant_id;      // 16 hex digits, as GrantStatus::id
  bool whole_cards = false;
  std::vector<ContainerCard> cards;
  std::string problem;  // why its limits are not in force; empty: they are, as far as the agent's own side goes

  bool operator==(const ContainerGrant&) const = default;
};

}  // namespace sluice::node
