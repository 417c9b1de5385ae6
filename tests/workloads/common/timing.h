// Host time and order statistics for workloads.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace workloads {

inline uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

inline void sleep_until_ns(uint64_t t_ns) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(t_ns / 1000000000u);
  time.tv_nsec = static_cast<long>(t_ns % 1000000000u);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
  }
}

inline uint64_t seconds_to_ns(double seconds) {
  return static_cast<uint64_t>(seconds * 1e9);
}

// The value that `fraction` (0 to 1) of the values do not exceed (nearest rank); 0 of nothing. Sorts its copy.
inline double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = fraction * static_cast<double>(values.size());
  const auto index = static_cast<size_t>(rank > 0 ? rank - 1e-9 : 0);
  return values[std::min(index, values.size() - 1)];
}

}  // namespace workloads
