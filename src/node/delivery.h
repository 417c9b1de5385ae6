// What a container gets, worked out from its grant: mounts, environment, device nodes; and the two forms in which a
// runtime takes them, a CDI spec (the default) or the kubelet's answer (older runtimes). Pure.
//
// CDI's environment and mounts win over the pod's own (containerd applies them last); those of the kubelet's answer
// lose to a volume or variable of the same name in the pod. Facts: Container Device Interface specification 0.3.0 to
// 0.8.0 (github.com/cncf-tags/container-device-interface, SPEC.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "node/driver.h"
#include "node/plugin_server.h"

namespace sluice::node {

inline constexpr char kCdiKind[] = "sluice.dev/grant";

// A card as a container is told of it.
struct DeliveredCard {
  int32_t index = 0;
  std::string uuid;
  int64_t card_units = 0;
  int64_t units = 0;        // of this container, on this card
  std::string device_node;  // "/dev/nvidia0"; of a simulated card only its number counts
};

struct Delivery {
  std::string slot;             // 16 hex digits; names the CDI device
  std::string grant_directory;  // on the node
  std::string usage_file;
  std::string libraries;  // folder of our libraries on the node
  bool guest = true;      // false: the real driver stands in the container unguarded (whole cards of a machine)
  std::vector<DeliveredCard> cards;  // empty: not known yet
  // Device nodes of further cards that are handed in although they are not the container's (env delivery: which card it
  // is may turn out later).
  std::vector<std::string> more_nodes;
  int64_t pod_units = 0;  // of the whole pod on all its cards; 0: whole cards
};

struct ContainerEdits {
  std::map<std::string, std::string> environment;
  std::vector<DriverMount> mounts;
  std::vector<std::string> device_nodes;
  bool operator==(const ContainerEdits&) const = default;
};

// With no cards yet the mounts are there (their sources are not: the runtime then refuses to start the container, and
// the kubelet tries again) and no device node is.
ContainerEdits plan_edits(const Delivery& delivery, const Driver& driver);

// The text of the spec file that names the one device `slot`.
std::string cdi_spec(const std::string& slot, const ContainerEdits& edits);
std::string cdi_device(const std::string& slot);     // "sluice.dev/grant=g0123456789abcdef"
std::string cdi_file_name(const std::string& slot);  // "sluice.dev-grant-0123456789abcdef.json"
// The slot of such a file's name; "" for other files.
std::string slot_of_cdi_file(const std::string& name);

// For runtimes without CDI: everything in the kubelet's answer.
ContainerAnswer to_answer(const ContainerEdits& edits);

}  // namespace sluice::node
