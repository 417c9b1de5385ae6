// What the scheduler knows: nodes, pods and who holds which card, kept equal to the API by the two watches and ahead of
// it by the binds that are on their way. Every question of kube-scheduler is answered from here; nothing here does I/O.
//
// What counts as taken on a node: pods bound to it until they are gone or terminal; pods we have sent a Binding for
// (assumed) until the watch shows them or the API server has definitely refused; a bound pod whose record cannot be
// trusted, at its worst case: its request on every card, since it may be on any. A node is always worked out anew from
// its description and its pods (at most some dozens), so that no sequence of events can leave a remainder.
//
// A pod bound without us (spec.nodeName, another scheduler) has no record and none of its containers starts, since
// agents give cards for authentic records alone. It is given cards later (adoption) if some fit. A pod whose record was
// seen once, or whose containers run, is never adopted: it may have cards that its record no longer shows.
//
// Pending pods of equal or higher priority that are nominated to a node are counted when that node is asked about:
// kube-scheduler's own filters do so and extenders are not told.
//
// Thread-safe: one mutex, held for microseconds, for milliseconds where a question names thousands of nodes or a person
// asks; no callbacks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "core/cluster.h"
#include "kube/allocation.h"
#include "kube/objects.h"
#include "scheduler/disruption.h"
#include "scheduler/workload_learner.h"

namespace sluice::scheduler {

struct StateSettings {
  kube::NodeSettings nodes;
  core::Policy policy;
  size_t max_names = 100;  // best nodes that a filter returns; 0: all
};

// Thousands of names and a handful of reasons: names point into the question, which must outlive the answer, and
// reasons into `texts`.
struct FilterAnswer {
  using Refused = std::pair<std::string_view, std::string_view>;  // node, reason
  FilterAnswer() = default;
  FilterAnswer(FilterAnswer&&) = default;
  FilterAnswer& operator=(FilterAnswer&&) = default;

  std::vector<std::string_view> nodes;  // those that fit, best first
  std::vector<Refused> failed;          // preemption may help
  std::vector<Refused> unresolvable;    // it may not
  std::deque<std::string> texts;
  std::string summary;  // all reasons in one line, empty when some fit
};

struct BindPlan {
  core::Node node;
  core::PodRequest request;
  core::Placement placement;
  std::vector<std::string> container_names;  // spec.containers, in order
  std::string resource_version;              // of the pod that this rests on
};

class State {
 public:
  State(StateSettings settings, std::optional<kube::Verifier> verifier);

  // From the watches.
  void replace_nodes(const json::Array& items);
  void node_changed(const json::Value& object);
  void node_deleted(const std::string& name);
  void replace_pods(const json::Array& items);
  void pod_changed(const json::Value& object);
  void pod_deleted(const std::string& uid);
  bool ready() const;  // nodes and pods have been listed
  void replace_budgets(const json::Array& items);
  void budget_changed(const json::Value& object);
  void budget_deleted(const std::string& name_space, const std::string& name);

  // From kube-scheduler. `pod` is what the call carried: used for the request, never for who holds what.
  FilterAnswer filter(const kube::Pod& pod, const std::vector<std::string_view>& node_names);
  // Scores for prioritize: positions in our order, the best has the largest.
  std::vector<std::pair<std::string_view, int64_t>> rank(const kube::Pod& pod,
                                                         const std::vector<std::string_view>& node_names);

  // Chooses cards on the node and counts them as assumed. Errors: kNotFound (unknown pod or node), kExists (bound or
  // being bound already), kExhausted (no card fits any more, with the reason), kInvalid (the request).
  Result<BindPlan> plan_bind(const std::string& uid, const std::string& node_name);
  // A GET's answer. It may be older than what the watch has brought meanwhile: a pod that the watch took away is not
  // brought back, since nothing would ever take it away again.
  void learn_pod(const kube::Pod& pod);      // of a pod that is known; else nothing happens
  void introduce_pod(const kube::Pod& pod);  // that the watch has not brought yet
  // The answer to a change of a pod made on top of `base_version`; where the watch has moved on, it has it already.
  void pod_was_changed(const kube::Pod& pod, const std::string& base_version);
  void bind_refused(const std::string& uid);   // definitely: the assumption is dropped
  void bind_finished(const std::string& uid);  // answered, or unknown: the assumption stays until the watch tells

  // Refused pods that would fit now and were not woken in this state of the cluster yet: uid, namespace, name.
  struct Waiting {
    std::string uid;
    std::string name_space;
    std::string name;
    bool operator==(const Waiting&) const = default;
  };
  std::vector<Waiting> pods_to_wake(int64_t now_ms, size_t at_most = 1000);

  // Pods that kube-scheduler's own filters keep from us, though no node could take them: the event is ours to write.
  // Each text is returned once per pod, and another one ten seconds later at the earliest.
  struct Unreached {
    Waiting pod;
    std::string text;
  };
  std::vector<Unreached> unreached_pods(int64_t now_ms);

  // Pods bound without us, each looked at once in a state of the cluster, whoever was looked at longest ago first:
  // either cards are chosen (`plan`, and the pod is being adopted until adoption_ended), or `reason` says for the first
  // time why none fits. Nothing is counted differently before learn_pod or the watch brings the record.
  struct Orphan {
    Waiting pod;
    std::string node_name;
    std::string resource_version;  // that the decision rests on
    std::optional<BindPlan> plan;
    std::string reason;
  };
  std::optional<Orphan> next_orphan(int64_t now_ms);
  // The PATCH was answered, or looked after; the next one for this pod not before `retry_at_ms`.
  void adoption_ended(const std::string& uid, int64_t retry_at_ms);

  // Why no node of the cluster can ever take this request; empty when one can, or when no node offers cards yet.
  std::string never_fits(const core::Request& request);

  // Preempt: victims by uid for each node in the question; nodes that no victims of lower priority can free are left
  // out.
  struct Victims {
    std::vector<std::string> uids;  // most important first
    int64_t disruption_violations = 0;
  };
  std::map<std::string, Victims> preempt(const kube::Pod& pod, const std::map<std::string, Victims>& proposed);

  // For people: everything, and one pod's reasons.
  json::Object describe() const;
  Result<json::Object> explain(const std::string& name_space, const std::string& name);

  struct Counts {
    size_t nodes = 0;
    size_t pods = 0;
    size_t assumed = 0;
    std::map<std::string, size_t> waiting_by_rule;
    size_t untrusted_records = 0;
    size_t memory_bytes = 0;
  };
  Counts counts() const;
  uint64_t generation() const;

 private:
  enum class Holding { kNothing, kAssumed, kBound };
  struct PodEntry {
    kube::Pod pod;
    Result<core::PodRequest> request = core::PodRequest{};
    Holding holding = Holding::kNothing;
    bool binding = false;       // a Binding is on its way
    std::string node_name;      // where it holds something
    core::Placement placement;  // what it holds; with worst_case: on every card
    bool worst_case = false;
    std::string untrusted;                        // why the record is not believed
    bool record_seen = false;                     // an authentic record of this pod was there once
    bool being_adopted = false;                   // a PATCH with cards is on its way
    std::optional<uint64_t> adoption_generation;  // when last looked at
    int64_t next_adoption_ms = 0;
    std::string adoption_told;
    int64_t adoption_tell_ms = 0;  // another reason is told not before; set: one is to be told
    bool refused = false;          // a filter said no and it waits
    std::string refused_rule;
    uint64_t woken_generation = 0;
    int64_t next_wake_ms = 0;
    int64_t wake_backoff_ms = 0;
    size_t refused_names = 0;    // nodes that the last refusing call named
    bool fitted_nowhere = true;  // when last looked at: the next time it fits is news
    int wakes_by_api = 3;        // left: for pods of whose refusal the API alone tells
    size_t quick_wakes = 0;      // left: kube-scheduler has not been through the whole cluster yet
    int64_t first_seen_ms = 0;
    int64_t next_look_ms = 0;                      // for unreached_pods: after a reason was told
    std::string unreached_rule;                    // what keeps it, where kube-scheduler never brings it to us
    std::optional<uint64_t> looked_at_generation;  // for unreached_pods
    std::map<std::string, std::vector<std::string>> victims;  // by node: what the last preempt call was answered
    std::string told;                                         // text of the last event of ours
  };
  struct NodeEntry {
    core::NodeId id = 0;
    core::Node base;  // nothing taken
    std::string problem;
    std::optional<int64_t> allocatable_units;
    std::optional<int64_t> allocatable_core_percent;
    std::set<std::string> holders;  // uids
  };

  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  // All below: mutex_ held.
  std::string unit_name() const;  // of memory, in texts
  static std::vector<std::string> container_names(const kube::Pod& pod);
  void put_node(const json::Value& object);
  void remove_node(const std::string& name);
  void put_pod(kube::Pod pod);
  void remove_pod(const std::string& uid);
  void forget_nomination(const kube::Pod& pod);
  size_t parts_of_cluster(size_t names) const;
  void hold(PodEntry& entry, Holding holding, const std::string& node_name);
  void let_go(PodEntry& entry);
  void settle(PodEntry& entry);
  void count_bound(PodEntry& entry);
  std::string missing_card(const kube::Allocation& record, const std::string& node_name) const;
  void recompute(const std::string& node_name);
  bool is_orphan(const PodEntry& entry) const;
  Orphan look_at_orphan(PodEntry& entry) const;
  static std::string waiting_rule(const PodEntry& pod);
  static bool waits_for_wake(const PodEntry& pod);
  core::Node node_state(const NodeEntry& node, const std::set<std::string>& without = {}) const;
  std::optional<core::Node> with_nominated(std::string_view node_name, const kube::Pod& asker) const;
  std::string sum_shortage(const NodeEntry& node, const core::Request& request) const;
  std::string sum_shortage_everywhere(const core::Request& request);
  FilterAnswer refuse_all(const std::vector<std::string_view>& names, const std::string& reason) const;
  FilterAnswer give_reasons(const kube::Pod& pod, const core::Request& request,
                            const std::vector<std::string_view>& names);
  void remember_refusal(const kube::Pod& pod, const std::string& rule, size_t names);
  std::vector<std::string> choose_victims(const kube::Pod& pod, const core::PodRequest& request, const NodeEntry& node,
                                          const Victims& proposed, const std::vector<std::string>& before = {}) const;
  int64_t count_violations(const std::vector<std::string>& uids) const;
  bool more_important(const std::string& a, const std::string& b) const;

  StateSettings settings_;
  std::optional<kube::Verifier> verifier_;
  mutable std::mutex mutex_;
  core::Cluster cluster_;
  WorkloadLearner learner_;
  std::unordered_map<std::string, NodeEntry, NameHash, std::equal_to<>> nodes_;
  std::unordered_map<std::string, PodEntry> pods_;
  std::map<std::string, std::set<std::string>, std::less<>> nominated_;  // node -> uids of pending pods
  // Uids that the watch took away of late, for answers that come after it.
  static constexpr size_t kMaxGone = 8192;
  std::set<std::string> gone_;
  std::deque<std::string> gone_order_;
  std::set<std::string> pending_;  // uids of pods that the API shows bound nowhere
  std::set<std::string> orphans_;  // uids of pods bound without us that may be given cards
  // Refusals of pods that the watch has not brought (yet): rule and number of names asked about.
  static constexpr size_t kMaxEarlyRefusals = 4096;
  std::unordered_map<std::string, std::pair<std::string, size_t>> early_refusals_;
  std::map<std::string, DisruptionBudget> budgets_;  // by namespace/name
  bool nodes_listed_ = false;
  bool pods_listed_ = false;
  uint32_t next_rank_ = 0;
};

}  // namespace sluice::scheduler
