#include "guest/record_locks.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "guest/map.h"

namespace sluice::guest {

int RecordLocks::open(const char* path) {
  const int descriptor = sys::open_file(path, true);
  if (descriptor < 0) return descriptor;
  if (!sys::file_id(descriptor, id_)) return -9;  // EBADF
  path_ = path;
  descriptor_.store(descriptor, std::memory_order_release);
  keeper_.expect(id_);
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
  keeper_.forget();
  tally_lock_.reset();
  for (std::atomic<uint32_t>& held : held_slots_) held.store(0, std::memory_order_relaxed);
  for (Tally& tally : tallies_) {
    tally.bytes.store(0, std::memory_order_relaxed);
    tally.slot.store(0, std::memory_order_relaxed);
    tally.units = 0;
    tally.lane = 0;
  }
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
    if (good) descriptor_.store(descriptor, std::memory_order_release);
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

bool RecordLocks::try_lock(uint64_t offset) {
  return usable() && set_lock(F_WRLCK, offset);
}

void RecordLocks::unlock(uint64_t offset) {
  if (descriptor_valid()) set_lock(F_UNLCK, offset);
}

int RecordLocks::owner_pid(uint64_t offset) {
  if (!usable()) return 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  if (sys::call(SYS_fcntl, descriptor, F_GETLK, reinterpret_cast<long>(&lock)) != 0) return 0;
  if (lock.l_type == F_UNLCK || lock.l_pid == sys::process_id()) return 0;  // pid_ is the parent's in a forked child
  return lock.l_pid > 0 ? lock.l_pid : -1;
}

void RecordLocks::prepare() {
  if (usable()) keeper_.prepare(descriptor_.load(std::memory_order_acquire));
}

bool RecordLocks::hold_slot(uint32_t card, uint32_t slot) {
  if (held_slots_[card].load(std::memory_order_acquire) == slot + 1) return true;
  if (!usable()) return false;
  const uint64_t offset = page::slot_lock_byte(card, slot);
  if (keeper_.set(descriptor_.load(std::memory_order_acquire), F_WRLCK, offset, 1)) {
    held_slots_[card].store(slot + 1, std::memory_order_release);
    return true;
  }
  // Another copy of the library in this process has it: the process does.
  page::LockedRange found;
  return locked_range(offset, offset + 1, found) && owner_pid(offset) == 0;
}

void RecordLocks::leave_slot(uint32_t card, uint32_t slot) {
  held_slots_[card].store(0, std::memory_order_relaxed);
  if (usable()) {
    keeper_.set(descriptor_.load(std::memory_order_acquire), F_UNLCK, page::slot_lock_byte(card, slot), 1);
  }
}

bool RecordLocks::hold_shared(uint64_t start, uint64_t units) {
  return usable() && keeper_.set(descriptor_.load(std::memory_order_acquire), F_RDLCK, start, units);
}

void RecordLocks::leave_shared(uint64_t start, uint64_t units) {
  if (usable()) keeper_.set(descriptor_.load(std::memory_order_acquire), F_UNLCK, start, units);
}

bool RecordLocks::locked_range(uint64_t start, uint64_t end, page::LockedRange& found) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(start);
  lock.l_len = static_cast<off_t>(end - start);
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  if (sys::call(SYS_fcntl, descriptor, F_GETLK, reinterpret_cast<long>(&lock)) != 0) return false;
  if (lock.l_type == F_UNLCK) return false;
  found.start = static_cast<uint64_t>(lock.l_start);
  found.end = lock.l_len == 0 ? ~0ull : static_cast<uint64_t>(lock.l_start) + static_cast<uint64_t>(lock.l_len);
  found.pid = lock.l_pid;
  return true;
}

Identity::OwnTally RecordLocks::own_tally(uint32_t card) {
  return {tallies_[card].slot.load(std::memory_order_relaxed) - 1,
          tallies_[card].bytes.load(std::memory_order_acquire)};
}

bool RecordLocks::raise_tally(uint32_t card, uint32_t slot, uint64_t bytes) {
  Tally& tally = tallies_[card];
  tally.slot.store(slot + 1, std::memory_order_relaxed);
  uint64_t have = tally.bytes.load(std::memory_order_relaxed);
  while (
      !tally.bytes.compare_exchange_weak(have, have + bytes < have ? ~0ull : have + bytes, std::memory_order_acq_rel)) {
  }
  return settle_tally(card, slot);
}

void RecordLocks::lower_tally(uint32_t card, uint32_t slot, uint64_t bytes) {
  Tally& tally = tallies_[card];
  uint64_t have = tally.bytes.load(std::memory_order_relaxed);
  while (!tally.bytes.compare_exchange_weak(have, have > bytes ? have - bytes : 0, std::memory_order_acq_rel)) {
  }
  settle_tally(card, slot);
}

// Under tally_lock_.
bool RecordLocks::take_lane(Tally& tally, uint32_t card, uint32_t slot) {
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  for (uint32_t lane = 0; lane < page::kTallyLanes; ++lane) {
    if (!keeper_.set(descriptor, F_WRLCK, page::tally_byte(card, slot, lane), 1)) continue;
    tally.lane = lane + 1;
    tally.units = 1;
    return true;
  }
  return false;
}

// Makes the lock as long as the bytes say.
bool RecordLocks::settle_tally(uint32_t card, uint32_t slot) {
  Tally& tally = tallies_[card];
  SpinGuard guard(tally_lock_, &waiter_);
  const uint64_t whole = tally.bytes.load(std::memory_order_acquire) / page::kTallyUnitBytes;
  const uint64_t units = whole < page::kTallyLaneUnits ? whole : page::kTallyLaneUnits;
  if (units == tally.units) return true;
  if (tally.lane == 0 && !take_lane(tally, card, slot)) return false;
  const int descriptor = descriptor_.load(std::memory_order_acquire);
  const uint64_t first = page::tally_byte(card, slot, tally.lane - 1);
  if (units > tally.units && !keeper_.set(descriptor, F_WRLCK, first + tally.units, units - tally.units)) return false;
  if (units < tally.units) keeper_.set(descriptor, F_UNLCK, first + units, tally.units - units);
  tally.units = units;
  if (units == 0) tally.lane = 0;
  return true;
}

}  // namespace sluice::guest
