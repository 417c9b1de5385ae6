#include "guest/lock_keeper.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "guest/sys.h"

namespace sluice::guest {

namespace {

constexpr long kCloseRange = 436;  // SYS_close_range, Linux 5.9; C libraries of the oldest images do not know it
constexpr int kMostDescriptors = 1 << 20;
constexpr uint64_t kPatienceNs = 3'600'000'000'000;

bool set_lock(int descriptor, short type, uint64_t start, uint64_t bytes) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = 0;
  lock.l_start = static_cast<off_t>(start);
  lock.l_len = static_cast<off_t>(bytes);
  return sys::call(SYS_fcntl, descriptor, F_SETLK, reinterpret_cast<long>(&lock)) == 0;
}

// Leaves this one descriptor in the calling thread's table. What was copied with it would keep the program's pipes and
// connections open. By the limit of descriptors where the kernel closes no ranges.
void close_others(int descriptor) {
  if (sys::call(kCloseRange, descriptor + 1, 0xffffffffl, 0) == 0) {
    if (descriptor > 0) sys::call(kCloseRange, 0, descriptor - 1, 0);
    return;
  }
  struct {
    uint64_t now, most;
  } limit = {};
  constexpr long kNumberOfFiles = 7;  // RLIMIT_NOFILE
  sys::call(SYS_prlimit64, 0, kNumberOfFiles, 0, reinterpret_cast<long>(&limit));
  const int end = limit.most < kMostDescriptors ? static_cast<int>(limit.most) : kMostDescriptors;
  for (int other = 0; other < end; ++other) {
    if (other != descriptor) sys::close_file(other);
  }
}

}  // namespace

struct LockKeeper::Desk {
  std::atomic<uint32_t> asked{0};     // counts questions; futex word towards the thread
  std::atomic<uint32_t> answered{0};  // and answers; futex word towards the asker
  int descriptor = -1;
  sys::FileId file;
  short type = 0;
  bool last = false;
  bool answer = false;
  uint64_t start = 0;
  uint64_t bytes = 0;
};

void LockKeeper::serve(void* raw) {
  Desk* desk = static_cast<Desk*>(raw);
  OsWaiter waiter;
  close_others(desk->descriptor);
  sys::FileId file;
  desk->answer =
      sys::file_id(desk->descriptor, file) && file.device == desk->file.device && file.inode == desk->file.inode;
  const bool wrong = !desk->answer;
  for (uint32_t seen = 1;; ++seen) {
    const bool last = desk->last || wrong;
    if (last) sys::close_file(desk->descriptor);  // and with it the locks
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
  desk->file = file_;
  desk->asked.store(1, std::memory_order_relaxed);
  if (!sys::start_thread_apart(serve, desk)) {
    sys::unmap_pages(room, sizeof(Desk));
    return false;
  }
  if (!wait_for_answer(desk, 1, waiter_)) return false;  // its page stays: the thread may still be on its way out
  desk_ = desk;
  return true;
}

void LockKeeper::prepare(int descriptor) {
  SpinGuard guard(lock_, &waiter_);
  if (desk_ == nullptr) start(descriptor);
}

bool LockKeeper::set(int descriptor, short type, uint64_t start_byte, uint64_t bytes) {
  SpinGuard guard(lock_, &waiter_);
  // Without a thread there is no promise to keep: no lock, and so no memory.
  if (desk_ == nullptr && !start(descriptor)) return false;
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
}

void LockKeeper::stop() {
  SpinGuard guard(lock_, &waiter_);
  if (desk_ == nullptr) return;
  desk_->last = true;
  const uint32_t number = desk_->asked.load(std::memory_order_relaxed) + 1;
  desk_->asked.store(number, std::memory_order_release);
  waiter_.wake(reinterpret_cast<volatile uint32_t*>(&desk_->asked), 1);
  wait_for_answer(desk_, number, waiter_);
  desk_ = nullptr;
}

}  // namespace sluice::guest
