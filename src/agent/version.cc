// Alone in its file: a test links the agent with another number, to be the next release.
#include "agent/version.h"

namespace sluice::agent {

const char* const kVersion = SLUICE_VERSION;

}  // namespace sluice::agent
