// The published openb experiment: pods arrive one by one, nothing leaves, a pod that fits nowhere is dropped and never
// tried again (Weng et al., USENIX ATC '23, and the code of its simulator).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/cluster.h"
#include "core/node.h"
#include "core/policy.h"
#include "core/workload.h"

namespace sluice::replay {

// One run, ready to go: what is there, what comes, in which order.
struct Experiment {
  std::vector<core::Node> nodes;
  std::vector<uint32_t> tie_ranks;      // per node; the lower wins among equal scores
  std::vector<core::Request> requests;  // distinct pods
  std::vector<int64_t> card_milli;      // per request: cards x milli, what it counts as asked for
  std::vector<uint32_t> arrivals;       // positions in `requests`, in order
  core::Workload workload;              // for the policies that look at one, and for the fragmentation measure
};

// After each arrival.
struct Event {
  double requested_pct;  // cumulative, of the cluster's cards
  double allocated_pct;  // of the cluster's cards, mean of memory and compute
  double memory_pct;     // allocated card memory
  double core_pct;       // allocated compute
  double fragment_pct;   // fragment amount, of the cluster's cards; 0 unless measured
};

struct Outcome {
  std::vector<Event> events;
  int64_t accepted = 0;
  int64_t refused = 0;
  double decide_seconds = 0;  // in decide() alone
  double seconds = 0;
  size_t memory_bytes = 0;
};

struct RunOptions {
  bool measure_fragments = true;
  std::function<void(size_t done, size_t total)> progress;  // called now and then
};

Result<Outcome> run_experiment(const Experiment& experiment, const core::Policy& policy,
                               const RunOptions& options = {});

// The same with a scorer of the caller's.
Result<Outcome> run_experiment(const Experiment& experiment, std::unique_ptr<core::Scorer> scorer,
                               const RunOptions& options = {});

// The table's columns: mean of `value` over the events whose cumulative request rounds (half to even) to `percent`.
// Not a number when there is none.
double at_requested(const Outcome& outcome, int percent, double Event::* value);
// Mean of fragment / idle over the same events.
double idle_fragment_at(const Outcome& outcome, int percent);

}  // namespace sluice::replay
