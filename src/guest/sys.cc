#include "guest/sys.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <linux/time.h>
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
  return true;
}

void* map_file(int descriptor, size_t bytes, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const long result = call(SYS_mmap, 0, static_cast<long>(bytes), protection, MAP_SHARED, descriptor, 0);
  return failed(result) ? nullptr : reinterpret_cast<void*>(result);
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
