// What the agent writes on its own Node object and nowhere else: the cards and the mode for the scheduler, the labels
// and the capacity that ACK users know, conditions for people. Pure: what should stand there and what does, in; the
// patches that make the one into the other, out. Nothing is patched when nothing differs, and what was written is taken
// away when the node leaves the sharing modes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/node.h"
#include "base/json.h"
#include "node/mode.h"

namespace sluice::node {

inline constexpr char kLabelCardName[] = "aliyun.accelerator/nvidia_name";
inline constexpr char kLabelCardMemory[] = "aliyun.accelerator/nvidia_mem";
inline constexpr char kLabelCardCount[] = "aliyun.accelerator/nvidia_count";
inline constexpr char kConditionCards[] = "SluiceCardsHealthy";
inline constexpr char kConditionEnforcing[] = "SluiceEnforcing";
inline constexpr char kConditionMode[] = "SluiceModeSettled";
// The mode annotation while the node offers nothing: on its way between modes, or its plugins are not registered.
inline constexpr char kModeWaiting[] = "waiting";

struct Condition {
  bool holds = true;
  std::string reason;  // one word in CamelCase
  std::string message;
  bool operator==(const Condition&) const = default;
};

// What of the Node object is ours, as read or as wanted. An empty text or nullopt: not there.
struct NodeFace {
  std::map<std::string, std::string> annotations;  // kAnnotationCards, kAnnotationMode
  std::map<std::string, std::string> labels;
  std::optional<int64_t> card_count;  // capacity aliyun.com/gpu-count
  std::map<std::string, Condition> conditions;
  bool operator==(const NodeFace&) const = default;
};

// Other things of the Node object that the agent reads.
struct NodeFacts {
  std::map<std::string, std::string> labels;
  std::string kubelet_version;  // "v1.36.3"
  std::string runtime;          // "containerd://2.4.2"
  int64_t whole_cards_allocatable = 0;
  NodeFace face;
};
NodeFacts read_node(const json::Object& node);

struct ReportInput {
  ModeState mode;
  std::vector<agent::CardFacts> cards;
  bool offering = false;        // the plugins are registered and the kubelet listens
  std::string enforce_problem;  // why limits cannot be set on this node; empty: they can
  std::string enforce_reason;   // one word
  std::string offer_problem;    // why nothing is offered although the mode says so (a unit too fine)
};
NodeFace wanted_face(const ReportInput& input);

struct NodePatches {
  std::optional<json::Object> object;  // strategic merge patch of the node: labels, annotations
  std::optional<json::Object> status;  // strategic merge patch of its status: capacity, conditions
};
// now: RFC 3339, for conditions that change.
NodePatches plan_patches(const NodeFace& seen, const NodeFace& wanted, const std::string& now);

// Whether CDI device names in a plugin's answer reach the container: kubelet 1.29, containerd 1.7 or CRI-O. The error
// says what is too old.
Result<void> check_cdi(const std::string& kubelet_version, const std::string& runtime);

}  // namespace sluice::node
