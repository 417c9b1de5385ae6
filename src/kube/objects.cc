#include "kube/objects.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace sluice::kube {
namespace {

const json::Object kEmpty;

// The object under `key`; absent and null are an empty one.
Result<const json::Object*> child(const json::Object& object, std::string_view key) {
  const json::Value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return &kEmpty;
  if (!value->is_object()) return invalid(fmt::format("'{}' is not an object", key));
  return &value->get_object();
}

Result<std::map<std::string, std::string>> string_map(const json::Object& object, std::string_view key) {
  Result<const json::Object*> found = child(object, key);
  if (!found) return std::move(found).error();
  std::map<std::string, std::string> out;
  for (const auto& member : **found) {
    if (!member.value().is_string())
      return invalid(fmt::format("'{}.{}' is not a string", key, std::string(member.key())));
    out.emplace(member.key(), member.value().get_string());
  }
  return out;
}

// The API server writes quantities in their shortest form: 1000 comes back as "1k".
std::string without_suffix(std::string text) {
  size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits > 15 || digits + 1 != text.size()) return text;
  const char* zeros = text.back() == 'k' ? "000" : text.back() == 'M' ? "000000" : nullptr;
  return zeros == nullptr ? text : text.substr(0, digits) + zeros;
}

// A quantity as text; the API writes numbers as strings, people's manifests may hold bare numbers.
std::optional<std::string> quantity(const json::Object& object, std::string_view key) {
  const json::Value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (value->is_string()) return without_suffix(std::string(value->get_string()));
  return json::to_string(*value);
}

// Limits win over requests; the API server makes them equal for extended resources.
std::optional<std::string> asked(const json::Object& limits, const json::Object& requests, const char* resource) {
  std::optional<std::string> value = quantity(limits, resource);
  return value ? value : quantity(requests, resource);
}

Result<void> decode_containers(const json::Object& spec, std::string_view key, core::PodText& text) {
  const json::Value* list = spec.if_contains(key);
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array()) return invalid(fmt::format("'spec.{}' is not a list", key));
  if (list->get_array().size() > static_cast<size_t>(core::kMaxContainersPerPod)) {
    return invalid(fmt::format("'spec.{}' has {} entries, at most {} are read", key, list->get_array().size(),
                               core::kMaxContainersPerPod));
  }
  for (const json::Value& item : list->get_array()) {
    if (!item.is_object()) return invalid(fmt::format("'spec.{}' holds something that is not an object", key));
    const json::Object& container = item.get_object();
    Result<const json::Object*> resources = child(container, "resources");
    if (!resources) return std::move(resources).error();
    Result<const json::Object*> limits = child(**resources, "limits");
    if (!limits) return std::move(limits).error();
    Result<const json::Object*> requests = child(**resources, "requests");
    if (!requests) return std::move(requests).error();
    Result<std::string> name = json::get_string_or(container, "name", "");
    if (!name) return std::move(name).error();
    core::ContainerText one;
    one.name = *name;
    if (key == "initContainers") {
      Result<std::string> restart = json::get_string_or(container, "restartPolicy", "");
      if (!restart) return std::move(restart).error();
      one.role = *restart == "Always" ? core::ContainerRole::kSidecar : core::ContainerRole::kInit;
    }
    one.memory_units = asked(**limits, **requests, core::kResourceMemory);
    one.core_percent = asked(**limits, **requests, core::kResourceCore);
    one.whole_cards = asked(**limits, **requests, core::kResourceWholeCards);
    text.containers.push_back(std::move(one));
  }
  return {};
}

bool kept_annotation(std::string_view key) {
  return key.starts_with("sluice.dev/") || key.starts_with("scheduler.framework.gpushare.") ||
         key.starts_with("gpushare.alibabacloud.com/") || key.starts_with("ALIYUN_COM_GPU_");
}

// Whether a container that asks was ever created: only then the runtime has given it an id. A status that cannot be
// read says nothing.
bool asking_container_created(const json::Object& status, const core::PodText& text) {
  for (const char* key : {"initContainerStatuses", "containerStatuses"}) {
    const json::Value* list = status.if_contains(key);
    if (list == nullptr || !list->is_array()) continue;
    for (const json::Value& item : list->get_array()) {
      if (!item.is_object()) continue;
      Result<std::string> name = json::get_string_or(item.get_object(), "name", "");
      Result<std::string> id = json::get_string_or(item.get_object(), "containerID", "");
      if (!name || !id || id->empty()) continue;
      for (const core::ContainerText& container : text.containers) {
        if (container.name == *name && (container.memory_units || container.core_percent)) return true;
      }
    }
  }
  return false;
}

bool last_attempt_failed(const json::Object& status) {
  const json::Value* list = status.if_contains("conditions");
  if (list == nullptr || !list->is_array()) return false;
  for (const json::Value& item : list->get_array()) {
    if (!item.is_object()) continue;
    auto is = [&item](std::string_view key, std::string_view wanted) {
      Result<std::string> value = json::get_string_or(item.get_object(), key, "");
      return value && *value == wanted;
    };
    if (is("type", "PodScheduled")) return is("status", "False") && is("reason", "Unschedulable");
  }
  return false;
}

int64_t whole_number(const std::string& text, int64_t fallback) {
  int64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() ? value : fallback;
}

std::optional<int64_t> whole_quantity(const json::Object& amounts, std::string_view key) {
  int64_t value = whole_number(quantity(amounts, key).value_or(""), -1);
  return value < 0 ? std::nullopt : std::optional(value);
}

Result<std::vector<core::Card>> decode_cards(const std::string& annotation, const NodeSettings& settings) {
  Result<json::Value> value = json::parse(annotation);
  if (!value) return std::move(value).error();
  if (!value->is_array()) return invalid("expected a list of cards");
  if (value->get_array().size() > static_cast<size_t>(core::kMaxCardsPerNode)) {
    return invalid(fmt::format("{} cards, at most {} are read", value->get_array().size(), core::kMaxCardsPerNode));
  }
  std::vector<core::Card> cards;
  for (const json::Value& item : value->get_array()) {
    if (!item.is_object()) return invalid("expected a list of objects");
    const json::Object& object = item.get_object();
    Result<int64_t> index = json::get_int(object, "index");
    if (!index) return std::move(index).error();
    Result<std::string> uuid = json::get_string(object, "uuid");
    if (!uuid) return std::move(uuid).error();
    Result<std::string> model = json::get_string_or(object, "model", "");
    if (!model) return std::move(model).error();
    Result<int64_t> memory_mib = json::get_int(object, "memory_mib");
    if (!memory_mib) return std::move(memory_mib).error();
    Result<bool> healthy = json::get_bool_or(object, "healthy", true);
    if (!healthy) return std::move(healthy).error();
    if (*index < 0 || *index > 255 || *memory_mib < 1 || *memory_mib > (int64_t{1} << 40)) {
      return invalid(fmt::format("card {}: index or memory_mib out of range", *index));
    }
    for (const core::Card& other : cards) {
      if (other.index == *index) return invalid(fmt::format("card index {} stands twice", *index));
    }
    core::Card card = core::make_card(static_cast<int32_t>(*index), *uuid, *model, *memory_mib, settings.unit_mib);
    card.healthy = *healthy;
    cards.push_back(std::move(card));
  }
  return cards;
}

// Nodes without our agent: equal cards by count and sum of units.
std::vector<core::Card> equal_cards(const json::Object& capacity, const NodeSettings& settings) {
  int64_t count = whole_quantity(capacity, core::kLabelCardCount).value_or(0);
  int64_t units = whole_quantity(capacity, core::kResourceMemory).value_or(0);
  std::vector<core::Card> cards;
  if (count < 1 || count > core::kMaxCardsPerNode || units < count || units / count > core::kMaxUnits) return cards;
  for (int32_t i = 0; i < count; ++i) {
    cards.push_back(core::make_card(i, "", "", units / count * settings.unit_mib, settings.unit_mib));
  }
  return cards;
}

}  // namespace

bool Pod::asks() const {
  for (const core::ContainerText& container : text.containers) {
    if (container.memory_units || container.core_percent) return true;
  }
  return false;
}

Result<core::PodText> decode_pod_text(const json::Object& spec, const json::Object& labels) {
  core::PodText text;
  for (const char* key : {"initContainers", "containers"}) {
    if (Result<void> decoded = decode_containers(spec, key, text); !decoded) return std::move(decoded).error();
  }
  if (const json::Value* count = labels.if_contains(core::kLabelCardCount); count != nullptr) {
    text.card_count = count->is_string() ? std::string(count->get_string()) : json::to_string(*count);
  }
  return text;
}

Result<Pod> decode_pod(const json::Value& object) {
  if (!object.is_object()) return invalid("a pod is an object");
  const json::Object& root = object.get_object();
  Result<const json::Object*> metadata = child(root, "metadata");
  if (!metadata) return std::move(metadata).error();
  Result<const json::Object*> spec = child(root, "spec");
  if (!spec) return std::move(spec).error();
  Result<const json::Object*> status = child(root, "status");
  if (!status) return std::move(status).error();

  Pod pod;
  struct Text {
    const json::Object* from;
    const char* key;
    std::string* to;
  };
  for (const Text& one :
       {Text{*metadata, "uid", &pod.uid}, Text{*metadata, "namespace", &pod.name_space},
        Text{*metadata, "name", &pod.name}, Text{*metadata, "resourceVersion", &pod.resource_version},
        Text{*metadata, "creationTimestamp", &pod.created_at}, Text{*spec, "nodeName", &pod.node_name},
        Text{*spec, "schedulerName", &pod.scheduler_name}, Text{*status, "phase", &pod.phase},
        Text{*status, "nominatedNodeName", &pod.nominated_node}}) {
    Result<std::string> value = json::get_string_or(*one.from, one.key, "");
    if (!value) return std::move(value).error();
    *one.to = *std::move(value);
  }
  Result<int64_t> priority = json::get_int_or(**spec, "priority", 0);
  if (!priority) return std::move(priority).error();
  pod.priority = static_cast<int32_t>(*priority);
  const json::Value* deleted = (*metadata)->if_contains("deletionTimestamp");
  pod.deleting = deleted != nullptr && !deleted->is_null();
  const json::Value* gates = (*spec)->if_contains("schedulingGates");
  pod.gated = gates != nullptr && gates->is_array() && !gates->get_array().empty();

  Result<std::map<std::string, std::string>> labels = string_map(**metadata, "labels");
  if (!labels) return std::move(labels).error();
  pod.labels = *std::move(labels);
  Result<std::map<std::string, std::string>> annotations = string_map(**metadata, "annotations");
  if (!annotations) return std::move(annotations).error();
  for (auto& [key, value] : *annotations) {
    if (kept_annotation(key)) pod.annotations.emplace(key, std::move(value));
  }
  Result<const json::Object*> label_object = child(**metadata, "labels");
  Result<core::PodText> text = decode_pod_text(**spec, **label_object);
  if (!text) return std::move(text).error();
  pod.text = *std::move(text);
  pod.unschedulable = last_attempt_failed(**status);
  pod.started = asking_container_created(**status, pod.text);
  return pod;
}

core::NodeMode mode_of_labels(const std::map<std::string, std::string>& labels) {
  auto label = labels.find(kLabelMode);
  if (label == labels.end()) {
    auto legacy = [&labels](const char* key) {
      auto found = labels.find(key);
      return found != labels.end() && found->second == "true";
    };
    if (legacy("cgpu")) return core::NodeMode::kMemory;
    if (legacy("gpushare")) return core::NodeMode::kShare;
    return core::NodeMode::kDefault;
  }
  for (core::NodeMode mode :
       {core::NodeMode::kDefault, core::NodeMode::kMemory, core::NodeMode::kCoreMemory, core::NodeMode::kShare}) {
    if (label->second == core::to_string(mode)) return mode;
  }
  return core::NodeMode::kNothing;
}

Result<NodeDescription> decode_node(const json::Value& object, const NodeSettings& settings) {
  if (!object.is_object()) return invalid("a node is an object");
  const json::Object& root = object.get_object();
  Result<const json::Object*> metadata = child(root, "metadata");
  if (!metadata) return std::move(metadata).error();
  Result<const json::Object*> status = child(root, "status");
  if (!status) return std::move(status).error();
  Result<const json::Object*> capacity = child(**status, "capacity");
  if (!capacity) return std::move(capacity).error();
  Result<const json::Object*> allocatable = child(**status, "allocatable");
  if (!allocatable) return std::move(allocatable).error();
  Result<std::map<std::string, std::string>> labels = string_map(**metadata, "labels");
  if (!labels) return std::move(labels).error();
  Result<std::map<std::string, std::string>> annotations = string_map(**metadata, "annotations");
  if (!annotations) return std::move(annotations).error();
  Result<std::string> name = json::get_string(**metadata, "name");
  if (!name) return std::move(name).error();

  NodeDescription out;
  out.node.name = *name;
  out.node.mixed = settings.mixed;
  out.allocatable_units = whole_quantity(**allocatable, core::kResourceMemory);
  out.allocatable_core_percent = whole_quantity(**allocatable, core::kResourceCore);
  out.node.max_pods_per_card = settings.max_pods_per_card;
  if (auto found = labels->find(kLabelMaxPods); found != labels->end()) {
    int64_t pods = whole_number(found->second, -1);
    if (pods >= 0 && pods <= 10'000)
      out.node.max_pods_per_card = static_cast<int32_t>(pods);
    else
      out.problem = fmt::format("label {} is '{}', expected a whole number of pods", kLabelMaxPods, found->second);
  }
  if (auto found = labels->find(kLabelPlacement); found != labels->end()) {
    if (found->second == "binpack") out.node.card_order = core::CardOrder::kBinpack;
    if (found->second == "spread") out.node.card_order = core::CardOrder::kSpread;
  }
  out.node.mode = mode_of_labels(*labels);
  if (auto found = annotations->find(kAnnotationMode); found != annotations->end()) {
    out.node.mode = mode_of_labels({{kLabelMode, found->second}});
  }
  auto cards = annotations->find(kAnnotationCards);
  if (cards == annotations->end()) {
    out.node.cards = equal_cards(**capacity, settings);
    return out;
  }
  Result<std::vector<core::Card>> decoded = decode_cards(cards->second, settings);
  if (decoded)
    out.node.cards = *std::move(decoded);
  else
    out.problem = fmt::format("annotation {}: {}", kAnnotationCards, decoded.error().message);
  return out;
}

}  // namespace sluice::kube
