// Trace files of one run, found and read: given one by one, or by name in a folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "replay/arrivals.h"
#include "replay/experiment.h"
#include "replay/options.h"
#include "replay/trace.h"

namespace sluice::replay {

struct TraceInput {
  std::string name;
  std::vector<TraceNode> nodes;
  std::vector<TracePod> pods;
  SeedLists stored_arrivals;  // empty where they are to be generated
  SeedLists stored_ranks;
};

// One per trace asked for. Stored arrivals are used where they exist, unless --generate.
Result<TraceInput> read_input(const ReplayOptions& options, const std::string& trace);
std::vector<std::string> trace_names(const ReplayOptions& options);

// The stored order of this seed, or a generated one. An error names the seeds that are stored.
Result<Arrivals> arrivals_of(const TraceInput& input, int64_t seed, double load);

// One- or two-dimensional, as the options say.
Result<Experiment> experiment_of(const TraceInput& input, Arrivals arrivals, const ReplayOptions& options);

// One row of published_results.csv.
struct Published {
  std::string trace, policy;
  int64_t seed = 0;
  double alloc_100 = 0, alloc_130 = 0, frag_total_130 = 0;
};
Result<std::vector<Published>> read_published(const std::string& path);

}  // namespace sluice::replay
