#include "node/checkpoint.h"

#include <algorithm>

#include "base/json.h"

namespace sluice::node {
namespace {

constexpr size_t kMaxEntries = 16'384;

const json::Value* member(const json::Value& value, std::string_view key) {
  return value.is_object() ? value.get_object().if_contains(key) : nullptr;
}

bool text_member(const json::Value& value, std::string_view key, std::string& out) {
  const json::Value* found = member(value, key);
  if (found == nullptr || !found->is_string()) return false;
  out = std::string(found->get_string());
  return true;
}

bool append_texts(const json::Value& list, std::vector<std::string>& out) {
  if (!list.is_array()) return false;
  for (const json::Value& one : list.get_array()) {
    if (!one.is_string()) return false;
    out.emplace_back(one.get_string());
  }
  return true;
}

// {"-1": ["m0", "m1"]}, by NUMA node; a plain list up to 1.19.
bool read_ids(const json::Value& value, std::vector<std::string>& out) {
  if (!value.is_object()) return append_texts(value, out);
  for (const auto& node : value.get_object()) {
    if (!append_texts(node.value(), out)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<CheckpointEntry>> parse_checkpoint(const std::string& text) {
  Result<json::Value> root = json::parse(text);
  if (!root) return std::move(root.error()).wrap("the kubelet's checkpoint");
  const json::Value* data = member(*root, "Data");
  const json::Value* list = data == nullptr ? nullptr : member(*data, "PodDeviceEntries");
  if (list == nullptr) return invalid("the kubelet's checkpoint: expected Data.PodDeviceEntries");
  std::vector<CheckpointEntry> out;
  if (list->is_null()) return out;  // no pod holds a device
  if (!list->is_array() || list->get_array().size() > kMaxEntries)
    return invalid("the kubelet's checkpoint: Data.PodDeviceEntries is no list of a usual size");
  for (const json::Value& item : list->get_array()) {
    CheckpointEntry entry;
    const json::Value* ids = member(item, "DeviceIDs");
    if (!text_member(item, "PodUID", entry.pod_uid) || !text_member(item, "ContainerName", entry.container) ||
        !text_member(item, "ResourceName", entry.resource) || ids == nullptr || !read_ids(*ids, entry.ids)) {
      return invalid(
          "the kubelet's checkpoint: expected PodUID, ContainerName, ResourceName and DeviceIDs in an entry");
    }
    std::sort(entry.ids.begin(), entry.ids.end());
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace sluice::node
