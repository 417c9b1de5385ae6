// Which kind of requests this node serves, and how it gets from one kind to another while pods run.
//
// The label ack.node.gpu.schedule says what is wanted. A node serves one kind at a time, and pods of the old kind keep
// what they have: as long as one of them is here the old mode stays in force, nothing new is offered, and the switch
// comes by itself when the last has gone. Pure: label and pods in, decision out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/node.h"

namespace sluice::node {

// What the label asks for. kNothing carries the word, for the node's condition.
struct WantedMode {
  core::NodeMode mode = core::NodeMode::kDefault;
  std::string word = "default";  // as the label has it, "default" where there is none
  bool operator==(const WantedMode&) const = default;
};
WantedMode wanted_mode(const std::map<std::string, std::string>& labels);

// What a pod on this node holds, for the decision below.
enum class PodKind { kNone, kWhole, kMemory, kMemoryCore };

struct PresentPod {
  std::string full_name;
  PodKind kind = PodKind::kNone;
};

struct ModeState {
  core::NodeMode mode = core::NodeMode::kDefault;  // in force
  WantedMode wanted;
  std::vector<std::string> waiting_for;  // pods that keep the old mode in force; empty: settled
  bool settled() const { return waiting_for.empty(); }
  bool operator==(const ModeState&) const = default;
};

// Whether pods of this kind may stay when `mode` is in force.
bool serves(core::NodeMode mode, PodKind kind);

// The next state. Pods that have ended do not count. From one sharing mode to another every pod with a share is
// waited for, also one of a kind that both serve: what holds it (limits or none) changes with the mode.
ModeState next_mode(core::NodeMode in_force, const WantedMode& wanted, const std::vector<PresentPod>& pods);

bool is_sharing(core::NodeMode mode);  // kMemory, kCoreMemory, kShare

// The mode's word for the file that remembers it, and back (unknown: kDefault).
std::string mode_word(core::NodeMode mode);
core::NodeMode parse_mode_word(const std::string& word);

}  // namespace sluice::node
