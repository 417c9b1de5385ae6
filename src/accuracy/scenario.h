// A scenario: containers, their processes and streams, as JSON. docs/accuracy.md describes the keys for users.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "core/arbiter.h"

namespace sluice::accuracy {

// A distribution of microseconds: {"fixed": x}, {"uniform": [a, b]}, {"lognormal": {"median", "sigma", "max"}},
// {"choice": [..]}.
struct Distribution {
  enum class Kind { kFixed, kUniform, kLognormal, kChoice } kind = Kind::kFixed;
  double a = 0;  // fixed; uniform: least; lognormal: median
  double b = 0;  // uniform: most; lognormal: largest
  double sigma = 0;
  std::vector<double> choices;

  double draw(std::mt19937_64& random) const;
  double mean() const;
  double largest() const;
};

struct StreamSpec {
  Distribution kernel_us;
  uint32_t graph_nodes = 0;  // 0: units are kernels, else graphs of so many
  uint32_t grid = 1000;
  bool cooperative = false;
  uint32_t sync_every = 0;      // units; 0: never
  double copy_us = 0;           // copy to the host before each synchronisation
  Distribution gap_us;          // host time after each synchronisation (after each unit if it never synchronises)
  bool host_functions = false;  // a host function after every 50th unit
};

struct ContainerSpec {
  std::string name;
  double percent = 0;  // 0: no cap
  uint32_t weight = 1;
  bool high_priority = false;
  uint32_t processes = 1;
  double start_s = 0;
  std::optional<double> stop_s;
  std::optional<double> kill_s;    // all its processes are killed
  std::optional<double> freeze_s;  // all its processes are stopped
  struct Change {
    double at_s = 0;
    double percent = 0;  // 0: no cap
  };
  std::vector<Change> changes;  // of its share while it runs, in the order of time
  bool lies = false;            // it has no program, only a slot that claims that work waits
  std::vector<StreamSpec> streams;
};

struct Scenario {
  std::string name;
  std::string card = "V100-SXM2-32GB";
  double seconds = 60;
  uint64_t seed = 1;
  core::ComputePolicy policy = core::ComputePolicy::kFixed;
  uint32_t max_containers = 20;
  std::string host = "normal";
  bool gated = true;       // false: measure only (every container uncapped, watched)
  uint32_t mutations = 0;  // guest::Mutation, for tests that the bars can fail
  uint32_t measure_permille = 0;
  std::vector<ContainerSpec> containers;
};

// Errors name the member, what was found and what was expected.
Result<Scenario> parse_scenario(const json::Value& value);

}  // namespace sluice::accuracy
