#include "guest/os_seams.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/time_types.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "guest/map.h"
#include "guest/vdso.h"

namespace sluice::guest {

namespace {

__kernel_timespec timespec_of(uint64_t ns) {
  __kernel_timespec time = {};
  time.tv_sec = static_cast<long long>(ns / 1000000000ull);
  time.tv_nsec = static_cast<long long>(ns % 1000000000ull);
  return time;
}

// What a new thread is told; lives until the thread has read it.
struct ThreadStart {
  void (*body)(void*);
  void* argument;
  uint64_t signals;
};

void* thread_main(void* raw) {
  ThreadStart start = *static_cast<ThreadStart*>(raw);
  sys::unmap_pages(raw, sizeof(ThreadStart));
  // The settler's sleeps are short: the 50 us by which the kernel may round up a thread's timers would triple them.
  sys::call(SYS_prctl, PR_SET_TIMERSLACK, 1);
  start.body(start.argument);
  return nullptr;
}

constexpr long kSignalSetBytes = 8;
constexpr long kSetMask = 2;   // SIG_SETMASK
constexpr int kMonotonic = 1;  // CLOCK_MONOTONIC
// A launcher, a settler, the node's keeper and a neighbour's settler are awake together at a hand-over.
constexpr uint32_t kSpinProcessors = 4;
// Of shorter sleeps the kernel finds the timer expired before it has switched away: the thread keeps its processor, and
// a loop of them keeps everybody else from it for whole time slices (2 to 8 ms, measured on Linux 6.18).
constexpr uint64_t kShortestSleepNs = 20'000;

}  // namespace

unsigned long OsClock::look_up() {
  const unsigned long found = reinterpret_cast<unsigned long>(find_clock_gettime(getauxval(AT_SYSINFO_EHDR)));
  function_.store(found, std::memory_order_relaxed);
  return found;
}

uint64_t OsClock::now_ns() {
  unsigned long function = function_.load(std::memory_order_relaxed);
  if (__builtin_expect(function == kUnknown, 0)) function = look_up();
  __kernel_timespec time = {};
  if (__builtin_expect(function == 0, 0) || reinterpret_cast<ClockGettime>(function)(kMonotonic, &time) != 0) {
    return sys::monotonic_ns();
  }
  return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

bool OsWaiter::wait(const volatile uint32_t* word, uint32_t expected, uint64_t timeout_ns) {
  const __kernel_timespec timeout = timespec_of(timeout_ns);
  const long result = sys::call(SYS_futex, reinterpret_cast<long>(word), FUTEX_WAIT, static_cast<long>(expected),
                                reinterpret_cast<long>(&timeout));
  return result != -110;  // ETIMEDOUT
}

void OsWaiter::wake(volatile uint32_t* word, uint32_t count) {
  sys::call(SYS_futex, reinterpret_cast<long>(word), FUTEX_WAKE, static_cast<long>(count));
}

void OsWaiter::spin_pause() {
  __builtin_ia32_pause();
}

bool OsWaiter::may_spin() {
  uint32_t count = processors_.load(std::memory_order_relaxed);
  if (count == 0) {
    uint64_t mask[64] = {};
    const long bytes = sys::call(SYS_sched_getaffinity, 0, sizeof mask, reinterpret_cast<long>(mask));
    for (long i = 0; i < bytes / 8; ++i) {
      for (uint64_t word = mask[i]; word != 0; word &= word - 1) ++count;
    }
    if (count == 0) count = 1;
    processors_.store(count, std::memory_order_relaxed);
  }
  return count >= kSpinProcessors;
}

void OsWaiter::sleep_ns(uint64_t duration_ns) {
  if (duration_ns <= kSpunSleepNs && may_spin()) {
    // Yielding between looks: on a busy machine whoever is waited for may need this very core.
    const uint64_t end_ns = sys::monotonic_ns() + duration_ns;
    while (sys::monotonic_ns() < end_ns) sys::yield();
    return;
  }
  const __kernel_timespec time = timespec_of(duration_ns < kShortestSleepNs ? kShortestSleepNs : duration_ns);
  sys::call(SYS_nanosleep, reinterpret_cast<long>(&time), 0);
}

bool OsWaiter::start_thread(void (*body)(void*), void* argument) {
  void* room = sys::map_pages(sizeof(ThreadStart));
  if (room == nullptr) return false;
  ThreadStart* start = static_cast<ThreadStart*>(room);
  start->body = body;
  start->argument = argument;
  // The program's signal handlers must not run on a thread that it does not know.
  uint64_t all = ~0ull;
  uint64_t before = 0;
  sys::call(SYS_rt_sigprocmask, kSetMask, reinterpret_cast<long>(&all), reinterpret_cast<long>(&before),
            kSignalSetBytes);
  pthread_t thread = {};
  const bool started = pthread_create(&thread, nullptr, thread_main, start) == 0;
  sys::call(SYS_rt_sigprocmask, kSetMask, reinterpret_cast<long>(&before), 0, kSignalSetBytes);
  if (started) {
    pthread_detach(thread);
  } else {
    sys::unmap_pages(room, sizeof(ThreadStart));
  }
  return started;
}

}  // namespace sluice::guest
