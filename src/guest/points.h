// Labelled steps at which a test may kill or stop the process, to show that the ledger stays right wherever a program
// dies. In the shipped library the function pointer is null: one load and a branch, on paths that call the kernel
// anyway.
#pragma once

#include <cstdint>

namespace sluice::guest {

// Order of a reservation's life. Names are what tests ask for.
#define SLUICE_POINTS(X) \
  X(kClaimLocked)        \
  X(kClaimPublished)     \
  X(kMutexWordTaken)     \
  X(kMutexHeld)          \
  X(kSummed)             \
  X(kReserved)           \
  X(kTallied)            \
  X(kMutexLockDropped)   \
  X(kBeforeDriver)       \
  X(kAfterDriver)        \
  X(kBooked)             \
  X(kBeforeDriverFree)   \
  X(kAfterDriverFree)    \
  X(kGivenBack)

enum Point : uint32_t {
#define SLUICE_POINT_ENUM(name) name,
  SLUICE_POINTS(SLUICE_POINT_ENUM)
#undef SLUICE_POINT_ENUM
      kPointCount
};

using PointFunction = void (*)(void* context, Point point);

struct Points {
  PointFunction function = nullptr;
  void* context = nullptr;

  void at(Point point) const {
    if (__builtin_expect(function != nullptr, 0)) function(context, point);
  }
};

}  // namespace sluice::guest
