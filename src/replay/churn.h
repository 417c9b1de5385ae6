// A replay with departures. The published experiment lets nothing leave; here pods come at their creation time and go
// at their deletion time. The openb trace asks for about 1 % of the cluster at any moment and for 97 % in all, so it is
// played kPasses times in a row with creation times divided by a factor (lifetimes stay): the factor at which the
// demand offered, averaged over arrivals as if everything were accepted, is `load` x capacity. A pod that fits nowhere
// is dropped. Figures are over the arrivals after the first pass, which fills the cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "replay/experiment.h"
#include "replay/trace.h"

namespace sluice::replay {

inline constexpr int kPasses = 10;

struct ChurnOutcome {
  double time_divisor = 0;        // what creation times were divided by
  double offered_pct = 0;         // mean demand at arrivals if all were accepted, of the cluster's cards
  double allocated_pct = 0;       // mean allocation at arrivals
  double allocated_busy_pct = 0;  // the same over arrivals that find at least `capacity` offered
  int64_t accepted = 0;
  int64_t refused = 0;
  double refused_demand_pct = 0;  // of the cards asked for, what was refused
  double decide_seconds = 0;
  int64_t decisions = 0;
};

// `experiment.requests` belong to the rows of `pods`; its arrivals are not used. Errors: a trace without times.
Result<ChurnOutcome> run_churn(const Experiment& experiment, const std::vector<TracePod>& pods,
                               const core::Policy& policy, double load = 1.0);

}  // namespace sluice::replay
