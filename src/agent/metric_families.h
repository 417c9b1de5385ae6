// The families of metrics that an agent has with and without Kubernetes, once: the names, what they mean and how the
// value is taken from a status. Which labels a sample carries is for the two texts to say (agent/metrics.cc,
// node/metrics.cc).
#pragma once

#include <span>

#include "agent/protocol.h"

namespace sluice::agent {

struct CardFamily {  // gauges
  const char* name;
  const char* help;
  double (*value)(const CardStatus&);
};
std::span<const CardFamily> card_families();

// Of what a grant uses on one card. `suffix` follows "sluice_grant_" or "sluice_container_".
struct UseFamily {
  const char* suffix;
  const char* type;
  const char* help;
  double (*value)(const GrantUse&);
};
std::span<const UseFamily> use_families();

// Of one process on one card. A negative value is one that the driver does not say.
struct ProcessFamily {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const ProcessStatus&);
};
std::span<const ProcessFamily> process_families();

}  // namespace sluice::agent
