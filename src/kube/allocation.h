// The allocation record on a pod: which cards it was given. Written by the scheduler alone, inside the Binding object;
// read by agents and by whoever shows it. Facts and names: docs/scheduler.md, "The record".
//
// Ours (sluice.dev/allocation) is what is acted on: it names cards by UUID and containers by name, and is signed
// together with pod UID and node (users may edit annotations on their own pods). ACK's annotations, new and old, are
// written beside it for the tools that read them and are never trusted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/node.h"
#include "core/request.h"
#include "kube/signature.h"

namespace sluice::kube {

inline constexpr const char* kAnnotationAllocation = "sluice.dev/allocation";
inline constexpr const char* kAnnotationSignature = "sluice.dev/signature";
inline constexpr const char* kAnnotationAckAllocation = "scheduler.framework.gpushare.allocation";
inline constexpr const char* kAnnotationAckCore = "gpushare.alibabacloud.com/core-percentage";
inline constexpr const char* kAnnotationAckAssumeTime = "scheduler.framework.gpushare.assume-time";
inline constexpr const char* kAnnotationAckAssigned = "scheduler.framework.gpushare.assigned";

// What one pod has of one card, or one container of it.
struct CardShare {
  int32_t index = 0;
  std::string uuid;
  int64_t units = 0;
  int32_t core_milli = 0;  // 0: not limited

  bool operator==(const CardShare&) const = default;
};

struct Allocation {
  std::vector<CardShare> cards;                              // the pod's charge on each card
  std::map<std::string, std::vector<CardShare>> containers;  // by name, those that ask

  bool operator==(const Allocation&) const = default;
};

// From a decision: the pod's request and the placement that was chosen on that node.
Allocation make_allocation(const core::PodRequest& request, const core::Node& node, const core::Placement& placement);

// All annotations of the record, old names too, so that nothing a user wrote under any of them survives a bind.
// now_ns: wall clock, for the assume time. container_index: position in spec.containers by name, for ACK's records.
std::map<std::string, std::string> to_annotations(const Allocation& allocation, const core::Node& node,
                                                  const std::vector<std::string>& container_names,
                                                  const std::string& pod_uid, const Signer& signer, int64_t now_ns);

// The record of a pod on `node_name`, if it is there and its signature holds. kNotFound: no record; kPermission: the
// signature does not fit record, pod and node; kInvalid: signed but unreadable (another version's).
Result<Allocation> read_allocation(const std::map<std::string, std::string>& annotations, const std::string& pod_uid,
                                   const std::string& node_name, const Verifier& verifier);

// The text of annotation kAnnotationAllocation as it stands, for viewers that hold no key; nothing may be granted by
// it.
Result<Allocation> parse_allocation(const std::string& record);

}  // namespace sluice::kube
