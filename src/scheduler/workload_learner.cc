#include "scheduler/workload_learner.h"

#include <algorithm>
#include <vector>

namespace sluice::scheduler {

std::unique_ptr<core::Scorer> WorkloadLearner::saw(const core::Request& request) {
  const bool looks_ahead =
      policy_.name == core::PolicyName::kDefault || policy_.name == core::PolicyName::kFragmentation;
  const bool shared = request.kind == core::Kind::kMemory || request.kind == core::Kind::kMemoryCore;
  if (!looks_ahead || !shared) return nullptr;
  requests_.push_back(request);
  if (requests_.size() > kRemembered) requests_.pop_front();
  // Again when half of what is remembered is new: what has been learnt from many pods does not change with a few.
  if (++new_ < std::max(kFirst, requests_.size() / 2)) return nullptr;
  new_ = 0;
  const std::vector<core::Request> requests(requests_.begin(), requests_.end());
  return core::make_scorer(policy_, core::workload_for(policy_, requests));
}

}  // namespace sluice::scheduler
