// The seams of a real process: CLOCK_MONOTONIC, futexes, record locks on the usage file.
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

// The usage file's descriptor and the locks on it. Opened once, close-on-exec, and never closed: closing any descriptor
// of the file drops all of the process's record locks. A program may close it under us (closefrom, "close everything"
// loops) and its number may be something else by then, so each use compares device and inode; a lost descriptor is
// opened again, and the slot locks that went with it are taken again.
class RecordLocks final : public Identity {
 public:
  // Opens the file; 0 or a negative errno. `path` must stay valid.
  int open(const char* path);
  int descriptor() const { return descriptor_.load(std::memory_order_acquire); }

  uint64_t exec_token() override { return token_; }
  bool forked() override;
  void renew() override;
  bool try_lock(uint64_t offset) override;
  void unlock(uint64_t offset) override;
  int owner_pid(uint64_t offset) override;
  int own_pid() override { return pid_; }

 private:
  static constexpr uint32_t kMaxHeld = 64;

  bool descriptor_valid() const;
  bool reopen();
  bool set_lock(short type, uint64_t offset);
  void remember(uint64_t offset, bool held);

  const char* path_ = nullptr;
  std::atomic<int> descriptor_{-1};
  std::atomic<uint32_t> reopening_{0};
  sys::FileId id_ = {};
  std::atomic<uint64_t> held_[kMaxHeld] = {};  // offsets of locks to take again, 0 = none
  std::atomic<uint32_t>* sentinel_ = nullptr;  // a page that the kernel wipes in a forked child
  uint64_t token_ = 0;
  int pid_ = 0;
};

}  // namespace sluice::guest
