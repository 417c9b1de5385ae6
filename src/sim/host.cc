// The real machine behind the seam.
#include "sim/host.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

namespace sluice::sim {

void Host::lock(HostLock& lock) {
  uint32_t expected = 0;
  while (!lock.word.compare_exchange_strong(expected, 1, std::memory_order_acquire)) {
    expected = 0;
    wait_until(now_ns() + 500, WaitMode::kSpin);
  }
}

void Host::unlock(HostLock& lock) {
  lock.word.store(0, std::memory_order_release);
}

namespace {

constexpr uint64_t kShortNs = 20000;  // waits this short are spun (a sleep takes longer)
constexpr uint64_t kWakeNs = 60000;   // how late a sleep may end

class RealHost : public Host {
 public:
  uint64_t now_ns() override {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
  }

  void wait_until(uint64_t t_ns, WaitMode mode) override {
    for (uint64_t now = now_ns(); now < t_ns; now = now_ns()) {
      const uint64_t left = t_ns - now;
      if (mode == WaitMode::kSpin) {
        __builtin_ia32_pause();
      } else if (mode == WaitMode::kYield) {
        sched_yield();
      } else if (left > kShortNs + kWakeNs) {
        nap(left - kWakeNs);
      } else if (mode == WaitMode::kBlock && left > kShortNs) {
        nap(left);
      } else {
        sched_yield();
      }
    }
  }

  void charge(Charge, uint64_t) override {}

  // All signals blocked: the program's handlers run on the program's threads.
  void spawn(void (*fn)(void*), void* argument) override {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([fn, argument] { fn(argument); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void lock(HostLock& lock) override {
    uint32_t expected = 0;
    if (lock.word.compare_exchange_strong(expected, 1, std::memory_order_acquire)) return;
    while (lock.word.exchange(2, std::memory_order_acquire) != 0) {
      syscall(SYS_futex, &lock.word, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
    }
  }

  void unlock(HostLock& lock) override {
    if (lock.word.exchange(0, std::memory_order_release) == 2) {
      syscall(SYS_futex, &lock.word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }

 private:
  static void nap(uint64_t ns) {
    const timespec time{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    nanosleep(&time, nullptr);
  }
};

}  // namespace

Host& real_host() {
  static RealHost host;
  return host;
}

}  // namespace sluice::sim
