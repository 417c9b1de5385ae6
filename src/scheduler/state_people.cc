// The state as people see it: /debug/state and `sluice explain POD`.
#include <fmt/format.h>

#include <algorithm>

#include "core/place.h"
#include "scheduler/state.h"

namespace sluice::scheduler {
namespace {

// Time for kube-scheduler to ask us; a pod that it has not brought by then was refused by sums.
constexpr int64_t kUnreachedAfterMs = 2'000;
constexpr int64_t kTellPeriodMs = 10'000;  // in a busy cluster the reason changes with every other pod
// Pods looked at in one call: each goes through the whole cluster, and in a busy one every call finds a new state.
constexpr size_t kLooksPerCall = 10;

json::Object card_json(const core::Card& card) {
  return {{"index", card.index},
          {"uuid", card.uuid},
          {"model", card.model},
          {"units", card.units},
          {"free_units", card.free_units},
          {"free_core_percent", card.free_core_milli / 10},
          {"pods", card.pods},
          {"healthy", card.healthy}};
}

}  // namespace

std::string State::never_fits(const core::Request& request) {
  std::lock_guard lock(mutex_);
  core::RefusalSummary summary;
  for (const auto& [name, entry] : nodes_) {
    if (entry.base.cards.empty()) continue;
    std::optional<core::Refusal> why = core::refusal(entry.base, request);
    if (!why || !why->never()) return "";
    summary.add(*why);
  }
  return summary.empty() ? "" : summary.text(unit_name());
}

std::vector<State::Unreached> State::unreached_pods(int64_t now_ms) {
  std::lock_guard lock(mutex_);
  uint64_t generation = cluster_.generation();
  std::vector<PodEntry*> waiting;
  for (const std::string& uid : pending_) {
    PodEntry& pod = pods_.at(uid);
    bool waits =
        pod.holding == Holding::kNothing && !pod.refused && !pod.pod.deleting && !pod.pod.gated && pod.pod.asks();
    if (!waits) continue;
    if (pod.first_seen_ms == 0) pod.first_seen_ms = now_ms;
    if (now_ms < pod.next_look_ms || now_ms - pod.first_seen_ms < kUnreachedAfterMs ||
        pod.looked_at_generation == generation)
      continue;
    waiting.push_back(&pod);
  }
  // Whoever was looked at longest ago first.
  size_t looks = std::min(waiting.size(), kLooksPerCall);
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(looks), waiting.end(),
                    [](const PodEntry* a, const PodEntry* b) {
                      return a->looked_at_generation.value_or(0) < b->looked_at_generation.value_or(0);
                    });
  waiting.resize(looks);
  std::vector<Unreached> out;
  for (PodEntry* pod : waiting) {
    pod->looked_at_generation = generation;
    std::string text;
    pod->unreached_rule.clear();
    if (!pod->request.ok()) {
      text = pod->request.error().message;
      pod->unreached_rule = "request";
    } else if (!cluster_.decide(pod->request->total)) {
      core::RefusalSummary why = cluster_.explain(pod->request->total);
      text = why.text(unit_name());
      pod->unreached_rule = why.empty() ? "no-cards" : core::to_string(why.by_rule().front().rule);
    } else if (text = sum_shortage_everywhere(pod->request->total); !text.empty()) {
      pod->unreached_rule = "node-sum";
    }
    if (text.empty() || text == pod->told) continue;
    pod->told = text;
    pod->next_look_ms = now_ms + kTellPeriodMs;
    out.push_back({{pod->pod.uid, pod->pod.name_space, pod->pod.name}, text});
  }
  return out;
}

json::Object State::describe() const {
  std::lock_guard lock(mutex_);
  json::Array nodes;
  std::vector<std::string> names;
  for (const auto& [name, node] : nodes_) names.push_back(name);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const NodeEntry& entry = nodes_.at(name);
    if (entry.base.cards.empty() && entry.problem.empty()) continue;  // no cards: nothing to say
    json::Array cards;
    for (const core::Card& card : cluster_.node(entry.id).cards) cards.push_back(card_json(card));
    json::Array holders;
    for (const std::string& uid : entry.holders) {
      const PodEntry& pod = pods_.at(uid);
      json::Array held;
      for (const core::Share& share : pod.placement.shares) {
        held.push_back(
            json::Object{{"card", share.card_index}, {"units", share.units}, {"core_percent", share.core_milli / 10}});
      }
      json::Object one{{"pod", pod.pod.full_name()},
                       {"uid", uid},
                       {"holding", pod.holding == Holding::kAssumed ? "assumed" : "bound"},
                       {"shares", std::move(held)}};
      if (pod.worst_case) one["counted_on_every_card_because"] = pod.untrusted;
      holders.push_back(std::move(one));
    }
    json::Object node{{"name", name},
                      {"mode", core::to_string(entry.base.mode)},
                      {"cards", std::move(cards)},
                      {"pods", std::move(holders)}};
    if (!entry.problem.empty()) node["problem"] = entry.problem;
    nodes.push_back(std::move(node));
  }
  json::Array waiting;
  for (const auto& [uid, pod] : pods_) {
    if (std::string rule = waiting_rule(pod); !rule.empty())
      waiting.push_back(json::Object{{"pod", pod.pod.full_name()}, {"uid", uid}, {"rule", rule}});
  }
  return {{"generation", cluster_.generation()}, {"nodes", std::move(nodes)}, {"waiting", std::move(waiting)}};
}

Result<json::Object> State::explain(const std::string& name_space, const std::string& name) {
  std::lock_guard lock(mutex_);
  const PodEntry* pod = nullptr;
  for (const auto& [uid, entry] : pods_) {
    if (entry.pod.name_space == name_space && entry.pod.name == name) pod = &entry;
  }
  if (pod == nullptr) return not_found(fmt::format("no live pod {}/{} is known", name_space, name));
  json::Object out{{"pod", pod->pod.full_name()}, {"uid", pod->pod.uid}};
  if (!pod->request.ok()) {
    out["state"] = "refused everywhere";
    out["reason"] = pod->request.error().message;
    return out;
  }
  if (pod->request->total.kind == core::Kind::kNone) {
    out["state"] = "asks for no shared card";
    return out;
  }
  if (pod->holding != Holding::kNothing) {
    out["state"] = pod->holding == Holding::kBound ? "bound" : "being bound";
    out["node"] = pod->node_name;
    if (!pod->untrusted.empty()) out["problem"] = pod->untrusted;
    if (!pod->adoption_told.empty()) {
      out["state"] = "bound without Sluice and waiting for a card";
      out["reason"] = pod->adoption_told;
    }
    return out;
  }
  const core::Request& request = pod->request->total;
  json::Array nodes;
  size_t fitting = 0;
  std::string unit = unit_name();
  for (const auto& [node_name, entry] : nodes_) {
    if (entry.base.cards.empty() && entry.problem.empty()) continue;
    std::optional<core::Refusal> why = core::refusal(cluster_.node(entry.id), request);
    if (!why) {
      if (std::string shortage = sum_shortage(entry, request); !shortage.empty()) {
        nodes.push_back(json::Object{{"node", node_name}, {"fits", false}, {"reason", shortage}});
        continue;
      }
      ++fitting;
      nodes.push_back(json::Object{{"node", node_name}, {"fits", true}});
      continue;
    }
    json::Object one{{"node", node_name}, {"fits", false}, {"reason", core::to_text(*why, unit)}};
    if (!why->never()) {  // whose leaving would help: lower priority only, as preemption would choose
      json::Array helpers;
      for (const std::string& uid : choose_victims(pod->pod, *pod->request, entry, {})) {
        helpers.push_back(json::Value(pods_.at(uid).pod.full_name()));
      }
      if (!helpers.empty()) one["would_fit_without"] = std::move(helpers);
    }
    nodes.push_back(std::move(one));
  }
  out["state"] = fitting > 0 ? "fits; waiting for kube-scheduler to try again, or kept by something that is not a card"
                             : "waiting: no node has a fitting card";
  if (fitting == 0) {
    std::string shortage = sum_shortage_everywhere(request);
    out["reason"] = shortage.empty() ? cluster_.explain(request).text(unit) : shortage;
  }
  out["nodes"] = std::move(nodes);
  return out;
}

}  // namespace sluice::scheduler
