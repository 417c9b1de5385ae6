// The questions that kube-scheduler asks, answered from the state: filter, prioritize, bind, preempt.
#include <fmt/format.h>

#include <algorithm>

#include "core/place.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

// Of memory, in texts.
std::string State::unit_name() const {
  int64_t unit_mib = settings_.nodes.unit_mib;
  return unit_mib == 1024 ? "GiB" : unit_mib == 1 ? "MiB" : fmt::format("units of {} MiB", unit_mib);
}

FilterAnswer State::refuse_all(const std::vector<std::string_view>& names, const std::string& reason) const {
  FilterAnswer answer;
  answer.summary = reason;
  answer.texts.push_back(reason);
  answer.unresolvable.reserve(names.size());
  for (std::string_view name : names) answer.unresolvable.emplace_back(name, answer.texts.back());
  return answer;
}

void State::remember_refusal(const kube::Pod& pod, const std::string& rule, size_t names) {
  auto found = pods_.find(pod.uid);
  if (found == pods_.end()) {
    // Asked before the watch brought it, or after it brought the end: only the watch says which pods there are.
    if (early_refusals_.size() >= kMaxEarlyRefusals) early_refusals_.clear();
    early_refusals_[pod.uid] = {rule, names};
    return;
  }
  found->second.refused = true;
  found->second.refused_rule = rule;
  found->second.refused_names = names;
}

FilterAnswer State::filter(const kube::Pod& pod, const std::vector<std::string_view>& node_names) {
  std::lock_guard lock(mutex_);
  Result<core::PodRequest> request = core::parse_pod(pod.text);
  if (!request) {
    remember_refusal(pod, "request", node_names.size());
    return refuse_all(node_names, request.error().message);
  }
  FilterAnswer answer;
  if (request->total.kind == core::Kind::kNone) {
    answer.nodes = node_names;
    return answer;
  }
  std::span<const int64_t> keys = cluster_.keys(request->total);
  std::vector<std::pair<int64_t, std::string_view>> fitting;
  for (std::string_view name : node_names) {
    auto node = nodes_.find(name);
    if (node == nodes_.end() || keys[node->second.id] == core::Cluster::kRefused) continue;
    std::optional<core::Node> crowded = with_nominated(name, pod);
    if (crowded && core::refusal(*crowded, request->total)) continue;
    fitting.emplace_back(keys[node->second.id], name);
  }
  if (fitting.empty()) return give_reasons(pod, request->total, node_names);

  size_t keep = settings_.max_names == 0 ? fitting.size() : std::min(fitting.size(), settings_.max_names);
  std::partial_sort(fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(keep), fitting.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < keep; ++i) answer.nodes.push_back(fitting[i].second);
  if (auto found = pods_.find(pod.uid); found != pods_.end()) found->second.refused = false;
  return answer;
}

// One text per rule over all nodes of the call, so that equal refusals form one group and the text stays the same
// while nothing changes: kube-scheduler patches the pod at every new text, and that patch wakes the pod again.
FilterAnswer State::give_reasons(const kube::Pod& pod, const core::Request& request,
                                 const std::vector<std::string_view>& names) {
  core::RefusalSummary summary;
  std::vector<std::pair<std::string_view, core::Refusal>> refusals;
  std::vector<std::string_view> unknown;
  refusals.reserve(names.size());
  for (std::string_view name : names) {
    auto node = nodes_.find(name);
    if (node == nodes_.end()) {
      unknown.push_back(name);
      continue;
    }
    std::optional<core::Refusal> why = core::refusal(cluster_.node(node->second.id), request);
    if (!why) {
      std::optional<core::Node> crowded = with_nominated(name, pod);
      why = crowded ? core::refusal(*crowded, request) : std::nullopt;
    }
    if (!why) continue;
    summary.add(*why);
    refusals.emplace_back(name, *why);
  }
  FilterAnswer answer;
  std::string unit = unit_name();
  for (const core::Refusal& best : summary.by_rule()) answer.texts.push_back(core::to_text(best, unit));
  answer.unresolvable.reserve(refusals.size());
  for (const auto& [name, why] : refusals) {
    size_t at = 0;
    while (summary.by_rule()[at].rule != why.rule ||
           (why.rule == core::Rule::kMode && summary.by_rule()[at].mode != why.mode)) {
      ++at;
    }
    // In-tree filters have passed the node's sum, so what is short is a card: preemption finds no victims by sums and
    // loops. Only the node that this pod is nominated to, where its victims are leaving, stays resolvable.
    bool resolvable = name == pod.nominated_node && !why.never();
    (resolvable ? answer.failed : answer.unresolvable).emplace_back(name, answer.texts[at]);
  }
  answer.texts.push_back("node: not known to the Sluice scheduler yet");
  for (std::string_view name : unknown) answer.failed.emplace_back(name, answer.texts.back());
  answer.summary = summary.text(unit);
  remember_refusal(pod, summary.empty() ? "unknown-node" : core::to_string(summary.by_rule().front().rule),
                   names.size());
  return answer;
}

std::vector<std::pair<std::string_view, int64_t>> State::rank(const kube::Pod& pod,
                                                              const std::vector<std::string_view>& node_names) {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string_view, int64_t>> out;
  Result<core::PodRequest> request = core::parse_pod(pod.text);
  std::vector<std::pair<int64_t, std::string_view>> order;
  if (request && request->total.kind != core::Kind::kNone) {
    std::span<const int64_t> keys = cluster_.keys(request->total);
    for (std::string_view name : node_names) {
      auto node = nodes_.find(name);
      order.emplace_back(node == nodes_.end() ? core::Cluster::kRefused : keys[node->second.id], name);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  } else {
    for (std::string_view name : node_names) order.emplace_back(0, name);
  }
  int64_t position = -1;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order[i].first != order[i - 1].first) ++position;
    out.emplace_back(order[i].second, position);
  }
  return out;
}

std::vector<std::string> State::container_names(const kube::Pod& pod) {
  std::vector<std::string> names;
  for (const core::ContainerText& container : pod.text.containers) {
    if (container.role == core::ContainerRole::kMain) names.push_back(container.name);
  }
  return names;
}

Result<BindPlan> State::plan_bind(const std::string& uid, const std::string& node_name) {
  std::lock_guard lock(mutex_);
  auto found = pods_.find(uid);
  if (found == pods_.end()) return not_found("the pod is not known");
  PodEntry& pod = found->second;
  if (pod.binding) return Error{ErrorCode::kExists, "a binding of this pod is on its way"};
  if (pod.holding != Holding::kNothing) {
    return Error{ErrorCode::kExists, fmt::format("the pod is bound to node {} already", pod.node_name)};
  }
  if (!pod.request.ok()) return pod.request.error();
  auto node = nodes_.find(node_name);
  if (node == nodes_.end()) return not_found(fmt::format("node {} is not known", node_name));
  std::string unit = unit_name();
  core::Node state = cluster_.node(node->second.id);
  if (std::optional<core::Refusal> why = core::refusal(state, pod.request->total); why) {
    return exhausted(core::to_text(*why, unit));
  }
  core::Placement placement;
  if (std::optional<core::Node> crowded = with_nominated(node_name, pod.pod); crowded) {
    Result<core::Placed> placed =
        core::place(std::span<const core::Node>(&*crowded, 1), pod.request->total, settings_.policy, unit);
    if (!placed) return std::move(placed).error();
    placement = placed->placement;
  } else {
    std::optional<core::Decision> decision = cluster_.decide_on(node->second.id, pod.request->total);
    if (!decision) return internal("the node was refused and accepted in the same state");
    placement = decision->placement;
  }
  BindPlan plan{state, *pod.request, placement, container_names(pod.pod), pod.pod.resource_version};
  pod.placement = placement;
  pod.worst_case = false;
  pod.binding = true;
  hold(pod, Holding::kAssumed, node_name);
  return plan;
}

void State::bind_refused(const std::string& uid) {
  std::lock_guard lock(mutex_);
  auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  found->second.binding = false;
  if (found->second.holding == Holding::kAssumed) let_go(found->second);
}

void State::bind_finished(const std::string& uid) {
  std::lock_guard lock(mutex_);
  if (auto found = pods_.find(uid); found != pods_.end()) found->second.binding = false;
}

// Higher priority first, then the older pod: the order in which kube-scheduler lists victims.
bool State::more_important(const std::string& a, const std::string& b) const {
  auto pod_a = pods_.find(a);
  auto pod_b = pods_.find(b);
  if (pod_a == pods_.end() || pod_b == pods_.end()) return pod_b == pods_.end() && (pod_a != pods_.end() || a < b);
  const kube::Pod& first = pod_a->second.pod;
  const kube::Pod& second = pod_b->second.pod;
  if (first.priority != second.priority) return first.priority > second.priority;
  if (first.created_at != second.created_at) return first.created_at < second.created_at;
  return a < b;
}

// Keeps the proposed victims that hold none of our cards (CPU, memory or pod count need them), then looks for the
// fewest, least important pods of lower priority on one set of cards whose leaving lets the request fit. Empty: none.
std::vector<std::string> State::choose_victims(const kube::Pod& pod, const core::PodRequest& request,
                                               const NodeEntry& node, const Victims& proposed,
                                               const std::vector<std::string>& before) const {
  std::set<std::string> leaving;
  std::vector<std::string> candidates;
  for (const std::string& uid : proposed.uids) {
    if (!node.holders.contains(uid)) leaving.insert(uid);  // holds no card of ours
  }
  for (const std::string& uid : node.holders) {
    if (pods_.at(uid).pod.priority < pod.priority) candidates.push_back(uid);
  }
  std::sort(candidates.begin(), candidates.end(),
            [this](const auto& a, const auto& b) { return more_important(b, a); });
  std::set<std::string> gone = leaving;
  gone.insert(candidates.begin(), candidates.end());
  if (core::refusal(node_state(node, gone), request.total)) return {};
  // Give back whoever is not needed, those whose eviction breaks a disruption budget first, then the most important
  // first: the survivors share the cards that have to be freed. Victims of an earlier answer last: kube-scheduler
  // evicts one after another and may ask again in between, while budgets do not show the first eviction yet.
  std::vector<const kube::Pod*> pods;
  for (const std::string& uid : candidates) pods.push_back(&pods_.at(uid).pod);
  std::vector<bool> breaks = violations(pods, budgets_);
  auto chosen_before = [&before](const std::string& uid) {
    return std::find(before.begin(), before.end(), uid) != before.end();
  };
  for (auto [again, breaking] : {std::pair{false, true}, {false, false}, {true, true}, {true, false}}) {
    for (size_t i = candidates.size(); i-- > 0;) {
      if (breaks[i] != breaking || chosen_before(candidates[i]) != again || !gone.contains(candidates[i])) continue;
      gone.erase(candidates[i]);
      if (core::refusal(node_state(node, gone), request.total)) gone.insert(candidates[i]);
    }
  }
  std::vector<std::string> victims(gone.begin(), gone.end());
  std::sort(victims.begin(), victims.end(), [this](const auto& a, const auto& b) { return more_important(a, b); });
  return victims;
}

int64_t State::count_violations(const std::vector<std::string>& uids) const {
  std::vector<const kube::Pod*> pods;
  for (const std::string& uid : uids) {
    if (auto found = pods_.find(uid); found != pods_.end()) pods.push_back(&found->second.pod);
  }
  std::vector<bool> breaks = violations(pods, budgets_);
  return std::count(breaks.begin(), breaks.end(), true);
}

std::map<std::string, State::Victims> State::preempt(const kube::Pod& pod,
                                                     const std::map<std::string, Victims>& proposed) {
  std::lock_guard lock(mutex_);
  Result<core::PodRequest> request = core::parse_pod(pod.text);
  if (!request) return {};
  if (request->total.kind == core::Kind::kNone) return proposed;
  std::map<std::string, Victims> out;
  for (const auto& [name, victims] : proposed) {
    auto node = nodes_.find(name);
    if (node == nodes_.end()) continue;
    auto asker = pods_.find(pod.uid);
    std::vector<std::string> before;
    if (asker != pods_.end()) before = asker->second.victims[name];
    std::vector<std::string> chosen = choose_victims(pod, *request, node->second, victims, before);
    if (chosen.empty()) continue;
    if (asker != pods_.end()) asker->second.victims[name] = chosen;
    int64_t broken = count_violations(chosen);
    out[name] = {std::move(chosen), broken};
  }
  return out;
}

}  // namespace sluice::scheduler
