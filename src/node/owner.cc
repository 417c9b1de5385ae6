#include "node/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sluice::node {
namespace {

const std::vector<std::string>* recorded_ids(const RecordedPod& record, const std::string& container,
                                             const std::string& resource) {
  for (const RecordedContainer& one : record.containers) {
    if (one.name != container) continue;
    auto ids = one.ids.find(resource);
    return ids == one.ids.end() || ids->second.empty() ? nullptr : &ids->second;
  }
  return nullptr;
}

bool overlap(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return !both.empty();
}

// Init containers of this size that the record does not show.
std::vector<size_t> unrecorded_init(const OwnerCandidate& candidate, const OwnerQuestion& question) {
  std::vector<size_t> found;
  const auto& shares = candidate.pod->request.shares;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].role == core::ContainerRole::kMain) continue;
    if (candidate.record && recorded_ids(*candidate.record, shares[i].name, question.resource) != nullptr) continue;
    if (candidate.pod->ids_wanted(shares[i], question.resource) == static_cast<int64_t>(question.ids.size()))
      found.push_back(i);
  }
  return found;
}

bool ended_well(const LocalPod& pod, const std::string& container) {
  auto state = pod.states.find(container);
  return state != pod.states.end() && state->second.terminated && state->second.exit_code == 0;
}

Error nobody(const OwnerQuestion& question, const char* where) {
  return not_found(fmt::format("the kubelet's {} names no pod that holds {} ids of {} from {} on", where,
                               question.ids.size(), question.resource,
                               question.ids.empty() ? "none" : question.ids.front()));
}

}  // namespace

Result<Owner> find_owner(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates) {
  const OwnerCandidate* exact = nullptr;
  const OwnerCandidate* partly = nullptr;
  std::string exact_container;
  for (const OwnerCandidate& candidate : candidates) {
    if (!candidate.record) continue;
    for (const RecordedContainer& container : candidate.record->containers) {
      auto ids = container.ids.find(question.resource);
      if (ids == container.ids.end() || !overlap(ids->second, question.ids)) continue;
      if ((exact != nullptr && exact != &candidate) || (partly != nullptr && partly != &candidate)) {
        const OwnerCandidate& other = exact != nullptr ? *exact : *partly;
        return unavailable(
            fmt::format("the kubelet has recorded the same device ids of {} for {} and {}; waiting until "
                        "it has put that right",
                        question.resource, other.pod->pod.full_name(), candidate.pod->pod.full_name()));
      }
      if (ids->second == question.ids) {
        exact = &candidate;
        exact_container = container.name;
      } else {
        partly = &candidate;
      }
    }
  }
  if (exact == nullptr && partly == nullptr) return nobody(question, "record");
  const OwnerCandidate& found = exact != nullptr ? *exact : *partly;
  Owner owner{found.pod, unrecorded_init(found, question), true};
  if (exact != nullptr) {
    if (!found.pod->request_problem.empty()) {
      return invalid(fmt::format("{}: {}", found.pod->pod.full_name(), found.pod->request_problem));
    }
    const auto& shares = found.pod->request.shares;
    auto share = std::find_if(shares.begin(), shares.end(), [&](const auto& s) { return s.name == exact_container; });
    if (share == shares.end() ||
        found.pod->ids_wanted(*share, question.resource) != static_cast<int64_t>(question.ids.size())) {
      return unavailable(
          fmt::format("the kubelet has recorded {} ids of {} for container {} of {}, whose manifest asks "
                      "for another number",
                      question.ids.size(), question.resource, exact_container, found.pod->pod.full_name()));
    }
    owner.containers.push_back(static_cast<size_t>(share - shares.begin()));
    std::sort(owner.containers.begin(), owner.containers.end());
  }
  if (owner.containers.empty()) {
    return unavailable(
        fmt::format("the kubelet's record of {} holds some of the device ids and no container of it asks "
                    "for {} of {}",
                    found.pod->pod.full_name(), question.ids.size(), question.resource));
  }
  return owner;
}

Result<Owner> find_in_checkpoint(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates,
                                 const std::vector<CheckpointEntry>& entries) {
  std::string uid;
  std::set<std::string> containers;
  for (const CheckpointEntry& entry : entries) {
    if (entry.resource != question.resource || entry.ids != question.ids) continue;
    if (!uid.empty() && uid != entry.pod_uid) {
      return unavailable(fmt::format("the kubelet's checkpoint has the same device ids of {} for the pods {} and {}",
                                     question.resource, uid, entry.pod_uid));
    }
    uid = entry.pod_uid;
    containers.insert(entry.container);
  }
  if (uid.empty()) return nobody(question, "checkpoint");
  for (const OwnerCandidate& candidate : candidates) {
    if (candidate.pod->pod.uid != uid) continue;
    Owner owner{candidate.pod, {}, true};
    const auto& shares = candidate.pod->request.shares;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (containers.contains(shares[i].name) &&
          candidate.pod->ids_wanted(shares[i], question.resource) == static_cast<int64_t>(question.ids.size()))
        owner.containers.push_back(i);
    }
    if (!owner.containers.empty()) return owner;
    return unavailable(
        fmt::format("the kubelet's checkpoint has {} ids of {} for {}, no container of which asks for "
                    "that number",
                    question.ids.size(), question.resource, candidate.pod->pod.full_name()));
  }
  return unavailable(
      fmt::format("the device ids belong to the pod with UID {}, which the API server has not shown to "
                  "this agent yet",
                  uid));
}

Result<Owner> confirm_owner(const OwnerQuestion& question, Owner owner, const std::vector<CheckpointEntry>& entries) {
  std::set<std::string> containers;
  for (const CheckpointEntry& entry : entries) {
    if (entry.resource != question.resource || entry.ids != question.ids) continue;
    if (entry.pod_uid != owner.pod->pod.uid) {
      return unavailable(
          fmt::format("the kubelet has the device ids for the pod with UID {}, its record by name leads "
                      "to {} with UID {}; waiting until that is one pod",
                      entry.pod_uid, owner.pod->pod.full_name(), owner.pod->pod.uid));
    }
    containers.insert(entry.container);
  }
  std::vector<size_t> kept = owner.containers;
  std::erase_if(kept, [&](size_t i) { return !containers.contains(owner.pod->request.shares[i].name); });
  if (!kept.empty()) owner.containers = std::move(kept);
  return owner;
}

Result<Owner> find_by_request(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates,
                              const std::vector<RecordedPod>& everybody) {
  for (const RecordedPod& pod : everybody) {
    for (const RecordedContainer& container : pod.containers) {
      auto ids = container.ids.find(question.resource);
      if (ids == container.ids.end() || !overlap(ids->second, question.ids)) continue;
      return unavailable(
          fmt::format("the kubelet has recorded the device ids for {}/{}, which the API server has not "
                      "shown to this agent in that form yet",
                      pod.name_space, pod.name));
    }
  }
  std::optional<Owner> only;
  for (const OwnerCandidate& candidate : candidates) {
    std::vector<size_t> found = unrecorded_init(candidate, question);
    std::erase_if(found, [&](size_t i) { return ended_well(*candidate.pod, candidate.pod->request.shares[i].name); });
    if (found.empty()) continue;
    if (only) {
      return unavailable(
          fmt::format("the device ids may be of an init container of {} or of {}, and the kubelet's "
                      "checkpoint, which would tell, cannot be read",
                      only->pod->pod.full_name(), candidate.pod->pod.full_name()));
    }
    only = Owner{candidate.pod, std::move(found), false};
  }
  if (!only) return nobody(question, "record");
  return std::move(*only);
}

Owner narrow(const OwnerQuestion& question, Owner owner, const std::optional<RecordedPod>& record,
             const std::vector<const Slot*>& slots) {
  if (!record || owner.containers.size() < 2) return owner;
  const auto& shares = owner.pod->request.shares;
  const std::string& uid = owner.pod->pod.uid;
  for (size_t known = 0; known < shares.size(); ++known) {
    const std::vector<std::string>* ids = recorded_ids(*record, shares[known].name, question.resource);
    if (ids == nullptr) continue;
    auto last = std::find_if(slots.rbegin(), slots.rend(), [&](const Slot* slot) {
      return slot->ids == *ids && (!slot->owned() || slot->owner.pod_uid == uid);
    });
    if (last == slots.rend()) continue;
    const ptrdiff_t at = slots.rend() - last - 1;
    std::vector<size_t> kept;
    for (size_t position : owner.containers) {
      const ptrdiff_t place = at + static_cast<ptrdiff_t>(position) - static_cast<ptrdiff_t>(known);
      const bool there = place >= 0 && place < static_cast<ptrdiff_t>(slots.size());
      if (there && slots[static_cast<size_t>(place)]->ids == question.ids) kept.push_back(position);
    }
    if (!kept.empty()) owner.containers = std::move(kept);
    return owner;
  }
  return owner;
}

bool record_complete(const LocalPod& pod, const RecordedPod& record, const std::string& resource) {
  return std::all_of(pod.request.shares.begin(), pod.request.shares.end(), [&](const core::ContainerShare& share) {
    return share.role != core::ContainerRole::kMain || recorded_ids(record, share.name, resource) != nullptr;
  });
}

size_t starting_now(const Owner& owner) {
  for (size_t i = 0; i + 1 < owner.containers.size(); ++i) {
    const core::ContainerShare& share = owner.pod->request.shares[owner.containers[i]];
    if (share.role == core::ContainerRole::kInit && !ended_well(*owner.pod, share.name)) return i;
  }
  return owner.containers.size() - 1;
}

}  // namespace sluice::node
