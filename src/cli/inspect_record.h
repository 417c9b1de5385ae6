// The three forms in which a pod says which cards it holds, each read into the same values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/inspect.h"
#include "kube/objects.h"

namespace sluice::cli {

// A whole number from 0 to core::kMaxUnits that is all of the text. Sums of such cannot overflow.
std::optional<int64_t> read_number(std::string_view text);

// On a node of Sluice's agent: the scheduler's signed record and nothing else.
InspectedPod read_signed(const kube::Pod& pod, const std::string& node_name, const kube::Verifier* keys);

// On any other node: ACK's record, else the annotations of the older scheduler.
InspectedPod read_unsigned(const kube::Pod& pod);

// A sentence when the record names another card than the node has at that index today; else empty.
std::string replaced_card(const kube::Pod& pod, const InspectedNode& node);

}  // namespace sluice::cli
