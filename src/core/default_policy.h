// Sluice's own policy: place where the usual workload loses least (core/outlook.h), do not spend scarce card models on
// pods that could go elsewhere, and of equal choices take the fuller card.
//
//   cost = growth of waste + kScarcityPrice x demand x scarcity of the node's model + kTightness x what is left on the
//          cards taken, all in 1/1000 card
//   score = -cost in whole steps of kStepMilli; equal scores go by the fixed order of nodes
//
// The steps matter: finer ones scatter pods over nodes that differ only by noise (docs/placement.md).
#pragma once

#include <memory>

#include "core/scorer.h"
#include "core/workload.h"

namespace sluice::core {

// One set of constants for every cluster and workload. docs/placement.md: how they were chosen.
struct DefaultSettings {
  double step_milli = 40;
  double scarcity_price = 0.8;
  double tightness = 50.0 / 1000;
  double cpu_outlook = 0.3;
  double imbalance = 0.05;
};

// How much of what was seen the workload for this policy should cover (learn_workload): more than FGD's 95 %.
inline constexpr double kDefaultCovered = 0.99;

std::unique_ptr<Scorer> make_default_scorer(Workload workload, const DefaultSettings& settings = {});

}  // namespace sluice::core
