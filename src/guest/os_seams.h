// The seams of a real process: CLOCK_MONOTONIC and futexes. Its identity is in record_locks.h.
#pragma once

#include <atomic>

#include "guest/seams.h"
#include "guest/sys.h"

namespace sluice::guest {

class OsClock final : public Clock {
 public:
  constexpr OsClock() = default;
  uint64_t now_ns() override;

 private:
  // The kernel's function in this process's own memory; kUnknown until the first look, 0 where there is none.
  static constexpr unsigned long kUnknown = 1;
  unsigned long look_up();
  std::atomic<unsigned long> function_{kUnknown};
};

class OsWaiter final : public Waiter {
 public:
  bool wait(const volatile uint32_t* word, uint32_t expected, uint64_t timeout_ns) override;
  void wake(volatile uint32_t* word, uint32_t count) override;
  void spin_pause() override;
  bool may_spin() override;
  void sleep_ns(uint64_t duration_ns) override;
  bool start_thread(void (*body)(void*), void* argument) override;

 private:
  std::atomic<uint32_t> processors_{0};  // that this process may use; 0: not looked up
};

}  // namespace sluice::guest
