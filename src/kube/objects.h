// The few fields of pods and nodes that Sluice needs, decoded from API JSON into small structs; the rest of an object
// (managedFields is a quarter of a pod) is dropped at once. Missing fields are empty, as in the API; a field of the
// wrong kind is an error that names it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "core/node.h"
#include "core/request.h"

namespace sluice::kube {

inline constexpr const char* kLabelMode = "ack.node.gpu.schedule";
inline constexpr const char* kLabelPlacement = "ack.node.gpu.placement";
inline constexpr const char* kLabelMaxPods = "ack.node.gpu.max-pod";
inline constexpr const char* kLabelPolicy = "sluice.dev/compute-policy";  // names or numbers, for the agent
inline constexpr const char* kAnnotationCards = "sluice.dev/cards";
inline constexpr const char* kAnnotationMode = "sluice.dev/mode";

struct Pod {
  std::string uid;
  std::string name_space;
  std::string name;
  std::string resource_version;
  std::string node_name;
  std::string nominated_node;
  std::string scheduler_name;
  std::string phase;
  std::string created_at;  // RFC 3339 in UTC: sorts as text
  int32_t priority = 0;
  bool deleting = false;
  bool gated = false;                              // has schedulingGates
  bool unschedulable = false;                      // kube-scheduler's last attempt found no node
  bool started = false;                            // a container that asks for a shared card was created already
  core::PodText text;                              // every container, init containers first; texts only where it asks
  std::map<std::string, std::string> annotations;  // Sluice's and ACK's keys alone
  std::map<std::string, std::string> labels;       // all: disruption budgets select by them

  bool terminal() const { return phase == "Succeeded" || phase == "Failed"; }
  bool asks() const;  // for shared cards, with any container
  std::string full_name() const { return name_space + "/" + name; }
};

Result<Pod> decode_pod(const json::Value& object);

// A pod's request by its spec; "template" objects of workloads (spec with containers) work too.
Result<core::PodText> decode_pod_text(const json::Object& spec, const json::Object& labels);

struct NodeSettings {
  int64_t unit_mib = 1024;
  int32_t max_pods_per_card = 20;
  bool mixed = false;  // memory-only pods may share what compute is left on core_mem nodes
};

// A node as the placement sees it. The mode is the agent's annotation where there is one, else the label. Cards are the
// agent's annotation; absent: as many equal cards as the capacity aliyun.com/gpu-count says. `problem` says what of the
// annotation cannot be read; such a node offers nothing.
struct NodeDescription {
  core::Node node;
  std::string problem;
  // status.allocatable, of which kube-scheduler's own filter takes the sums; nullopt where the resource is not offered.
  std::optional<int64_t> allocatable_units;
  std::optional<int64_t> allocatable_core_percent;
};
Result<NodeDescription> decode_node(const json::Value& object, const NodeSettings& settings);

// Reads the label's words; legacy labels cgpu=true and gpushare=true count where it is absent. Unknown words: kNothing.
core::NodeMode mode_of_labels(const std::map<std::string, std::string>& labels);

}  // namespace sluice::kube
