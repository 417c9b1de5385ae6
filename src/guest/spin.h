// A lock for the threads of one guest. Not a futex mutex: it is held for tens of instructions, never across a call into
// the driver, and it must work in the accuracy harness, where "other threads" are fibres that run only when this one
// pauses (so a holder never pauses while it holds it).
#pragma once

#include <atomic>
#include <cstdint>

#include "guest/seams.h"

namespace sluice::guest {

class SpinLock {
 public:
  void lock(Waiter* waiter) {
    while (word_.exchange(1, std::memory_order_acquire) != 0) {
      for (uint32_t round = 0; word_.load(std::memory_order_relaxed) != 0; ++round) {
        // A holder that lost its processor will not come back while this thread spins on it.
        if (round < 200) {
          waiter->spin_pause();
        } else {
          waiter->sleep_ns(20'000);
        }
      }
    }
  }
  bool try_lock() { return word_.exchange(1, std::memory_order_acquire) == 0; }
  void unlock() { word_.store(0, std::memory_order_release); }
  // After a fork: the thread that held it does not exist in the child.
  void reset() { word_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> word_{0};
};

class SpinGuard {
 public:
  SpinGuard(SpinLock& lock, Waiter* waiter) : lock_(lock) { lock_.lock(waiter); }
  ~SpinGuard() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace sluice::guest
