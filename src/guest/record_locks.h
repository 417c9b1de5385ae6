// Identity of a real process: record locks on the usage file.
//
// The file is opened once, close-on-exec, and never closed by us. What has to last as long as the process (ownership of
// its slots, its tally) is locked by a thread with a descriptor table of its own (lock_keeper.h), which the program
// cannot reach. The ledger's mutex, held for microseconds, is locked by the calling thread in the program's table: a
// program may close the descriptor under us (closefrom, "close everything" loops) and its number may be something else
// by then, so each use compares device and inode, and a lost descriptor is opened again.
#pragma once

#include <atomic>

#include "guest/lock_keeper.h"
#include "guest/os_seams.h"
#include "guest/seams.h"
#include "guest/spin.h"
#include "guest/sys.h"
#include "page/tally.h"

namespace sluice::guest {

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

  void prepare() override;
  bool hold_slot(uint32_t card, uint32_t slot) override;
  void leave_slot(uint32_t card, uint32_t slot) override;
  bool raise_tally(uint32_t card, uint32_t slot, uint64_t bytes) override;
  void lower_tally(uint32_t card, uint32_t slot, uint64_t bytes) override;
  OwnTally own_tally(uint32_t card) override;
  bool hold_shared(uint64_t start, uint64_t units) override;
  void leave_shared(uint64_t start, uint64_t units) override;
  bool locked_range(uint64_t start, uint64_t end, page::LockedRange& found) override;

  // Ends the keeper's thread; for tests, which have several of these in a process.
  void stop() { keeper_.stop(); }

 private:
  struct Tally {
    std::atomic<uint64_t> bytes;  // charged by this copy of the library
    std::atomic<uint32_t> slot;   // to this slot, plus 1; 0: none yet
    uint64_t units;               // of which the lane's lock tells; under tally_lock_, as what follows
    uint32_t lane;                // plus 1; 0: none
  };

  bool descriptor_valid() const;
  bool usable() { return descriptor_valid() || reopen(); }
  bool reopen();
  bool set_lock(short type, uint64_t offset);
  bool settle_tally(uint32_t card, uint32_t slot);
  bool take_lane(Tally& tally, uint32_t card, uint32_t slot);

  const char* path_ = nullptr;
  std::atomic<int> descriptor_{-1};
  std::atomic<uint32_t> reopening_{0};
  sys::FileId id_ = {};
  std::atomic<uint32_t> held_slots_[page::kMaxCards] = {};  // plus 1; 0 = none
  std::atomic<uint32_t>* sentinel_ = nullptr;               // a page that the kernel wipes in a forked child
  uint64_t token_ = 0;
  int pid_ = 0;
  LockKeeper keeper_;
  SpinLock tally_lock_;
  Tally tallies_[page::kMaxCards] = {};
  OsWaiter waiter_;
};

}  // namespace sluice::guest
