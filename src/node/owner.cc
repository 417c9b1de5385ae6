#include "node/owner.h"

#include <fmt/format.h>

#include <algorithm>

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

// Ids that no record shows: the oldest pod with an init container of this size that has not run.
Result<Owner> by_request(const OwnerQuestion& question, const std::vector<OwnerCandidate>& candidates) {
  const OwnerCandidate* oldest = nullptr;
  std::vector<size_t> containers;
  for (const OwnerCandidate& candidate : candidates) {
    std::vector<size_t> found = unrecorded_init(candidate, question);
    std::erase_if(found, [&](size_t i) { return ended_well(*candidate.pod, candidate.pod->request.shares[i].name); });
    if (found.empty()) continue;
    const kube::Pod& pod = candidate.pod->pod;
    if (oldest != nullptr) {
      const kube::Pod& other = oldest->pod->pod;
      if (std::tie(other.created_at, other.uid) <= std::tie(pod.created_at, pod.uid)) continue;
    }
    oldest = &candidate;
    containers = std::move(found);
  }
  if (oldest == nullptr) {
    return not_found(fmt::format("the kubelet's record names no pod that holds {} ids of {} from {} on",
                                 question.ids.size(), question.resource,
                                 question.ids.empty() ? "none" : question.ids.front()));
  }
  return Owner{oldest->pod, std::move(containers)};
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
  if (exact == nullptr && partly == nullptr) return by_request(question, candidates);
  const OwnerCandidate& found = exact != nullptr ? *exact : *partly;
  Owner owner{found.pod, unrecorded_init(found, question)};
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
