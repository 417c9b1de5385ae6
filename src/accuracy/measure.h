// Figures of a run, from the card's log alone: shares in windows that slide by 10 ms.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::accuracy {

struct WindowFigures {
  double mean_percent = 0;
  double worst_points = 0;  // largest |share - target| of any window
  double over_points = 0;   // largest share - target, 0 when never above
};

// Busy ns per millisecond; windows of `window_ms` that begin at or after `from_ms` and end at or before `to_ms`.
WindowFigures windows(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms, size_t window_ms,
                      double target_percent);
double mean_percent(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms);
// The least share in any window of 100 ms.
double least_share_100ms(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms);
// Longest stretch without any busy time, ms.
double longest_gap_ms(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms);

}  // namespace sluice::accuracy
