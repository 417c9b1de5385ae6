// The one place of the replay that meets zlib: whole files, plain or gzip, with a bound on what comes out; and
// checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::replay {

inline constexpr size_t kMaxInputBytes = size_t{256} << 20;

// The text of a file, unpacked if its name ends in ".gz". A file that holds more than kMaxInputBytes is an error.
Result<std::string> read_text(const std::string& path);

// CRC-32 of the numbers as little-endian bytes.
uint32_t crc32_of(const std::vector<uint32_t>& numbers);

}  // namespace sluice::replay
