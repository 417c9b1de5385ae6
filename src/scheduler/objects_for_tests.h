// Pods and nodes for tests, as the API server shows them.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>

#include "base/json.h"
#include "kube/objects.h"

namespace sluice::scheduler {

inline std::string cards_json(int count, int memory_mib = 32510) {
  json::Array cards;
  for (int i = 0; i < count; ++i) {
    cards.push_back(
        json::Object{{"index", i}, {"uuid", fmt::format("GPU-{}", i)}, {"model", "V100"}, {"memory_mib", memory_mib}});
  }
  return json::to_string(cards);
}

inline json::Value node(const std::string& name, int cards = 1, const std::string& mode = "core_mem") {
  return json::Object{
      {"metadata", json::Object{{"name", name},
                                {"labels", json::Object{{"ack.node.gpu.schedule", mode}}},
                                {"annotations", json::Object{{"sluice.dev/cards", cards_json(cards)}}}}}};
}

struct PodSpec {
  std::string name;
  std::string memory = "10";
  std::string core = "30";
  std::string node = "";
  int priority = 0;
  std::string nominated = "";
  std::string phase = "Pending";
  std::map<std::string, std::string> annotations = {};
  std::string resource_version = "";
  bool started = false;  // its container was created
  std::string created = "";
  bool unschedulable = false;
  std::string card_count = "";  // the label
};

inline json::Value pod(const PodSpec& spec) {
  json::Object limits;
  if (!spec.memory.empty()) limits["aliyun.com/gpu-mem"] = spec.memory;
  if (!spec.core.empty()) limits["aliyun.com/gpu-core.percentage"] = spec.core;
  json::Object annotations;
  for (const auto& [key, value] : spec.annotations) annotations[key] = value;
  json::Object labels;
  if (!spec.card_count.empty()) labels["aliyun.com/gpu-count"] = spec.card_count;
  return json::Object{
      {"metadata", json::Object{{"uid", "uid-" + spec.name},
                                {"namespace", "d"},
                                {"name", spec.name},
                                {"annotations", annotations},
                                {"labels", labels},
                                {"resourceVersion", spec.resource_version},
                                {"creationTimestamp", spec.created}}},
      {"spec", json::Object{{"nodeName", spec.node},
                            {"priority", spec.priority},
                            {"containers", json::Array{json::Object{
                                               {"name", "c"}, {"resources", json::Object{{"limits", limits}}}}}}}},
      {"status",
       json::Object{
           {"phase", spec.phase},
           {"nominatedNodeName", spec.nominated},
           {"conditions", json::Array{json::Object{{"type", "PodScheduled"},
                                                   {"status", spec.unschedulable ? "False" : "True"},
                                                   {"reason", spec.unschedulable ? "Unschedulable" : ""}}}},
           {"containerStatuses",
            json::Array{json::Object{{"name", "c"}, {"containerID", spec.started ? "containerd://1" : ""}}}}}}};
}

inline kube::Pod decoded(const PodSpec& spec) {
  return *kube::decode_pod(pod(spec));
}

}  // namespace sluice::scheduler
