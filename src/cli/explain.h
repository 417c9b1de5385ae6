// The parts of `sluice explain` that need no cluster: names in, text out.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace sluice::cli {

struct PodName {
  std::string name_space;
  std::string name;
};

// "POD" or "NAMESPACE/POD".
Result<PodName> parse_pod_name(const std::string& text, const std::string& default_namespace);

// The scheduler's answer (docs/scheduler.md, "Reasons") for people: state and reason, then the nodes, those that fit or
// would fit after pods have left first. Fields of another kind than expected are left out.
std::string explain_text(const json::Object& answer);

}  // namespace sluice::cli
