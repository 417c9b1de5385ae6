#include "core/default_policy.h"

namespace sluice::core {

std::unique_ptr<Scorer> make_default_scorer(Workload workload) {
  return make_scorer({PolicyName::kFragmentation}, workload);
}

}  // namespace sluice::core
