// The inspection as one object for programs. Names and units of the members are an interface: docs/cli.md.
#include "cli/inspect.h"

namespace sluice::cli {
namespace {

json::Array shares_json(const SharesByCard& shares) {
  json::Array out;
  for (const auto& [index, share] : shares)
    out.push_back(json::Object{{"index", index}, {"units", share.units}, {"corePercent", share.core_percent}});
  return out;
}

const char* record_name(RecordKind kind) {
  switch (kind) {
    case RecordKind::kSluice:
      return "sluice.dev/allocation";
    case RecordKind::kAck:
      return "scheduler.framework.gpushare.allocation";
    case RecordKind::kOldAck:
      return "ALIYUN_COM_GPU_MEM_IDX";
    case RecordKind::kNone:
      break;
  }
  return "";
}

json::Object pod_json(const InspectedPod& pod) {
  json::Array containers;
  for (const InspectedContainer& container : pod.containers)
    containers.push_back(json::Object{{"name", container.name}, {"cards", shares_json(container.cards)}});
  json::Object out{{"namespace", pod.name_space},
                   {"name", pod.name},
                   {"uid", pod.uid},
                   {"phase", pod.phase},
                   {"terminating", pod.deleting},
                   {"pending", pod.cards.empty()},
                   {"requestedUnits", pod.asked_units},
                   {"requestedCorePercent", pod.asked_core},
                   {"cards", shares_json(pod.cards)},
                   {"containers", std::move(containers)},
                   {"record", record_name(pod.record)}};
  if (!pod.problem.empty()) out["problem"] = pod.problem;
  return out;
}

json::Object card_json(const InspectedNode& node, const InspectedCard& card) {
  return {{"index", card.index},
          {"uuid", card.uuid},
          {"model", card.model},
          {"memoryMiB", card.memory_mib},
          {"healthy", card.healthy},
          {"units", card.units},
          {"allocatedUnits", card.allocated_units},
          {"corePercent", node.isolates_compute ? 100 : 0},
          {"allocatedCorePercent", card.allocated_core}};
}

json::Array texts_json(const std::vector<std::string>& texts) {
  json::Array out;
  for (const std::string& text : texts) out.push_back(json::Value(text));
  return out;
}

}  // namespace

json::Object inspect_json(const Inspection& inspection) {
  json::Array nodes;
  json::Object sum{{"units", 0}, {"allocatedUnits", 0}, {"corePercent", 0}, {"allocatedCorePercent", 0}};
  const auto add = [&sum](const char* key, int64_t value) { sum[key] = sum[key].as_int64() + value; };
  for (const InspectedNode& node : inspection.nodes) {
    json::Array cards;
    for (const InspectedCard& card : node.cards) cards.push_back(card_json(node, card));
    json::Array pods;
    for (const InspectedPod& pod : node.pods) pods.push_back(pod_json(pod));
    const int64_t allocated_core = node.isolates_compute ? node.allocated_core() : 0;
    nodes.push_back(json::Object{{"name", node.name},
                                 {"address", node.address},
                                 {"mode", node.mode},
                                 {"units", node.total_units()},
                                 {"allocatedUnits", node.allocated_units()},
                                 {"pendingUnits", node.pending_units()},
                                 {"corePercent", node.total_core()},
                                 {"allocatedCorePercent", allocated_core},
                                 {"cards", std::move(cards)},
                                 {"pods", std::move(pods)},
                                 {"problems", texts_json(node.problems)}});
    add("units", node.total_units());
    add("allocatedUnits", node.allocated_units());
    add("corePercent", node.total_core());
    add("allocatedCorePercent", allocated_core);
  }
  return {{"apiVersion", "sluice.dev/v1"}, {"kind", "Inspection"},      {"memoryUnit", inspection.memory_unit},
          {"nodes", std::move(nodes)},     {"cluster", std::move(sum)}, {"notes", texts_json(inspection.notes)}};
}

}  // namespace sluice::cli
