#include "accuracy/measure.h"

#include <algorithm>
#include <cmath>

namespace sluice::accuracy {

namespace {

constexpr size_t kSlideMs = 10;

std::vector<double> cumulative(std::span<const uint32_t> busy_ns) {
  std::vector<double> sums(busy_ns.size() + 1, 0);
  for (size_t i = 0; i < busy_ns.size(); ++i) sums[i + 1] = sums[i] + busy_ns[i];
  return sums;
}

}  // namespace

WindowFigures windows(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms, size_t window_ms,
                      double target_percent) {
  WindowFigures figures;
  to_ms = std::min(to_ms, busy_ns.size());
  if (from_ms >= to_ms) return figures;
  figures.mean_percent = mean_percent(busy_ns, from_ms, to_ms);
  const std::vector<double> sums = cumulative(busy_ns);
  for (size_t begin = from_ms; begin + window_ms <= to_ms; begin += kSlideMs) {
    const double share = (sums[begin + window_ms] - sums[begin]) / (static_cast<double>(window_ms) * 1e6) * 100;
    figures.worst_points = std::max(figures.worst_points, std::abs(share - target_percent));
    figures.over_points = std::max(figures.over_points, share - target_percent);
  }
  return figures;
}

double mean_percent(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms) {
  to_ms = std::min(to_ms, busy_ns.size());
  if (from_ms >= to_ms) return 0;
  double sum = 0;
  for (size_t i = from_ms; i < to_ms; ++i) sum += busy_ns[i];
  return sum / (static_cast<double>(to_ms - from_ms) * 1e6) * 100;
}

double least_share_100ms(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms) {
  to_ms = std::min(to_ms, busy_ns.size());
  const std::vector<double> sums = cumulative(busy_ns);
  double least = 100;
  for (size_t begin = from_ms; begin + 100 <= to_ms; begin += kSlideMs) {
    least = std::min(least, (sums[begin + 100] - sums[begin]) / 1e8 * 100);
  }
  return least;
}

double longest_gap_ms(std::span<const uint32_t> busy_ns, size_t from_ms, size_t to_ms) {
  to_ms = std::min(to_ms, busy_ns.size());
  size_t longest = 0;
  size_t run = 0;
  for (size_t i = from_ms; i < to_ms; ++i) {
    run = busy_ns[i] == 0 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return static_cast<double>(longest);
}

}  // namespace sluice::accuracy
