// Pods bound without us, by spec.nodeName or by another scheduler: which of them may be given cards, and which cards.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/place.h"
#include "scheduler/state.h"

namespace sluice::scheduler {
namespace {

constexpr size_t kLooksPerCall = 64;
constexpr int64_t kTellPeriodMs = 10'000;

}  // namespace

// Who may still be given cards: nothing of it runs and no record of it was ever seen. A pod that lost its record may
// hold cards on its node by the record that it had.
bool State::is_orphan(const PodEntry& entry) const {
  const kube::Pod& pod = entry.pod;
  return !pod.node_name.empty() && !entry.untrusted.empty() && verifier_.has_value() && pod.asks() &&
         !entry.record_seen && !pod.started && !pod.deleting;
}

// Other orphans hold no card in truth, so they do not stand in the way; one whose PATCH is on its way may.
State::Orphan State::look_at_orphan(PodEntry& entry) const {
  Orphan out{{entry.pod.uid, entry.pod.name_space, entry.pod.name},
             entry.pod.node_name,
             entry.pod.resource_version,
             std::nullopt,
             ""};
  if (!entry.request.ok()) {
    out.reason = entry.request.error().message;
    return out;
  }
  auto node = nodes_.find(entry.pod.node_name);
  if (node == nodes_.end()) return out;  // its agent has not shown itself yet: nothing to say
  std::set<std::string> without{entry.pod.uid};
  for (const std::string& uid : node->second.holders) {
    if (orphans_.contains(uid) && !pods_.at(uid).being_adopted) without.insert(uid);
  }
  core::Node state = node_state(node->second, without);
  std::string unit = unit_name();
  if (std::optional<core::Refusal> why = core::refusal(state, entry.request->total); why) {
    out.reason = core::to_text(*why, unit);
    return out;
  }
  Result<core::Placed> placed =
      core::place(std::span<const core::Node>(&state, 1), entry.request->total, settings_.policy, unit);
  if (!placed) {
    out.reason = placed.error().message;
    return out;
  }
  out.plan = BindPlan{std::move(state), *entry.request, placed->placement, container_names(entry.pod),
                      entry.pod.resource_version};
  return out;
}

std::optional<State::Orphan> State::next_orphan(int64_t now_ms) {
  std::lock_guard lock(mutex_);
  uint64_t generation = cluster_.generation();
  for (size_t looks = 0; looks < kLooksPerCall; ++looks) {
    PodEntry* next = nullptr;
    auto turn = [](const PodEntry& entry) {
      return std::tuple(entry.adoption_generation.value_or(0), std::string_view(entry.pod.created_at),
                        std::string_view(entry.pod.uid));
    };
    for (const std::string& uid : orphans_) {
      PodEntry& entry = pods_.at(uid);
      bool to_tell = entry.adoption_tell_ms != 0 && now_ms >= entry.adoption_tell_ms;
      bool looked_at = entry.adoption_generation == generation && entry.next_adoption_ms == 0 && !to_tell;
      if (entry.being_adopted || looked_at || now_ms < entry.next_adoption_ms) continue;
      if (next == nullptr || turn(entry) < turn(*next)) next = &entry;
    }
    if (next == nullptr) break;
    next->adoption_generation = generation;
    next->next_adoption_ms = 0;
    Orphan orphan = look_at_orphan(*next);
    if (orphan.plan) {
      next->being_adopted = true;
      next->adoption_told.clear();
      return orphan;
    }
    bool too_early = now_ms < next->adoption_tell_ms;
    if (!too_early) next->adoption_tell_ms = 0;
    if (orphan.reason.empty() || orphan.reason == next->adoption_told) continue;
    if (too_early) continue;  // looked at again when it may be told
    next->adoption_told = orphan.reason;
    next->adoption_tell_ms = now_ms + kTellPeriodMs;
    return orphan;
  }
  return std::nullopt;
}

void State::adoption_ended(const std::string& uid, int64_t retry_at_ms) {
  std::lock_guard lock(mutex_);
  auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  found->second.being_adopted = false;
  found->second.next_adoption_ms = retry_at_ms;
}

}  // namespace sluice::scheduler
