// Whose container is starting? PreStartContainer says device ids and nothing else; the kubelet's own record says which
// container holds them. Pure: pods and records in, container out.
//
// What the record does not show: ordinary init containers (and, on old kubelets, sidecars). Their ids are used again by
// the pod's later containers, so the pod is known by an overlap; an init container whose ids nobody later uses is found
// in the kubelet's checkpoint. Only where there is no checkpoint is it known by its request, and then only after a
// while, when the kubelet's whole record names nobody else and one pod alone can be meant.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "node/checkpoint.h"
#include "node/local_pods.h"
#include "node/pod_resources.h"
#include "node/slots.h"

namespace sluice::node {

struct OwnerQuestion {
  std::string resource;
  std::vector<std::string> ids;  // sorted
};

// A pod that may be the owner: of this node, asking, not ended.
struct OwnerCandidate {
  LocalPodPtr pod;
  std::optional<RecordedPod> record;  // nullopt: the kubelet has none
};

struct Owner {
  LocalPodPtr pod;
  // Positions in pod->request.shares of the containers that these ids may be of, in the order in which the kubelet
  // starts them: one, or init containers and the one that uses their ids again.
  std::vector<size_t> containers;
  // Said by the kubelet; false: found by elimination. Who is sure takes a slot back from who is not.
  bool sure = true;
};

// By the record. kNotFound: none of these pods holds the ids. kUnavailable: two pods are recorded with them, or the
// record contradicts the pod; both pass when the kubelet has put its record right.
Result<Owner> find_owner(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates);

// By the checkpoint. kNotFound: it names nobody. kUnavailable: it names a pod that is not among the candidates (our
// watch is behind) or several.
Result<Owner> find_in_checkpoint(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates,
                                 const std::vector<CheckpointEntry>& entries);

// What the checkpoint says to an owner found by the record, which knows pods by their names: kUnavailable when the ids
// are another pod's (one of the same name that our watch has not shown yet, or the ids were handed out twice). Else the
// owner, without containers that the ids were not handed out for. A checkpoint that does not have the ids says nothing.
Result<Owner> confirm_owner(const OwnerQuestion& question, Owner owner, const std::vector<CheckpointEntry>& entries);

// The last resort, for ids that no record shows: the one pod with an init container of this size that has not run; not
// `sure`. everybody: the kubelet's whole record; kUnavailable when it shows the ids at a pod that is no candidate yet,
// and when several pods can be meant.
Result<Owner> find_by_request(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates,
                              const std::vector<RecordedPod>& everybody);

// Whether the record has an entry of the resource for every container that is recorded when it asks (init containers
// apart): then it will not change while the pod lives.
bool record_complete(const LocalPod& pod, const RecordedPod& record, const std::string& resource);

// Of the containers that these ids may be of, those that the ids were really handed out for. `slots`: the resource's,
// in the order of the Allocate calls. The kubelet allocates for one pod after the other and for a pod's containers in
// their order, so a slot that is known (a recorded container's) tells the others' places. Without one nothing changes.
Owner narrow(const OwnerQuestion& question, Owner owner, const std::optional<RecordedPod>& record,
             const std::vector<const Slot*>& slots);

// Of several containers with the same ids the one that starts now, by the pod's status: the first init container that
// has not ended well, else the last. A position in `containers`.
size_t starting_now(const Owner& owner);

}  // namespace sluice::node
