#include "replay/churn.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <queue>

#include "core/cluster.h"

namespace sluice::replay {
namespace {

struct Stay {
  double arrives_s;
  double lasts_s;
  uint32_t row;
  bool counted;  // after the first pass
};

struct Departure {
  double at_s;
  core::NodeId node;
  core::Placement placement;
  double milli;
  bool operator>(const Departure& other) const { return at_s > other.at_s; }
};

std::vector<Stay> stays_of(const std::vector<TracePod>& pods) {
  std::vector<double> created;
  for (const TracePod& pod : pods)
    if (pod.deleted_s > pod.created_s) created.push_back(static_cast<double>(pod.created_s));
  std::sort(created.begin(), created.end());
  std::vector<Stay> stays;
  if (created.empty()) return stays;
  // A pass begins when the last one's arrivals end. The first hundredth of the pods may be spread over months before
  // the trace proper (services that were there already); they do not set the pace.
  const double pass_s = std::max(1.0, created.back() - created[created.size() / 100]);
  for (int pass = 0; pass < kPasses; ++pass)
    for (size_t i = 0; i < pods.size(); ++i)
      if (pods[i].deleted_s > pods[i].created_s)
        stays.push_back({static_cast<double>(pods[i].created_s) + pass * pass_s,
                         static_cast<double>(pods[i].deleted_s - pods[i].created_s), static_cast<uint32_t>(i),
                         pass > 0});
  std::stable_sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) { return a.arrives_s < b.arrives_s; });
  return stays;
}

// Mean over arrivals of what is asked for at that moment, in 1/1000 card, if nothing is refused.
double offered_milli(const std::vector<Stay>& stays, const std::vector<int64_t>& milli, double divisor) {
  using Leave = std::pair<double, double>;
  std::priority_queue<Leave, std::vector<Leave>, std::greater<>> leaving;
  double present = 0, sum = 0;
  int64_t counted = 0;
  for (const Stay& stay : stays) {
    const double now = stay.arrives_s / divisor;
    for (; !leaving.empty() && leaving.top().first <= now; leaving.pop()) present -= leaving.top().second;
    const double asked = static_cast<double>(milli[stay.row]);
    present += asked;
    if (stay.counted) {
      sum += present;
      ++counted;
    }
    leaving.emplace(now + stay.lasts_s, asked);
  }
  return counted == 0 ? 0 : sum / static_cast<double>(counted);
}

double divisor_for(const std::vector<Stay>& stays, const std::vector<int64_t>& milli, double target) {
  double low = 1, high = 1e7;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    (offered_milli(stays, milli, middle) < target ? low : high) = middle;
  }
  return low;
}

}  // namespace

Result<ChurnOutcome> run_churn(const Experiment& experiment, const std::vector<TracePod>& pods,
                               const core::Policy& policy, double load) {
  const std::vector<Stay> stays = stays_of(pods);
  if (stays.empty())
    return invalid("pods: churn needs creation_time and deletion_time with the second after the first, have none");
  double capacity = 0;
  core::Cluster cluster(core::make_scorer(policy, core::workload_for(policy, experiment.requests)));
  for (size_t i = 0; i < experiment.nodes.size(); ++i) {
    capacity += 1000.0 * static_cast<double>(experiment.nodes[i].cards.size());
    Result<core::NodeId> id = cluster.add(experiment.nodes[i], experiment.tie_ranks[i]);
    if (!id) return id.error();
  }
  ChurnOutcome outcome;
  outcome.time_divisor = divisor_for(stays, experiment.card_milli, load * capacity);
  outcome.offered_pct = 100 * offered_milli(stays, experiment.card_milli, outcome.time_divisor) / capacity;

  std::priority_queue<Departure, std::vector<Departure>, std::greater<>> leaving;
  std::priority_queue<std::pair<double, double>, std::vector<std::pair<double, double>>, std::greater<>> wanted;
  double allocated = 0, offered = 0, sum = 0, busy_sum = 0, asked_sum = 0, refused_sum = 0;
  int64_t busy = 0, counted = 0;
  for (const Stay& stay : stays) {
    const double now = stay.arrives_s / outcome.time_divisor;
    for (; !leaving.empty() && leaving.top().at_s <= now; leaving.pop()) {
      const Departure& gone = leaving.top();
      if (Result<void> released = cluster.release(gone.node, gone.placement); !released) return released.error();
      allocated -= gone.milli;
    }
    for (; !wanted.empty() && wanted.top().first <= now; wanted.pop()) offered -= wanted.top().second;
    const core::Request& request = experiment.requests[stay.row];
    const double milli = static_cast<double>(experiment.card_milli[stay.row]);
    offered += milli;
    wanted.emplace(now + stay.lasts_s, milli);
    const auto start = std::chrono::steady_clock::now();
    std::optional<core::Decision> decision = cluster.decide(request);
    outcome.decide_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++outcome.decisions;
    if (decision) {
      if (Result<void> taken = cluster.take(decision->node, decision->placement); !taken) return taken.error();
      allocated += milli;
      leaving.push({now + stay.lasts_s, decision->node, std::move(decision->placement), milli});
    }
    if (!stay.counted) continue;
    ++counted;
    asked_sum += milli;
    (decision ? outcome.accepted : outcome.refused) += 1;
    if (!decision) refused_sum += milli;
    sum += allocated;
    if (offered >= capacity) {
      busy_sum += allocated;
      ++busy;
    }
  }
  if (counted == 0) return invalid("pods: churn needs more than one pass of arrivals");
  outcome.allocated_pct = 100 * sum / static_cast<double>(counted) / capacity;
  outcome.allocated_busy_pct = busy == 0 ? 0 : 100 * busy_sum / static_cast<double>(busy) / capacity;
  outcome.refused_demand_pct = asked_sum > 0 ? 100 * refused_sum / asked_sum : 0;
  return outcome;
}

}  // namespace sluice::replay
