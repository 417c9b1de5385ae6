// The release that a program belongs to, as CMake's project() says.
#pragma once

namespace sluice::agent {

inline constexpr char kVersion[] = SLUICE_VERSION;

}  // namespace sluice::agent
