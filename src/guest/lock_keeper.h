// Record locks that the program around us cannot lose by accident or on purpose.
//
// A record lock belongs to a table of descriptors: any close() of the file in that table drops it, also of a descriptor
// that the program opened itself. So a thread of our own, with a table of its own in which nothing but the usage file
// is open, holds the locks. The kernel names the same process as their owner, drops them when the process ends or
// executes another program, and gives a forked child none of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "guest/os_seams.h"
#include "guest/spin.h"
#include "guest/sys.h"

namespace sluice::guest {

class LockKeeper {
 public:
  // Sets (F_WRLCK, F_RDLCK) or drops (F_UNLCK) the lock on `bytes` bytes from `start` of the file that `descriptor`
  // names in the program's table. False: somebody else has part of it, or the kernel would not. Starts the thread at
  // the first call.
  bool set(int descriptor, short type, uint64_t start, uint64_t bytes);
  // The file whose locks these are. Between our look at the program's descriptor and the thread's copy of it the
  // program may close it and open another file under its number: such a thread is not kept.
  void expect(const sys::FileId& file) { file_ = file; }
  // Starts the thread, if there is none yet.
  void prepare(int descriptor);
  // In a forked child: the thread and the locks are the parent's.
  void forget();
  // Ends the thread; for tests, which have more than one of these in a process.
  void stop();

 private:
  struct Desk;
  static void serve(void* raw);
  bool start(int descriptor);

  SpinLock lock_;
  // Where questions are left for the thread; mapped, so that it outlives this object. None: no thread yet.
  Desk* desk_ = nullptr;
  sys::FileId file_;
  OsWaiter waiter_;
};

}  // namespace sluice::guest
