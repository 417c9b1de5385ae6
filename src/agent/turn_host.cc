#include "agent/turn_host.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace sluice::agent {

namespace {

constexpr size_t kMostWords = 128;  // of one futex_waitv
constexpr uint64_t kLookNs = 200'000;

// Layout of struct futex_waitv in linux/futex.h since 5.16.
struct WaitWord {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint32_t kWord32Shared = 2;

constexpr unsigned kSpinProcessors = 4;
// Of shorter sleeps the kernel finds the timer expired before it has switched away, and the thread keeps its processor.
constexpr uint64_t kNapNs = 25'000;

// The thread that hands cards over sleeps nearly always and is short when it runs: it goes before everything else where
// that is allowed, and its timers are as sharp as the machine has them.
bool make_sharp() {
  sched_param first{};
  first.sched_priority = 1;
  const bool first_of_all = sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &first) == 0;
  return prctl(PR_SET_TIMERSLACK, 1UL) == 0 && first_of_all;
}

timespec timespec_of(uint64_t ns) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return time;
}

}  // namespace

LinuxTurnHost::LinuxTurnHost() : spins_(std::thread::hardware_concurrency() >= kSpinProcessors) {
  timespec past = timespec_of(1);
  WaitWord none{};
  static uint32_t word = 0;
  none.address = reinterpret_cast<uint64_t>(&word);
  none.flags = kWord32Shared;
  many_ = syscall(SYS_futex_waitv, &none, 1, 0, &past, CLOCK_MONOTONIC) != -1 || errno == ETIMEDOUT;
}

uint64_t LinuxTurnHost::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void LinuxTurnHost::wait_any(std::span<const Word> words, uint64_t deadline_ns) {
  if (words.empty()) return;
  thread_local const bool sharp = make_sharp();
  (void)sharp;
  if (!many_ || words.size() > kMostWords) {
    const uint64_t now = now_ns();
    const uint64_t until = std::min(deadline_ns, now + kLookNs);
    const timespec timeout = timespec_of(until > now ? until - now : 0);
    syscall(SYS_futex, words.back().address, FUTEX_WAIT, words.back().expected, &timeout, nullptr, 0);
    return;
  }
  WaitWord list[kMostWords];
  for (size_t i = 0; i < words.size(); ++i) {
    list[i] = {words[i].expected, reinterpret_cast<uint64_t>(words[i].address), kWord32Shared, 0};
  }
  const timespec deadline = timespec_of(deadline_ns);
  const long result =
      syscall(SYS_futex_waitv, list, static_cast<unsigned>(words.size()), 0, &deadline, CLOCK_MONOTONIC);
  // A page that a tenant has cut off gives EFAULT at once: no busy loop over it.
  if (result == -1 && errno == EFAULT) {
    const timespec pause = timespec_of(kLookNs);
    nanosleep(&pause, nullptr);
  }
}

void LinuxTurnHost::wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

void LinuxTurnHost::spin_pause() {
  // On few processors a spinning keeper would take one from the settler whose news it waits for.
  if (spins_) {
    sched_yield();
    return;
  }
  const timespec pause = timespec_of(kNapNs);
  nanosleep(&pause, nullptr);
}

}  // namespace sluice::agent
