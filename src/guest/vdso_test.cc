#include "guest/vdso.h"

#include <gtest/gtest.h>
#include <linux/time_types.h>
#include <sys/auxv.h>
#include <time.h>

#include <cstring>
#include <vector>

#include "guest/os_seams.h"

namespace sluice::guest {
namespace {

uint64_t libc_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

TEST(Vdso, TheClockIsTheSystemCalls) {
  OsClock clock;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t before = sys::monotonic_ns();
    const uint64_t now = clock.now_ns();
    EXPECT_LE(before, now);
    EXPECT_LE(now, libc_ns());
  }
}

TEST(Vdso, IsFoundWhereTheKernelMapsOne) {
  const unsigned long image = getauxval(AT_SYSINFO_EHDR);
  if (image == 0) GTEST_SKIP() << "this process has no vDSO";
  const ClockGettime function = find_clock_gettime(image);
  ASSERT_NE(function, nullptr);
  __kernel_timespec time = {};
  EXPECT_EQ(function(CLOCK_MONOTONIC, &time), 0);
  EXPECT_GT(time.tv_sec + time.tv_nsec, 0);
}

TEST(Vdso, WhatIsNoneIsRefused) {
  EXPECT_EQ(find_clock_gettime(0), nullptr);
  alignas(16) std::vector<char> nonsense(4096, '\x41');
  EXPECT_EQ(find_clock_gettime(reinterpret_cast<unsigned long>(nonsense.data())), nullptr);
  // An ELF file without segments.
  std::memset(nonsense.data(), 0, nonsense.size());
  std::memcpy(nonsense.data(), "\177ELF\002\001\001", 7);
  EXPECT_EQ(find_clock_gettime(reinterpret_cast<unsigned long>(nonsense.data())), nullptr);
}

}  // namespace
}  // namespace sluice::guest
