// Our own policy, one set of constants, against the published FGD on the same arrivals: the targets that it was built
// for.
#include <gtest/gtest.h>

#include <algorithm>

#include "replay/experiment.h"
#include "replay/openb_testing.h"

namespace sluice::replay {
namespace {

struct Means {
  double at_100 = 0, at_130 = 0;
};

TEST(DefaultPolicy, BeatsFgdOnTheOpenbTraces) {
  Result<std::vector<Published>> published = read_published(kOpenb + "/published_results.csv");
  ASSERT_TRUE(published.ok()) << published.error().message;
  Means ours, fgd;
  for (const std::string& trace : kOpenbTraces) {
    const TraceInput input = openb(trace);
    Means here, theirs;
    for (int64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
      RunOptions quick;
      quick.measure_fragments = false;
      Result<Outcome> outcome = run_experiment(openb_experiment(input, seed), core::Policy{}, quick);
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
      here.at_100 += at_requested(*outcome, 100, &Event::allocated_pct) / kSeeds;
      here.at_130 += at_requested(*outcome, 130, &Event::allocated_pct) / kSeeds;
    }
    for (const Published& row : *published) {
      if (row.trace != trace || row.policy != "FGD" || row.seed >= kFirstSeed + kSeeds) continue;
      theirs.at_100 += row.alloc_100 / kSeeds;
      theirs.at_130 += row.alloc_130 / kSeeds;
    }
    std::printf("%-12s FGD %.2f / %.2f, default policy %.2f / %.2f\n", trace.c_str(), theirs.at_100, theirs.at_130,
                here.at_100, here.at_130);
    EXPECT_GE(here.at_100, theirs.at_100 - 0.1) << trace;
    EXPECT_GE(here.at_130, theirs.at_130 - 0.1) << trace;
    if (trace == "default") {
      EXPECT_GE(here.at_130, 95.6);
    }
    ours.at_100 += here.at_100 / 9;
    ours.at_130 += here.at_130 / 9;
    fgd.at_100 += theirs.at_100 / 9;
    fgd.at_130 += theirs.at_130 / 9;
  }
  std::printf("mean         FGD %.2f / %.2f, default policy %.2f / %.2f\n", fgd.at_100, fgd.at_130, ours.at_100,
              ours.at_130);
  EXPECT_GE(ours.at_100, 93.4);
  EXPECT_GE(ours.at_130, 94.2);
}

}  // namespace
}  // namespace sluice::replay
