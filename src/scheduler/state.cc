#include "scheduler/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/place.h"

namespace sluice::scheduler {
namespace {

constexpr int64_t kWakeBackoffMinMs = 1'000;
constexpr int64_t kWakeBackoffMaxMs = 60'000;
constexpr int64_t kQuickWakeMs = 50;  // between two wakes while kube-scheduler works through the cluster in parts
constexpr size_t kMaxParts = 20;      // it looks at no less than 5 % of the nodes at a time

std::string uid_of(const json::Value& object) {
  if (!object.is_object()) return "";
  const json::Value* metadata = object.get_object().if_contains("metadata");
  if (metadata == nullptr || !metadata->is_object()) return "";
  Result<std::string> uid = json::get_string_or(metadata->get_object(), "uid", "");
  return uid ? *uid : "";
}

// Takes a share off a card without going below nothing: pods bound without us may have overcommitted it.
void charge(core::Node& node, const core::Placement& placement, bool every_card) {
  for (core::Card& card : node.cards) {
    for (const core::Share& share : placement.shares) {
      if (!every_card && share.card_index != card.index) continue;
      card.free_units = std::max<int64_t>(0, card.free_units - share.units);
      card.free_core_milli = std::max(0, card.free_core_milli - share.core_milli);
      ++card.pods;
      break;
    }
  }
}

}  // namespace

State::State(StateSettings settings, std::optional<kube::Verifier> verifier)
    : settings_(std::move(settings)),
      verifier_(std::move(verifier)),
      cluster_(core::make_scorer(settings_.policy)),
      learner_(settings_.policy) {}

void State::replace_nodes(const json::Array& items) {
  std::lock_guard lock(mutex_);
  std::set<std::string> seen;
  for (const json::Value& item : items) {
    Result<kube::NodeDescription> described = kube::decode_node(item, settings_.nodes);
    if (described) seen.insert(described->node.name);
    put_node(item);
  }
  std::vector<std::string> gone;
  for (const auto& [name, node] : nodes_) {
    if (!seen.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) remove_node(name);
  nodes_listed_ = true;
}

void State::node_changed(const json::Value& object) {
  std::lock_guard lock(mutex_);
  put_node(object);
}

void State::node_deleted(const std::string& name) {
  std::lock_guard lock(mutex_);
  remove_node(name);
}

void State::put_node(const json::Value& object) {
  Result<kube::NodeDescription> described = kube::decode_node(object, settings_.nodes);
  if (!described) return;  // an object without a name: not from an API server
  std::string name = described->node.name;
  auto [position, added] = nodes_.try_emplace(name);
  NodeEntry& entry = position->second;
  entry.allocatable_units = described->allocatable_units;
  entry.allocatable_core_percent = described->allocatable_core_percent;
  if (!added && entry.base == described->node && entry.problem == described->problem) return;  // a heartbeat
  entry.base = std::move(described->node);
  entry.problem = std::move(described->problem);
  if (added) {
    Result<core::NodeId> id = cluster_.add(entry.base, next_rank_++);
    if (!id) {  // more nodes than the placement core takes
      nodes_.erase(position);
      return;
    }
    entry.id = *id;
    for (auto& [uid, pod] : pods_) {
      if (pod.holding != Holding::kNothing && pod.node_name == name) entry.holders.insert(uid);
    }
  }
  // Records name cards of this node: a pod that could not be counted before may be now, and the reverse.
  std::set<std::string> holders = entry.holders;
  for (const std::string& uid : holders) {
    PodEntry& pod = pods_.at(uid);
    if (pod.holding == Holding::kBound) settle(pod);
  }
  recompute(name);
}

void State::remove_node(const std::string& name) {
  auto found = nodes_.find(name);
  if (found == nodes_.end()) return;
  cluster_.remove(found->second.id);
  nodes_.erase(found);
}

void State::replace_pods(const json::Array& items) {
  std::lock_guard lock(mutex_);
  std::set<std::string> seen;
  for (const json::Value& item : items) {
    seen.insert(uid_of(item));
    if (Result<kube::Pod> pod = kube::decode_pod(item); pod) put_pod(*std::move(pod));
  }
  std::vector<std::string> gone;
  for (const auto& [uid, entry] : pods_) {
    if (!seen.contains(uid) && !entry.binding) gone.push_back(uid);
  }
  for (const std::string& uid : gone) remove_pod(uid);
  pods_listed_ = true;
}

void State::pod_changed(const json::Value& object) {
  Result<kube::Pod> pod = kube::decode_pod(object);
  std::lock_guard lock(mutex_);
  if (pod) put_pod(*std::move(pod));
}

void State::pod_deleted(const std::string& uid) {
  std::lock_guard lock(mutex_);
  remove_pod(uid);
}

void State::learn_pod(const kube::Pod& pod) {
  std::lock_guard lock(mutex_);
  if (pods_.contains(pod.uid)) put_pod(pod);
}

void State::introduce_pod(const kube::Pod& pod) {
  std::lock_guard lock(mutex_);
  if (!gone_.contains(pod.uid)) put_pod(pod);
}

void State::pod_was_changed(const kube::Pod& pod, const std::string& base_version) {
  std::lock_guard lock(mutex_);
  auto known = pods_.find(pod.uid);
  if (known != pods_.end() && known->second.pod.resource_version == base_version) put_pod(pod);
}

void State::replace_budgets(const json::Array& items) {
  std::map<std::string, DisruptionBudget> fresh;
  for (const json::Value& item : items) {
    if (Result<DisruptionBudget> budget = decode_budget(item); budget)
      fresh[budget->name_space + "/" + budget->name] = *budget;
  }
  std::lock_guard lock(mutex_);
  budgets_ = std::move(fresh);
}

void State::budget_changed(const json::Value& object) {
  Result<DisruptionBudget> budget = decode_budget(object);
  if (!budget) return;
  std::lock_guard lock(mutex_);
  budgets_[budget->name_space + "/" + budget->name] = *budget;
}

void State::budget_deleted(const std::string& name_space, const std::string& name) {
  std::lock_guard lock(mutex_);
  budgets_.erase(name_space + "/" + name);
}

bool State::ready() const {
  std::lock_guard lock(mutex_);
  return nodes_listed_ && pods_listed_;
}

void State::put_pod(kube::Pod pod) {
  if (pod.uid.empty()) return;
  if (pod.terminal()) {
    remove_pod(pod.uid);
    return;
  }
  std::string uid = pod.uid;
  auto [position, added] = pods_.try_emplace(uid);
  PodEntry& entry = position->second;
  if (!added && entry.pod.nominated_node != pod.nominated_node) forget_nomination(entry.pod);
  // What is asked for hangs on a label too (the card count), which may change while the pod waits. Once a record was
  // seen it is settled: a label changed afterwards makes nothing less.
  bool same_request = entry.record_seen && entry.pod.asks() == pod.asks();
  entry.pod = std::move(pod);
  if (!same_request) entry.request = core::parse_pod(entry.pod.text);
  if (added && entry.request.ok()) {
    if (std::unique_ptr<core::Scorer> scorer = learner_.saw(entry.request->total)) {
      cluster_.replace_scorer(std::move(scorer));
    }
  }
  bool pending = entry.pod.node_name.empty();
  if (pending)
    pending_.insert(uid);
  else
    pending_.erase(uid);
  if (pending && !entry.pod.nominated_node.empty() && !entry.pod.deleting)
    nominated_[entry.pod.nominated_node].insert(uid);
  else
    forget_nomination(entry.pod);
  auto early = early_refusals_.find(uid);
  if (early != early_refusals_.end()) {
    entry.refused = true;
    std::tie(entry.refused_rule, entry.refused_names) = early->second;
    early_refusals_.erase(early);
  }
  if (!pending) {
    entry.refused = false;
    settle(entry);
  }
}

void State::remove_pod(const std::string& uid) {
  auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  if (gone_.insert(uid).second) gone_order_.push_back(uid);
  if (gone_order_.size() > kMaxGone) {
    gone_.erase(gone_order_.front());
    gone_order_.pop_front();
  }
  let_go(found->second);
  forget_nomination(found->second.pod);
  orphans_.erase(uid);
  pending_.erase(uid);
  pods_.erase(found);
}

void State::forget_nomination(const kube::Pod& pod) {
  auto node = nominated_.find(pod.nominated_node);
  if (node == nominated_.end()) return;
  node->second.erase(pod.uid);
  if (node->second.empty()) nominated_.erase(node);
}

// A bound pod holds what its record says if the record is authentic and names cards that are there; else the worst
// case.
void State::settle(PodEntry& entry) {
  count_bound(entry);
  if (is_orphan(entry))
    orphans_.insert(entry.pod.uid);
  else
    orphans_.erase(entry.pod.uid);
}

void State::count_bound(PodEntry& entry) {
  entry.untrusted.clear();
  if (entry.request.ok() && entry.request->total.kind == core::Kind::kNone) {
    let_go(entry);
    return;
  }
  const std::string& node_name = entry.pod.node_name;
  core::Placement placement;
  Result<kube::Allocation> record =
      verifier_ ? kube::read_allocation(entry.pod.annotations, entry.pod.uid, node_name, *verifier_)
                : Result<kube::Allocation>(internal("no public key is configured"));
  if (record) {  // also where labels have made nonsense of the request since: its cards are in use
    entry.record_seen = true;
    for (const kube::CardShare& card : record->cards)
      placement.shares.push_back({card.index, card.units, 0, card.core_milli});
    entry.untrusted = missing_card(*record, node_name);
  } else if (!entry.request.ok()) {
    if (entry.pod.asks()) entry.untrusted = "the request is invalid";
    let_go(entry);
    return;
  } else {
    entry.untrusted = record.error().message;
  }
  const bool worst_case = !entry.untrusted.empty();
  if (worst_case && entry.request.ok())
    placement.shares = {{0, entry.request->total.units, 0, entry.request->total.core_milli}};
  bool same = entry.holding == Holding::kBound && entry.node_name == node_name && entry.placement == placement &&
              entry.worst_case == worst_case;
  if (same) return;
  if (entry.holding != Holding::kNothing && entry.node_name != node_name) let_go(entry);
  entry.placement = std::move(placement);
  entry.worst_case = worst_case;
  hold(entry, Holding::kBound, node_name);
}

// What is wrong with a record that names cards which the node does not have; empty where all are there, and of a node
// that is not known yet.
std::string State::missing_card(const kube::Allocation& record, const std::string& node_name) const {
  auto node = nodes_.find(node_name);
  if (node == nodes_.end()) return "";
  const std::vector<core::Card>& cards = node->second.base.cards;
  for (const kube::CardShare& card : record.cards) {
    bool there = std::any_of(cards.begin(), cards.end(), [&](const core::Card& known) {
      return known.index == card.index && (known.uuid.empty() || known.uuid == card.uuid);
    });
    if (!there) return fmt::format("the record names card {} which the node does not have", card.uuid);
  }
  return "";
}

void State::hold(PodEntry& entry, Holding holding, const std::string& node_name) {
  entry.holding = holding;
  entry.node_name = node_name;
  if (auto node = nodes_.find(node_name); node != nodes_.end()) {
    node->second.holders.insert(entry.pod.uid);
    recompute(node_name);
  }
}

void State::let_go(PodEntry& entry) {
  if (entry.holding == Holding::kNothing) return;
  entry.holding = Holding::kNothing;
  if (auto node = nodes_.find(entry.node_name); node != nodes_.end()) {
    node->second.holders.erase(entry.pod.uid);
    recompute(entry.node_name);
  }
}

core::Node State::node_state(const NodeEntry& node, const std::set<std::string>& without) const {
  core::Node state = node.base;
  for (const std::string& uid : node.holders) {
    if (without.contains(uid)) continue;
    const PodEntry& pod = pods_.at(uid);
    charge(state, pod.placement, pod.worst_case);
  }
  return state;
}

// kube-scheduler's own filter adds up what the pods of a node ask for, whatever cards they hold, and compares the sum
// with allocatable. It is short while cards are free where pods were bound past every scheduler, more than the node has
// or on more cards than it has, and where a pod holds a card that fell sick. Empty: not short.
std::string State::sum_shortage(const NodeEntry& node, const core::Request& request) const {
  if (request.kind != core::Kind::kMemory && request.kind != core::Kind::kMemoryCore) return "";
  int64_t taken_units = 0;
  int64_t taken_percent = 0;
  for (const std::string& uid : node.holders) {
    const PodEntry& holder = pods_.at(uid);
    if (!holder.request.ok()) {  // a label changed since: what it holds is what it asked for
      for (const core::Share& share : holder.placement.shares) {
        taken_units += share.units;
        taken_percent += share.core_milli / 10;
      }
      continue;
    }
    const core::Request& held = holder.request->total;
    taken_units += held.units * held.cards;
    taken_percent += int64_t{held.core_milli} * held.cards / 10;
  }
  struct Sum {
    const char* name;
    std::optional<int64_t> allocatable;
    int64_t taken, needed;
  };
  for (const Sum& sum : {Sum{core::kResourceMemory, node.allocatable_units, taken_units, request.units * request.cards},
                         Sum{core::kResourceCore, node.allocatable_core_percent, taken_percent,
                             int64_t{request.core_milli} * request.cards / 10}}) {
    if (!sum.allocatable || sum.needed == 0 || sum.taken + sum.needed <= *sum.allocatable) continue;
    return fmt::format("{} of the node: needs {}, the pods bound there ask for {} of {} together", sum.name, sum.needed,
                       sum.taken, *sum.allocatable);
  }
  return "";
}

// For a request that fits some cards: empty where one such node's sums are not short, else the best node's shortage.
std::string State::sum_shortage_everywhere(const core::Request& request) {
  std::optional<core::Decision> decision = cluster_.decide(request);
  if (!decision) return "";
  auto best = nodes_.find(cluster_.node(decision->node).name);
  std::string shortage = best == nodes_.end() ? "" : sum_shortage(best->second, request);
  if (shortage.empty()) return "";
  bool elsewhere = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return !core::refusal(cluster_.node(node.second.id), request) && sum_shortage(node.second, request).empty();
  });
  return elsewhere ? "" : shortage;
}

void State::recompute(const std::string& node_name) {
  auto node = nodes_.find(node_name);
  if (node == nodes_.end()) return;
  core::Node state = node_state(node->second);
  if (!(state == cluster_.node(node->second.id))) (void)cluster_.update(node->second.id, std::move(state));
}

// The node with its nominated pods of at least the asker's priority placed on it; nullopt where there are none.
std::optional<core::Node> State::with_nominated(std::string_view node_name, const kube::Pod& asker) const {
  if (nominated_.empty()) return std::nullopt;
  auto nominated = nominated_.find(node_name);
  auto node = nodes_.find(node_name);
  if (nominated == nominated_.end() || nominated->second.empty() || node == nodes_.end()) return std::nullopt;
  std::optional<core::Node> out;
  for (const std::string& uid : nominated->second) {
    const PodEntry& other = pods_.at(uid);
    if (uid == asker.uid || other.pod.priority < asker.priority || !other.request.ok() ||
        other.request->total.kind == core::Kind::kNone || other.holding != Holding::kNothing) {
      continue;
    }
    if (!out) out = cluster_.node(node->second.id);
    Result<core::Placed> placed =
        core::place(std::span<const core::Node>(&*out, 1), other.request->total, settings_.policy);
    if (placed) charge(*out, placed->placement, false);
  }
  return out;
}

uint64_t State::generation() const {
  std::lock_guard lock(mutex_);
  return cluster_.generation();
}

// By which rule a pending pod waits, refused by us or, before it reached us, by sums; empty: it does not.
std::string State::waiting_rule(const PodEntry& pod) {
  if (!pod.pod.node_name.empty() || pod.holding != Holding::kNothing) return "";
  return pod.refused ? pod.refused_rule : pod.unreached_rule;
}

State::Counts State::counts() const {
  std::lock_guard lock(mutex_);
  Counts out;
  out.nodes = nodes_.size();
  out.pods = pods_.size();
  out.memory_bytes = cluster_.memory_bytes();
  for (const auto& [uid, pod] : pods_) {
    if (pod.holding == Holding::kAssumed) ++out.assumed;
    if (!pod.untrusted.empty() && !pod.pod.node_name.empty()) ++out.untrusted_records;
    if (std::string rule = waiting_rule(pod); !rule.empty()) ++out.waiting_by_rule[rule];
  }
  return out;
}

// How many lists of so many names kube-scheduler needs to have been through the nodes with cards; 0: one did.
size_t State::parts_of_cluster(size_t names) const {
  size_t with_cards = static_cast<size_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const auto& node) { return !node.second.base.cards.empty(); }));
  if (names == 0 || names >= with_cards) return 0;
  return std::min(with_cards / names + 1, kMaxParts);
}

// Refused by us; or by whoever led before us, of which the pod's condition tells. The latter may be kept by other
// things than cards, so it is woken a few times and no more.
bool State::waits_for_wake(const PodEntry& pod) {
  if (pod.holding != Holding::kNothing || pod.pod.deleting || pod.pod.gated || !pod.request.ok()) return false;
  return pod.refused || (pod.pod.unschedulable && pod.wakes_by_api > 0 && pod.request->total.kind != core::Kind::kNone);
}

std::vector<State::Waiting> State::pods_to_wake(int64_t now_ms, size_t at_most) {
  std::lock_guard lock(mutex_);
  // Whoever is due longest first: in a busy cluster those that something else keeps are due again every second, and
  // more of them than may be woken in a second would leave nothing for the rest.
  std::vector<PodEntry*> due;
  for (const std::string& uid : pending_) {
    PodEntry& pod = pods_.at(uid);
    if (waits_for_wake(pod) && now_ms >= pod.next_wake_ms) due.push_back(&pod);
  }
  std::stable_sort(due.begin(), due.end(),
                   [](const PodEntry* a, const PodEntry* b) { return a->next_wake_ms < b->next_wake_ms; });
  std::vector<Waiting> out;
  const uint64_t generation = cluster_.generation();
  for (PodEntry* next : due) {
    if (out.size() >= at_most) break;
    PodEntry& pod = *next;
    if (!cluster_.decide(pod.request->total) || !sum_shortage_everywhere(pod.request->total).empty()) {
      pod.fitted_nowhere = true;
      continue;
    }
    // A list that named only a part of the cluster: kube-scheduler goes on with the next part at each attempt, so the
    // pod is woken at once until it has been through. After that something else keeps it (CPU, a taint), and in the
    // same state of the cluster it is woken ever more rarely.
    if (std::exchange(pod.fitted_nowhere, false)) pod.quick_wakes = parts_of_cluster(pod.refused_names);
    bool news = pod.woken_generation != generation;
    pod.wake_backoff_ms = pod.quick_wakes > 0 ? kQuickWakeMs
                          : news              ? kWakeBackoffMinMs
                                 : std::clamp(pod.wake_backoff_ms * 2, kWakeBackoffMinMs, kWakeBackoffMaxMs);
    if (pod.quick_wakes > 0) --pod.quick_wakes;
    if (!pod.refused) --pod.wakes_by_api;
    pod.next_wake_ms = now_ms + pod.wake_backoff_ms;
    pod.woken_generation = generation;
    out.push_back({pod.pod.uid, pod.pod.name_space, pod.pod.name});
  }
  return out;
}

}  // namespace sluice::scheduler
