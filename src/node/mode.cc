#include "node/mode.h"

#include "kube/objects.h"

namespace sluice::node {

WantedMode wanted_mode(const std::map<std::string, std::string>& labels) {
  WantedMode wanted;
  wanted.mode = kube::mode_of_labels(labels);
  auto label = labels.find(kube::kLabelMode);
  wanted.word = label != labels.end() ? label->second : core::to_string(wanted.mode);
  return wanted;
}

bool is_sharing(core::NodeMode mode) {
  return mode == core::NodeMode::kMemory || mode == core::NodeMode::kCoreMemory || mode == core::NodeMode::kShare;
}

bool serves(core::NodeMode mode, PodKind kind) {
  switch (kind) {
    case PodKind::kNone:
      return true;
    case PodKind::kWhole:
      return mode == core::NodeMode::kDefault;
    case PodKind::kMemory:
      // On core_mem nodes that are mixed; the scheduler decides which those are.
      return is_sharing(mode);
    case PodKind::kMemoryCore:
      return mode == core::NodeMode::kCoreMemory;
  }
  return true;
}

ModeState next_mode(core::NodeMode in_force, const WantedMode& wanted, const std::vector<PresentPod>& pods) {
  ModeState state{in_force, wanted, {}};
  if (in_force == wanted.mode) return state;
  for (const PresentPod& pod : pods) {
    const bool stays = pod.kind == PodKind::kNone || (!is_sharing(in_force) && serves(wanted.mode, pod.kind));
    if (!stays) state.waiting_for.push_back(pod.full_name);
  }
  if (state.waiting_for.empty()) state.mode = wanted.mode;
  return state;
}

std::string mode_word(core::NodeMode mode) {
  return mode == core::NodeMode::kNothing ? "nothing" : core::to_string(mode);
}

core::NodeMode parse_mode_word(const std::string& word) {
  using core::NodeMode;
  for (NodeMode mode : {NodeMode::kMemory, NodeMode::kCoreMemory, NodeMode::kShare, NodeMode::kNothing}) {
    if (word == mode_word(mode)) return mode;
  }
  return NodeMode::kDefault;
}

}  // namespace sluice::node
