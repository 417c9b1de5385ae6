// FGD and BestFit give the published value of every trace and seed carried here, at 100 % and at 130 % of arrivals, and
// FGD the published amount of fragments. The values come from the authors' repository (tests/data/openb/SOURCE.md).
#include <gtest/gtest.h>

#include <cmath>

#include "replay/experiment.h"
#include "replay/openb_testing.h"

namespace sluice::replay {
namespace {

// Published values are rounded to two decimals.
constexpr double kRounding = 0.01;

class PublishedResults : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Openb, PublishedResults, testing::ValuesIn(kOpenbTraces),
                         [](const auto& param) { return param.param; });

TEST_P(PublishedResults, AreReproducedPerSeed) {
  Result<std::vector<Published>> published = read_published(kOpenb + "/published_results.csv");
  ASSERT_TRUE(published.ok()) << published.error().message;
  const TraceInput input = openb(GetParam());
  int64_t compared = 0;
  for (const Published& row : *published) {
    if (row.trace != GetParam() || row.seed >= kFirstSeed + kSeeds) continue;
    Result<core::PolicyName> policy = core::parse_policy(row.policy);
    ASSERT_TRUE(policy.ok());
    Result<Outcome> outcome = run_experiment(openb_experiment(input, row.seed), core::Policy{*policy});
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_NEAR(at_requested(*outcome, 100, &Event::allocated_pct), row.alloc_100, kRounding) << row.policy << row.seed;
    EXPECT_NEAR(at_requested(*outcome, 130, &Event::allocated_pct), row.alloc_130, kRounding) << row.policy << row.seed;
    EXPECT_NEAR(at_requested(*outcome, 130, &Event::fragment_pct), row.frag_total_130, kRounding)
        << row.policy << row.seed;
    ++compared;
  }
  EXPECT_EQ(compared, 2 * kSeeds);
}

}  // namespace
}  // namespace sluice::replay
