// The trace that the tests carry, and how many of the ten published seeds they replay (all, but under sanitizers one).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "replay/inputs.h"

namespace sluice::replay {

inline const std::string kOpenb = SLUICE_OPENB_DIR;
inline const std::vector<std::string> kOpenbTraces = {
    "default", "cpu050", "cpu250", "gpushare60", "gpushare100", "gpuspec20", "gpuspec33", "multigpu20", "multigpu40"};
inline constexpr int64_t kFirstSeed = 42;
inline constexpr int64_t kSeeds = SLUICE_REPLAY_SEEDS;

inline TraceInput openb(const std::string& trace) {
  ReplayOptions options;
  options.data = kOpenb;
  Result<TraceInput> input = read_input(options, trace);
  EXPECT_TRUE(input.ok()) << input.error().message;
  return input.ok() ? std::move(*input) : TraceInput{};
}

inline Experiment openb_experiment(const TraceInput& input, int64_t seed) {
  return *experiment_of(input, *arrivals_of(input, seed, 1.3), ReplayOptions{});
}

}  // namespace sluice::replay
