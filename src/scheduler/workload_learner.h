// What the pods of this cluster usually ask for, for the placement policies that look ahead (default, FGD). They choose
// by what the usual pods could still use afterwards; before enough pods were seen they are binpack.
//
// Pure: requests in, a scorer out. Learning takes milliseconds and makes the cluster forget its scores, so it is done
// after many new pods and not after each.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "core/policy.h"
#include "core/request.h"
#include "core/scorer.h"

namespace sluice::scheduler {

class WorkloadLearner {
 public:
  static constexpr size_t kFirst = 200;        // requests before anything is learnt
  static constexpr size_t kRemembered = 4000;  // the newest ones

  explicit WorkloadLearner(const core::Policy& policy) : policy_(policy) {}

  // A pod that was not there before. The scorer to use from here on where it is time for another one, else nullptr;
  // always nullptr with policies that do not look ahead.
  std::unique_ptr<core::Scorer> saw(const core::Request& request);

 private:
  core::Policy policy_;
  std::deque<core::Request> requests_;
  size_t new_ = 0;  // since the last time
};

}  // namespace sluice::scheduler
