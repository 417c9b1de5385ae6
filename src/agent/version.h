// The release that a program belongs to, as CMake's project() says.
#pragma once

namespace sluice::agent {

extern const char* const kVersion;

}  // namespace sluice::agent
