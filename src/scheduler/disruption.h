// PodDisruptionBudgets (policy/v1) as preemption needs them: whose eviction would break one. The extender chooses other
// victims than kube-scheduler proposed and therefore has to count the violations anew.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "kube/objects.h"

namespace sluice::scheduler {

struct Requirement {
  enum class Operator { kIn, kNotIn, kExists, kDoesNotExist };
  std::string key;
  Operator op = Operator::kExists;
  std::vector<std::string> values;
};

struct DisruptionBudget {
  std::string name_space;
  std::string name;
  std::vector<Requirement> selector;  // all must hold; empty selects every pod of the namespace (policy/v1)
  bool selects_nothing = false;       // no selector at all
  int64_t allowed = 0;                // status.disruptionsAllowed

  bool selects(const kube::Pod& pod) const;
};

Result<DisruptionBudget> decode_budget(const json::Value& object);

// Of these pods, evicted in this order: for each whether its eviction breaks a budget, given those before it.
std::vector<bool> violations(const std::vector<const kube::Pod*>& pods,
                             const std::map<std::string, DisruptionBudget>& budgets);

}  // namespace sluice::scheduler
