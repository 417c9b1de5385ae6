// The number of a release that is not there yet, for an agent that takes over from this one's.
#include "agent/version.h"

namespace sluice::agent {

const char* const kVersion = "99.1.0";

}  // namespace sluice::agent
