#include "replay/experiment.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "core/fragmentation.h"

namespace sluice::replay {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What is allocated over the whole cluster, kept as it changes.
struct Totals {
  double cards = 0;         // in 1/1000 card
  double memory_taken = 0;  // in 1/1000 card
  double core_taken = 0;

  void add(const core::Node& node, const core::Placement& placement) {
    for (const core::Share& share : placement.shares) {
      const core::Card& card = node.cards[static_cast<size_t>(share.card_index)];
      memory_taken += 1000.0 * static_cast<double>(share.units) / static_cast<double>(card.units);
      core_taken += share.core_milli;
    }
  }
};

// The cluster's fragment amount: a sum over nodes of which only the changed one is measured again.
class FragmentTotal {
 public:
  FragmentTotal(const core::Workload& workload, const core::Cluster& cluster, size_t nodes)
      : measure_(workload), of_node_(nodes, 0) {
    for (core::NodeId id = 0; id < nodes; ++id) update(cluster, id);
  }
  void update(const core::Cluster& cluster, core::NodeId id) {
    measure_.begin(cluster.view(id), cluster.models());
    total_ -= of_node_[id];
    of_node_[id] = measure_.of();
    total_ += of_node_[id];
  }
  double total() const { return total_; }

 private:
  core::Fragmentation measure_;
  std::vector<double> of_node_;
  double total_ = 0;
};

template <typename Use>
double mean_at(const Outcome& outcome, int percent, Use use) {
  double sum = 0;
  size_t count = 0;
  for (const Event& event : outcome.events) {
    // nearbyint rounds half to even, as the published evaluation does.
    if (static_cast<int>(std::nearbyint(event.requested_pct)) != percent) continue;
    sum += use(event);
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

}  // namespace

Result<Outcome> run_experiment(const Experiment& experiment, const core::Policy& policy, const RunOptions& options) {
  return run_experiment(experiment, core::make_scorer(policy, core::workload_for(policy, experiment.requests)),
                        options);
}

Result<Outcome> run_experiment(const Experiment& experiment, std::unique_ptr<core::Scorer> scorer,
                               const RunOptions& options) {
  const Clock::time_point start = Clock::now();
  core::Cluster cluster(std::move(scorer));
  Totals totals;
  for (size_t i = 0; i < experiment.nodes.size(); ++i) {
    totals.cards += 1000.0 * static_cast<double>(experiment.nodes[i].cards.size());
    Result<core::NodeId> id = cluster.add(experiment.nodes[i], experiment.tie_ranks[i]);
    if (!id) return id.error();
  }
  if (totals.cards == 0) return invalid("nodes: needs at least one card, have none");
  std::optional<FragmentTotal> fragments;
  if (options.measure_fragments) fragments.emplace(experiment.workload, cluster, experiment.nodes.size());
  Outcome outcome;
  outcome.events.reserve(experiment.arrivals.size());
  double requested = 0;
  for (uint32_t arrival : experiment.arrivals) {
    const core::Request& request = experiment.requests[arrival];
    requested += static_cast<double>(experiment.card_milli[arrival]);
    const Clock::time_point asked = Clock::now();
    std::optional<core::Decision> decision = cluster.decide(request);
    outcome.decide_seconds += seconds_since(asked);
    if (decision) {
      if (Result<void> taken = cluster.take(decision->node, decision->placement); !taken) return taken.error();
      totals.add(cluster.node(decision->node), decision->placement);
      if (fragments) fragments->update(cluster, decision->node);
      ++outcome.accepted;
    } else {
      ++outcome.refused;
    }
    Event event{};
    event.requested_pct = 100 * requested / totals.cards;
    event.memory_pct = 100 * totals.memory_taken / totals.cards;
    event.core_pct = 100 * totals.core_taken / totals.cards;
    event.allocated_pct = 0.5 * event.memory_pct + 0.5 * event.core_pct;
    if (fragments) event.fragment_pct = 100 * fragments->total() / totals.cards;
    outcome.events.push_back(event);
    if (options.progress && outcome.events.size() % 512 == 0)
      options.progress(outcome.events.size(), experiment.arrivals.size());
  }
  outcome.seconds = seconds_since(start);
  outcome.memory_bytes = cluster.memory_bytes();
  return outcome;
}

double at_requested(const Outcome& outcome, int percent, double Event::* value) {
  return mean_at(outcome, percent, [&](const Event& event) { return event.*value; });
}

double idle_fragment_at(const Outcome& outcome, int percent) {
  return mean_at(outcome, percent, [&](const Event& event) {
    double idle = 100 - event.allocated_pct;
    return idle > 0 ? 100 * event.fragment_pct / idle : 0;
  });
}

}  // namespace sluice::replay
