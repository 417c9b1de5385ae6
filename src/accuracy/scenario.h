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
  double least() const;
  double largest() const;
};

struct StreamSpec {
  Distribution kernel_us;
  bool per_block = false;    // kernel_us is the time of one block, taken once per wave of blocks
  uint32_t graph_nodes = 0;  // 0: units are kernels, else graphs of so many
  Distribution grid;         // blocks, drawn per launch; as much of a cooperative one as the card can hold
  bool cooperative = false;
  uint32_t sync_every = 0;      // units; 0: never
  double copy_us = 0;           // copy to the host before each synchronisation
  Distribution gap_us;          // host time after each synchronisation (after each unit if it never synchronises)
  bool host_functions = false;  // a host function after every 50th unit
  // After every 50th unit: a copy from the host, a value written and waited for, an event of another stream waited for.
  bool orders = false;
  // After every n-th unit a kernel that ends once those of all such streams of the process, on all its cards, have
  // begun.
  uint32_t collective_every = 0;
  double collective_us = 30;
  uint32_t hangs_after = 0;  // units; then a kernel that never ends. 0: never
};

// A slot without a program behind it that claims ..
enum class Lie : uint32_t { kNone, kWaits, kNeverDrains };

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
  std::optional<double> thaw_s;    // and go on
  uint32_t cards = 1;              // it uses cards 0 .. cards - 1: a context and all streams on each
  // Comes and goes: lives so long, killed at the end, and is there again `every_s` after it came.
  double lives_s = 0;
  double every_s = 0;
  struct Change {
    double at_s = 0;
    double percent = 0;  // 0: no cap
  };
  std::vector<Change> changes;  // of its share while it runs, in the order of time
  Lie lies = Lie::kNone;
  std::vector<StreamSpec> streams;
};

enum AgentMutation : uint32_t {
  kMutateOverrun = 1u << 0,   // nobody is overrun
  kMutateTakeBack = 1u << 1,  // lent time is taken back in long steps
  kMutatePriority = 1u << 2,  // nobody has high priority
  kMutateDead = 1u << 4,      // the dead are not found
};

struct Scenario {
  std::string name;
  std::string card = "V100-SXM2-32GB";
  double seconds = 60;
  uint64_t seed = 1;
  core::ComputePolicy policy = core::ComputePolicy::kFixed;
  uint32_t max_containers = 20;
  std::string host = "normal";
  bool gated = true;             // false: measure only (every container uncapped, watched)
  uint32_t mutations = 0;        // guest::Mutation and governor::Mutation, for tests that the bars can fail
  uint32_t agent_mutations = 0;  // AgentMutation, the same for the agent's side
  uint32_t measure_permille = 0;
  std::vector<ContainerSpec> containers;
};

// The number of cards, from the container that uses most.
uint32_t card_count(const Scenario& scenario);

// Errors name the member, what was found and what was expected.
Result<Scenario> parse_scenario(const json::Value& value);

}  // namespace sluice::accuracy
