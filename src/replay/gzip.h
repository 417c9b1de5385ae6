// The one place of the replay that meets zlib: whole files, plain or gzip, with a bound on what comes out.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice::replay {

inline constexpr size_t kMaxInputBytes = size_t{256} << 20;

// The text of a file, unpacked if its name ends in ".gz". A file that holds more than kMaxInputBytes is an error.
Result<std::string> read_text(const std::string& path);

}  // namespace sluice::replay
