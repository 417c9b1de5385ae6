#include "guest/lock_keeper.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "guest/sys.h"

namespace sluice::guest {

namespace {

constexpr long kUnshareTable = 2;  // CLOSE_RANGE_UNSHARE
constexpr long kCloseRange = 436;  // SYS_close_range; C libraries of the oldest images do not know it
constexpr uint64_t kPatienceNs = 3'600'000'000'000;

bool set_lock(int descriptor, short type, uint64_t start, uint64_t bytes) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(start);
  lock.l_len = static_cast<off_t>(bytes);
  return sys::call(SYS_fcntl, descriptor, F_SETLK, reinterpret_cast<long>(&lock)) == 0;
}

// The calling thread's table becomes its own, with this one descriptor in it.
bool leave_table(int descriptor) {
  if (sys::call(kCloseRange, descriptor + 1, 0xffffffffl, kUnshareTable) != 0) return false;
  if (descriptor > 0) sys::call(kCloseRange, 0, descriptor - 1, 0);
  return true;
}

}  // namespace

struct LockKeeper::Desk {
  std::atomic<uint32_t> asked{0};     // counts questions; futex word towards the thread
  std::atomic<uint32_t> answered{0};  // and answers; futex word towards the asker
  int descriptor = -1;
  short type = 0;
  bool last = false;
  bool answer = false;
  uint64_t start = 0;
  uint64_t bytes = 0;
};

void LockKeeper::serve(void* raw) {
  Desk* desk = static_cast<Desk*>(raw);
  OsWaiter waiter;
  const bool apart = leave_table(desk->descriptor);
  desk->answer = apart;
  for (uint32_t seen = 1;; ++seen) {
    const bool last = desk->last || !apart;
    if (desk->last) sys::close_file(desk->descriptor);  // and with it the locks
    desk->answered.store(seen, std::memory_order_release);
    waiter.wake(reinterpret_cast<volatile uint32_t*>(&desk->answered), 1);
    if (last) return;
    while (desk->asked.load(std::memory_order_acquire) == seen) {
      waiter.wait(reinterpret_cast<volatile uint32_t*>(&desk->asked), seen, kPatienceNs);
    }
    desk->answer = !desk->last && set_lock(desk->descriptor, desk->type, desk->start, desk->bytes);
  }
}

namespace {

template <typename Desk>
bool wait_for_answer(Desk* desk, uint32_t number, OsWaiter& waiter) {
  for (uint32_t have; (have = desk->answered.load(std::memory_order_acquire)) != number;) {
    waiter.wait(reinterpret_cast<volatile uint32_t*>(&desk->answered), have, kPatienceNs);
  }
  return desk->answer;
}

}  // namespace

// Under lock_.
bool LockKeeper::start(int descriptor) {
  void* room = sys::map_pages(sizeof(Desk));
  if (room == nullptr) return false;
  Desk* desk = static_cast<Desk*>(room);
  desk->descriptor = descriptor;
  desk->asked.store(1, std::memory_order_relaxed);
  if (!waiter_.start_thread(serve, desk)) {
    sys::unmap_pages(room, sizeof(Desk));
    return false;
  }
  const bool apart = wait_for_answer(desk, 1, waiter_);
  desk_ = desk;
  state_.store(apart ? kApart : kTogether, std::memory_order_release);
  return true;
}

bool LockKeeper::set(int descriptor, short type, uint64_t start_byte, uint64_t bytes) {
  SpinGuard guard(lock_, &waiter_);
  // Without a thread there is no promise to keep: no lock, and so no memory.
  if (state_.load(std::memory_order_relaxed) == kNone && !start(descriptor)) return false;
  if (state_.load(std::memory_order_relaxed) == kTogether) return set_lock(descriptor, type, start_byte, bytes);
  desk_->type = type;
  desk_->start = start_byte;
  desk_->bytes = bytes;
  const uint32_t number = desk_->asked.load(std::memory_order_relaxed) + 1;
  desk_->asked.store(number, std::memory_order_release);
  waiter_.wake(reinterpret_cast<volatile uint32_t*>(&desk_->asked), 1);
  return wait_for_answer(desk_, number, waiter_);
}

void LockKeeper::forget() {
  lock_.reset();
  desk_ = nullptr;
  state_.store(kNone, std::memory_order_release);
}

void LockKeeper::stop() {
  SpinGuard guard(lock_, &waiter_);
  if (state_.load(std::memory_order_relaxed) != kApart) return;
  desk_->last = true;
  const uint32_t number = desk_->asked.load(std::memory_order_relaxed) + 1;
  desk_->asked.store(number, std::memory_order_release);
  waiter_.wake(reinterpret_cast<volatile uint32_t*>(&desk_->asked), 1);
  wait_for_answer(desk_, number, waiter_);
  desk_ = nullptr;
  state_.store(kNone, std::memory_order_release);
}

}  // namespace sluice::guest
