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

int RecordLocks::open(const char* path) {
  const int descriptor = sys::open_file(path, true);
  if (descriptor < 0) return descriptor;
  if (!sys::file_id(descriptor, id_)) return -9;  // EBADF
  path_ = path;
  descriptor_.store(descriptor, std::memory_order_release);
  renew();
  return 0;
}

bool RecordLocks::forked() {
  if (sentinel_ != nullptr) return sentinel_->load(std::memory_order_relaxed) == 0;
  return sys::process_id() != pid_;
}

void RecordLocks::renew() {
  pid_ = sys::process_id();
  // Two copies of the library in one process compute the same value; other processes another one.
  const unsigned long address = getauxval(AT_RANDOM);
  uint64_t seed[2] = {0, 0};
  if (address != 0) __builtin_memcpy(seed, reinterpret_cast<const void*>(address), sizeof seed);
  token_ = mix64(seed[0] ^ mix64(seed[1] + static_cast<uint64_t>(pid_)));
  if (token_ == 0) token_ = 1;
  for (std::atomic<uint64_t>& held : held_) held.store(0, std::memory_order_relaxed);
  reopening_.store(0, std::memory_order_relaxed);
  if (sentinel_ == nullptr) {
    void* page = sys::map_pages(4096);
    if (page != nullptr && sys::call_pointer(SYS_madvise, page, 4096, MADV_WIPEONFORK) == 0) {
      sentinel_ = static_cast<std::atomic<uint32_t>*>(page);
    }
  }
  if (sentinel_ != nullptr) sentinel_->store(1, std::memory_order_relaxed);
}

bool RecordLocks::descriptor_valid() const {
  sys::FileId now;
  return sys::file_id(descriptor_.load(std::memory_order_acquire), now) && now.device == id_.device &&
         now.inode == id_.inode;
}

bool RecordLocks::reopen() {
  if (reopening_.exchange(1, std::memory_order_acquire) != 0) return false;  // another thread is at it: try later
  bool good = descriptor_valid();
  if (!good) {
    const int descriptor = sys::open_file(path_, true);
    sys::FileId now;
    good = descriptor >= 0 && sys::file_id(descriptor, now) && now.device == id_.device && now.inode == id_.inode;
    if (good) {
      descriptor_.store(descriptor, std::memory_order_release);
      for (const std::atomic<uint64_t>& held : held_) {
        const uint64_t offset = held.load(std::memory_order_relaxed);
        if (offset != 0) set_lock(F_WRLCK, offset);
      }
    }
  }
  reopening_.store(0, std::memory_order_release);
  return good;
}

bool RecordLocks::set_lock(short type, uint64_t offset) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  return sys::call(SYS_fcntl, descriptor_.load(std::memory_order_acquire), F_SETLK, reinterpret_cast<long>(&lock)) == 0;
}

void RecordLocks::remember(uint64_t offset, bool held) {
  for (std::atomic<uint64_t>& entry : held_) {
    if (entry.load(std::memory_order_relaxed) == offset) {
      if (!held) entry.store(0, std::memory_order_relaxed);
      return;
    }
  }
  if (!held) return;
  for (std::atomic<uint64_t>& entry : held_) {
    uint64_t empty = 0;
    if (entry.compare_exchange_strong(empty, offset, std::memory_order_relaxed)) return;
  }
}

bool RecordLocks::try_lock(uint64_t offset) {
  if (!descriptor_valid() && !reopen()) return false;
  if (!set_lock(F_WRLCK, offset)) return false;
  remember(offset, true);
  return true;
}

void RecordLocks::unlock(uint64_t offset) {
  remember(offset, false);
  if (descriptor_valid()) set_lock(F_UNLCK, offset);
}

int RecordLocks::owner_pid(uint64_t offset) {
  if (!descriptor_valid() && !reopen()) return 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  if (sys::call(SYS_fcntl, descriptor, F_GETLK, reinterpret_cast<long>(&lock)) != 0) return 0;
  if (lock.l_type == F_UNLCK) return 0;
  return lock.l_pid > 0 ? lock.l_pid : -1;
}

}  // namespace sluice::guest
