#include "node/node_report.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/json_find.h"
#include "kube/objects.h"

namespace sluice::node {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr std::array<const char*, 2> kAnnotations{kube::kAnnotationCards, kube::kAnnotationMode};
constexpr std::array<const char*, 3> kLabels{kLabelCardName, kLabelCardMemory, kLabelCardCount};
constexpr std::array<const char*, 3> kConditions{kConditionCards, kConditionEnforcing, kConditionMode};
constexpr size_t kMaxNamed = 5;  // pods named in a condition

int64_t number_of(const std::string& text, int64_t fallback) {
  int64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() && !text.empty() ? value : fallback;
}

// A label value: letters, digits, '-', '_', '.', at most 63, beginning and ending with one of the first two. ACK writes
// '-' for spaces.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool fits =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    out += fits ? c : '-';
  }
  out.resize(std::min<size_t>(out.size(), 63));
  while (!out.empty() && (out.back() == '-' || out.back() == '.' || out.back() == '_')) out.pop_back();
  while (!out.empty() && (out.front() == '-' || out.front() == '.' || out.front() == '_')) out.erase(0, 1);
  return out;
}

std::string cards_text(const ReportInput& input) {
  json::Array cards;
  const bool needs_enforcing = input.mode.mode != core::NodeMode::kShare;
  for (const agent::CardFacts& card : input.cards) {
    const bool shareable = card.usable && (card.problem.empty() || !needs_enforcing);
    cards.push_back(json::Object{{"index", card.info.index},
                                 {"uuid", card.info.uuid},
                                 {"model", card.info.model},
                                 {"memory_mib", card.info.memory_bytes / kMib},
                                 {"units", card.units},
                                 {"healthy", shareable}});
  }
  return json::to_string(cards);
}

Condition card_condition(const std::vector<agent::CardFacts>& cards) {
  std::string problems;
  for (const agent::CardFacts& card : cards) {
    if (!card.usable)
      problems +=
          fmt::format("{}card {} ({}) {}", problems.empty() ? "" : "; ", card.info.index, card.info.uuid, card.problem);
  }
  if (cards.empty()) return {false, "NoCard", "the driver lists no card"};
  if (problems.empty()) return {true, "AllCardsAnswer", fmt::format("{} cards answer", cards.size())};
  return {false, "CardFault", problems + "; nothing new is placed there, and it is offered again when it answers"};
}

Condition enforce_condition(const ReportInput& input) {
  if (!input.offer_problem.empty()) return {false, "NothingOffered", input.offer_problem};
  if (!input.enforce_problem.empty()) return {false, input.enforce_reason, input.enforce_problem};
  for (const agent::CardFacts& card : input.cards) {
    if (!card.usable || card.problem.empty()) continue;
    const bool mig = card.problem.find("MIG") != std::string::npos;
    return {false, mig ? "MigMode" : "ExclusiveProcessMode",
            fmt::format("card {} {}; it is not offered until that is switched off", card.info.index, card.problem)};
  }
  if (input.mode.mode == core::NodeMode::kShare)
    return {false, "ShareMode", "mode share: pods are placed by what they ask for and limit themselves"};
  return {true, "LimitsHold", "memory and compute limits can be set on every card of this node"};
}

Condition mode_condition(const ModeState& mode) {
  if (mode.settled() && mode.mode == core::NodeMode::kNothing) {
    return {false, "ModeNotSupported",
            fmt::format("{}={}: this mode offers no cards here; known modes are default, cgpu, core_mem, share",
                        kube::kLabelMode, mode.wanted.word)};
  }
  if (mode.settled()) return {true, "Settled", fmt::format("mode {}", mode_word(mode.mode))};
  std::string names;
  for (size_t i = 0; i < mode.waiting_for.size() && i < kMaxNamed; ++i)
    names += (i == 0 ? "" : ", ") + mode.waiting_for[i];
  if (mode.waiting_for.size() > kMaxNamed) names += fmt::format(" and {} more", mode.waiting_for.size() - kMaxNamed);
  return {false, "WaitingForPods",
          fmt::format("from mode {} to {}: waits for {}; nothing new is offered until they have gone",
                      mode_word(mode.mode), mode.wanted.word, names)};
}

// A strategic merge patch sets map keys and takes away those set to null.
template <typename Map, typename Names>
json::Object map_patch(const Map& seen, const Map& wanted, const Names& names) {
  json::Object patch;
  for (const char* name : names) {
    auto has = seen.find(name);
    auto wants = wanted.find(name);
    if (wants == wanted.end()) {
      if (has != seen.end()) patch[name] = nullptr;
    } else if (has == seen.end() || has->second != wants->second) {
      patch[name] = wants->second;
    }
  }
  return patch;
}

std::pair<int64_t, int64_t> version_in(const std::string& text) {
  const size_t start = text.find_first_of("0123456789");
  if (start == std::string::npos) return {0, 0};
  const size_t dot = text.find('.', start);
  if (dot == std::string::npos) return {0, 0};
  const size_t end = text.find_first_not_of("0123456789", dot + 1);
  return {number_of(text.substr(start, dot - start), 0),
          number_of(text.substr(dot + 1, (end == std::string::npos ? text.size() : end) - dot - 1), 0)};
}

}  // namespace

NodeFacts read_node(const json::Object& node) {
  NodeFacts facts;
  if (const json::Object* metadata = json::find_object(node, "metadata"); metadata != nullptr) {
    if (const json::Object* labels = json::find_object(*metadata, "labels"); labels != nullptr) {
      for (const auto& member : *labels) facts.labels.emplace(member.key(), json::find_text(*labels, member.key()));
    }
    if (const json::Object* annotations = json::find_object(*metadata, "annotations"); annotations != nullptr) {
      for (const char* key : kAnnotations) {
        if (annotations->contains(key)) facts.face.annotations[key] = json::find_text(*annotations, key);
      }
    }
  }
  for (const char* key : kLabels) {
    if (auto found = facts.labels.find(key); found != facts.labels.end()) facts.face.labels[key] = found->second;
  }
  const json::Object* status = json::find_object(node, "status");
  if (status == nullptr) return facts;
  if (const json::Object* info = json::find_object(*status, "nodeInfo"); info != nullptr) {
    facts.kubelet_version = json::find_text(*info, "kubeletVersion");
    facts.runtime = json::find_text(*info, "containerRuntimeVersion");
  }
  if (const json::Object* capacity = json::find_object(*status, "capacity");
      capacity != nullptr && capacity->contains(core::kLabelCardCount))
    facts.face.card_count = number_of(json::find_text(*capacity, core::kLabelCardCount), -1);
  if (const json::Object* allocatable = json::find_object(*status, "allocatable"); allocatable != nullptr)
    facts.whole_cards_allocatable = number_of(json::find_text(*allocatable, core::kResourceWholeCards), 0);
  const json::Value* conditions = status->if_contains("conditions");
  if (conditions == nullptr || !conditions->is_array()) return facts;
  for (const json::Value& item : conditions->get_array()) {
    if (!item.is_object()) continue;
    const json::Object& one = item.get_object();
    for (const char* type : kConditions) {
      if (json::find_text(one, "type") == type)
        facts.face.conditions[type] = {json::find_text(one, "status") == "True", json::find_text(one, "reason"),
                                       json::find_text(one, "message")};
    }
  }
  return facts;
}

NodeFace wanted_face(const ReportInput& input) {
  NodeFace face;
  const bool leaving = !input.mode.settled();
  if (!is_sharing(input.mode.mode) && !leaving) {
    // Whole cards, or nothing: only a mode that is not known has something to say.
    if (input.mode.mode == core::NodeMode::kNothing && input.mode.wanted.word != "disabled")
      face.conditions[kConditionMode] = mode_condition(input.mode);
    return face;
  }
  face.conditions[kConditionMode] = mode_condition(input.mode);
  if (!is_sharing(input.mode.mode)) {  // from whole cards to shares
    face.annotations[kube::kAnnotationMode] = kModeWaiting;
    return face;
  }
  face.annotations[kube::kAnnotationCards] = cards_text(input);
  face.annotations[kube::kAnnotationMode] =
      input.offering && !leaving && input.offer_problem.empty() ? mode_word(input.mode.mode) : kModeWaiting;
  face.conditions[kConditionCards] = card_condition(input.cards);
  face.conditions[kConditionEnforcing] = enforce_condition(input);
  face.card_count = static_cast<int64_t>(input.cards.size());
  if (!input.cards.empty()) {
    const agent::CardInfo& first = input.cards.front().info;
    if (const std::string name = label_value(first.model); !name.empty()) face.labels[kLabelCardName] = name;
    face.labels[kLabelCardMemory] = fmt::format("{}MiB", first.memory_bytes / kMib);
    face.labels[kLabelCardCount] = std::to_string(input.cards.size());
  }
  return face;
}

NodePatches plan_patches(const NodeFace& seen, const NodeFace& wanted, const std::string& now) {
  NodePatches patches;
  json::Object metadata;
  if (json::Object labels = map_patch(seen.labels, wanted.labels, kLabels); !labels.empty())
    metadata["labels"] = std::move(labels);
  if (json::Object annotations = map_patch(seen.annotations, wanted.annotations, kAnnotations); !annotations.empty())
    metadata["annotations"] = std::move(annotations);
  if (!metadata.empty()) patches.object = json::Object{{"metadata", std::move(metadata)}};

  json::Object status;
  if (seen.card_count != wanted.card_count) {
    json::Object count;
    if (wanted.card_count)
      count[core::kLabelCardCount] = std::to_string(*wanted.card_count);
    else
      count[core::kLabelCardCount] = nullptr;
    status["capacity"] = count;
    status["allocatable"] = std::move(count);
  }
  json::Array conditions;
  for (const char* type : kConditions) {
    auto has = seen.conditions.find(type);
    auto wants = wanted.conditions.find(type);
    if (wants == wanted.conditions.end()) {
      if (has != seen.conditions.end()) conditions.push_back(json::Object{{"$patch", "delete"}, {"type", type}});
      continue;
    }
    if (has != seen.conditions.end() && has->second == wants->second) continue;
    json::Object condition{{"type", type},
                           {"status", wants->second.holds ? "True" : "False"},
                           {"reason", wants->second.reason},
                           {"message", wants->second.message},
                           {"lastHeartbeatTime", now}};
    if (has == seen.conditions.end() || has->second.holds != wants->second.holds) condition["lastTransitionTime"] = now;
    conditions.push_back(std::move(condition));
  }
  if (!conditions.empty()) status["conditions"] = std::move(conditions);
  if (!status.empty()) patches.status = json::Object{{"status", std::move(status)}};
  return patches;
}

Result<void> check_cdi(const std::string& kubelet_version, const std::string& runtime) {
  if (auto version = version_in(kubelet_version);
      !kubelet_version.empty() && version < std::pair<int64_t, int64_t>{1, 29}) {
    return invalid(
        fmt::format("CDI device names need kubelet 1.29 or later, this one is {}; start the agent with "
                    "--delivery env",
                    kubelet_version));
  }
  if (runtime.starts_with("containerd://") && version_in(runtime) < std::pair<int64_t, int64_t>{1, 7}) {
    return invalid(
        fmt::format("CDI needs containerd 1.7 or later, this one is {}; start the agent with --delivery env", runtime));
  }
  return {};
}

}  // namespace sluice::node
