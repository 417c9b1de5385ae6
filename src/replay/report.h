// What a run has to say: one row under the column names of the published results, as a table or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "replay/churn.h"
#include "replay/experiment.h"

namespace sluice::replay {

struct Row {
  std::string trace;
  std::string policy;
  int64_t seed = 0;
  std::string set;  // "one-dimensional", or the name of a synthetic two-dimensional set
  Outcome outcome;
};

// `trace`, `policy`, `seed`, `alloc_pct_X` (X = 80, 90, 100, 120, 130), `frag_pct_of_total_X` and `frag_pct_of_idle_X`
// (X = 100, 130), all in percent, two decimals; null where the run has no event at X. Then ours: `set`, `synthetic`,
// `accepted`, `refused`, `memory_pct`, `core_pct`, `min_pct`, `mean_pct` (allocated at the end), `decision_us_mean`,
// `memory_bytes`.
json::Object to_json(const Row& row);
json::Object to_json(const ChurnOutcome& churn, const std::string& trace, const std::string& policy, int64_t seed);

// One line per row and, where a trace and policy have several seeds, their mean.
std::string table(const std::vector<Row>& rows);

}  // namespace sluice::replay
