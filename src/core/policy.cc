#include "core/policy.h"

#include <fmt/format.h>

namespace sluice::core {
namespace {

struct NamedPolicy {
  PolicyName name;
  const char* text;
};
constexpr NamedPolicy kPolicies[] = {
    {PolicyName::kDefault, "default"}, {PolicyName::kBinpack, "binpack"},
    {PolicyName::kSpread, "spread"},   {PolicyName::kFragmentation, "FGD"},
    {PolicyName::kBestFit, "BestFit"}, {PolicyName::kFragmentation, "fragmentation"},
};

}  // namespace

const char* to_string(PolicyName name) {
  for (const NamedPolicy& policy : kPolicies)
    if (policy.name == name) return policy.text;
  return "?";
}

Result<PolicyName> parse_policy(const std::string& name) {
  std::string known;
  for (const NamedPolicy& policy : kPolicies) {
    if (name == policy.text) return policy.name;
    known += (known.empty() ? "" : ", ") + std::string(policy.text);
  }
  return invalid(fmt::format("policy: needs one of {}, have '{}'", known, name));
}

}  // namespace sluice::core
