// The kubelet's own file of allocations (device-plugins/kubelet_internal_checkpoint). PodResources leaves ordinary init
// containers out; this file names them, and it is on disk before any container of the pod starts. It is no promised
// interface (its layout has been the same since 1.20, and before that differed in one member), so it decides only where
// PodResources is silent, and a file that cannot be understood is as none. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::node {

inline constexpr char kCheckpointName[] = "kubelet_internal_checkpoint";

struct CheckpointEntry {
  std::string pod_uid, container, resource;
  std::vector<std::string> ids;  // sorted
  bool operator==(const CheckpointEntry&) const = default;
};

// All entries. kInvalid: the text has another layout than expected; a torn file is that too.
Result<std::vector<CheckpointEntry>> parse_checkpoint(const std::string& text);

}  // namespace sluice::node
