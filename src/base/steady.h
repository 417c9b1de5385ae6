// The clock that nobody sets, as plain milliseconds: for deadlines and ages that are kept as numbers.
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

inline int64_t steady_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace sluice
