// Record locks that the program around us cannot lose by accident or on purpose.
//
// A record lock belongs to a table of descriptors: any close() of the file in that table drops it, also of a descriptor
// that the program opened itself. So a thread of our own leaves the program's table for one of its own
// (CLOSE_RANGE_UNSHARE, Linux 5.9), in which nothing but the usage file is open, and holds the locks there. The kernel
// names the same process as their owner, drops them when the process ends or executes another program, and gives a
// forked child none of them.
//
// Where the kernel cannot do that (or a filter forbids it), locks are set in the program's own table, as far as they
// last there.
#pragma once

#include <atomic>
#include <cstdint>

#include "guest/os_seams.h"
#include "guest/spin.h"

namespace sluice::guest {

class LockKeeper {
 public:
  // Sets (F_WRLCK) or drops (F_UNLCK) the lock on `bytes` bytes from `start` of the file that `descriptor` names in the
  // program's table. False: somebody else has part of it, or the kernel would not. Starts the thread at the first call.
  bool set(int descriptor, short type, uint64_t start, uint64_t bytes);
  // True when locks outlive what the program does to its descriptors. Known after the first set().
  bool apart() const { return state_.load(std::memory_order_acquire) == kApart; }
  // In a forked child: the thread and the locks are the parent's.
  void forget();
  // Ends the thread; for tests, which have more than one of these in a process.
  void stop();

 private:
  enum State : uint32_t { kNone = 0, kApart = 1, kTogether = 2 };
  struct Desk;
  static void serve(void* raw);
  bool start(int descriptor);

  SpinLock lock_;
  std::atomic<uint32_t> state_{kNone};
  Desk* desk_ = nullptr;  // where questions are left for the thread; mapped, so that it outlives this object
  OsWaiter waiter_;
};

}  // namespace sluice::guest
