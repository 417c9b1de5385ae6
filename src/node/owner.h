// Whose container is starting? PreStartContainer says device ids and nothing else; the kubelet's own record says which
// container holds them. Pure: pods and records in, container out.
//
// What the record does not show: ordinary init containers (and, on old kubelets, sidecars). Their ids are used again by
// the pod's later containers, so the pod is known by an overlap; an init container whose ids nobody later uses is known
// only by its request.
#pragma once

#include <optional>
#include <string>
#include <vector>

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
};

// kNotFound: none of these pods holds the ids. kUnavailable: two pods are recorded with them, or the record contradicts
// the pod; both pass when the kubelet has put its record right.
Result<Owner> find_owner(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates);

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
