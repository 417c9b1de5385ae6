// What each container should get, and when: stretches of the run in which quotas, and with them targets, stay the same.
#pragma once

#include <cstddef>
#include <vector>

#include "accuracy/scenario.h"

namespace sluice::accuracy {

// A container's programs alone on the card, without the library.
struct Uncapped {
  double mean_percent = 0;
  double least_100ms = 0;  // least share in any window of 100 ms
  double units_per_s = 0;
};

struct Phase {
  size_t from_ms = 0;
  size_t to_ms = 0;
  double quota_percent = 0;  // 0: none
  double target_percent = 0;
  bool saturated = false;  // alone it keeps the card busy for its quota and 5 points more
};

inline constexpr size_t kWarmUpMs = 2000;

// Phases of a container on one card, from the end of its warm-up to its end. Empty when it comes and goes. Where an
// uncapped container's target changes, or an uncapped one becomes capped, the first second is left out: what was
// launched before is still queued.
//
// The target is the quota where the program alone keeps the card busy enough, else what an ideal bucket gives it; when
// quotas on the card exceed it, all give way in proportion; uncapped containers share by weight what the capped leave,
// and none gets more than it can use.
std::vector<Phase> phases_of(const Scenario& scenario, size_t container, uint32_t card,
                             const std::vector<Uncapped>& uncapped);

}  // namespace sluice::accuracy
