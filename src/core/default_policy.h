// Sluice's own policy. docs/placement.md says how its constants were found.
#pragma once

#include <memory>

#include "core/scorer.h"
#include "core/workload.h"

namespace sluice::core {

std::unique_ptr<Scorer> make_default_scorer(Workload workload);

}  // namespace sluice::core
