#include "guest/sys.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/stat.h>
#include <linux/time_types.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace sluice::guest::sys {

namespace {
// Kernel results in [-4095, -1] are errors.
bool failed(long result) {
  return result < 0 && result >= -4095;
}
}  // namespace

void* map_pages(size_t bytes) {
  const long result = call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return failed(result) ? nullptr : reinterpret_cast<void*>(result);
}

void unmap_pages(void* address, size_t bytes) {
  call_pointer(SYS_munmap, address, static_cast<long>(bytes));
}

int open_file(const char* path, bool writable) {
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC;
  return static_cast<int>(call(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path), flags, 0));
}

void close_file(int descriptor) {
  call(SYS_close, descriptor);
}

bool file_id(int descriptor, FileId& out) {
  struct statx state = {};
  const long result = call(SYS_statx, descriptor, reinterpret_cast<long>(""), AT_EMPTY_PATH, STATX_BASIC_STATS,
                           reinterpret_cast<long>(&state));
  if (failed(result)) return false;
  out.device = (static_cast<uint64_t>(state.stx_dev_major) << 32) | state.stx_dev_minor;
  out.inode = state.stx_ino;
  out.bytes = state.stx_size;
  out.regular = (state.stx_mode & S_IFMT) == S_IFREG;
  return true;
}

void* map_file(int descriptor, size_t bytes, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const long result = call(SYS_mmap, 0, static_cast<long>(bytes), protection, MAP_SHARED, descriptor, 0);
  return failed(result) ? nullptr : reinterpret_cast<void*>(result);
}

namespace {

constexpr size_t kStackBytes = 64 << 10;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers need threads that they know. The table is left in the new thread (CLOSE_RANGE_UNSHARE is Linux 5.9).
struct Start {
  void (*body)(void*);
  void* argument;
};
void* run(void* raw) {
  const Start start = *static_cast<Start*>(raw);
  unmap_pages(raw, sizeof(Start));
  constexpr long kCloseRangeUnshare = 2;
  call(SYS_close_range, 0xfffffffl, 0xffffffffl, kCloseRangeUnshare);
  start.body(start.argument);
  return nullptr;
}
bool clone_thread(void* stack, void (*body)(void*), void* argument) {
  unmap_pages(stack, kStackBytes);
  auto* start = static_cast<Start*>(map_pages(sizeof(Start)));
  if (start == nullptr) return false;
  *start = {body, argument};
  pthread_t thread = {};
  if (pthread_create(&thread, nullptr, run, start) != 0) return false;
  pthread_detach(thread);
  return true;
}
#else
bool clone_thread(void* stack, void (*body)(void*), void* argument) {
  // All that threads share but CLONE_FILES.
  constexpr long kFlags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + kStackBytes);
  *--top = argument;
  *--top = reinterpret_cast<void*>(body);
  long result = SYS_clone;
  register long parent_tid __asm__("rdx") = 0;
  register long child_tid __asm__("r10") = 0;
  register long tls __asm__("r8") = 0;
  // The child finds both words on its stack, which is then aligned as for a call. Its stack is never given back: it
  // stands on it to its end.
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "pop %%rax\n\t"
      "pop %%rdi\n\t"
      "call *%%rax\n\t"
      "mov %[exit], %%eax\n\t"
      "xor %%edi, %%edi\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "+a"(result)
      : "D"(kFlags), "S"(top), "r"(parent_tid), "r"(child_tid), "r"(tls), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory");
  if (!failed(result)) return true;
  unmap_pages(stack, kStackBytes);
  return false;
}
#endif

}  // namespace

bool start_thread_apart(void (*body)(void*), void* argument) {
  void* stack = map_pages(kStackBytes);
  if (stack == nullptr) return false;
  uint64_t all = ~0ull;
  uint64_t before = 0;
  constexpr long kSetMask = 2;  // SIG_SETMASK
  constexpr long kSetBytes = 8;
  call(SYS_rt_sigprocmask, kSetMask, reinterpret_cast<long>(&all), reinterpret_cast<long>(&before), kSetBytes);
  const bool started = clone_thread(stack, body, argument);
  call(SYS_rt_sigprocmask, kSetMask, reinterpret_cast<long>(&before), 0, kSetBytes);
  return started;
}

int process_id() {
  return static_cast<int>(call(SYS_getpid));
}
int thread_id() {
  return static_cast<int>(call(SYS_gettid));
}
void yield() {
  call(SYS_sched_yield);
}

uint64_t monotonic_ns() {
  struct __kernel_timespec time = {};
  call(SYS_clock_gettime, 1 /* CLOCK_MONOTONIC */, reinterpret_cast<long>(&time));
  return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace sluice::guest::sys
