// Raw system calls. The libraries must load on any C library and must leave errno alone, so files, mappings, locks and
// futexes go to the kernel directly. Results are the kernel's: negative errno on failure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::guest::sys {

#if defined(__x86_64__)
inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#else
#error "the guest libraries know the system calls of x86-64 only"
#endif

inline long call_pointer(long number, const void* a, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  return call(number, reinterpret_cast<long>(a), b, c, d, e, f);
}

// Anonymous private memory, zeroed; nullptr when there is none. `bytes` is rounded up to whole pages by the kernel.
void* map_pages(size_t bytes);
void unmap_pages(void* address, size_t bytes);

// Opens with O_CLOEXEC; `writable` = O_RDWR. The descriptor or a negative errno.
int open_file(const char* path, bool writable);
void close_file(int descriptor);
// Size, device and inode of an open file; false when the descriptor is not one.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  bool regular = false;  // a file in memory or on a disk, with an inode of its own
};
bool file_id(int descriptor, FileId& out);
// Maps the first `bytes` of a file shared; nullptr on failure.
void* map_file(int descriptor, size_t bytes, bool writable);

// Starts body(argument) on a thread that shares the process's memory but has a copy of its descriptor table as a table
// of its own. Not the C library's: a statically linked program has no thread functions that a loaded library may call,
// and theirs share the table. So the body makes system calls only: no thread storage of its own, no C library, nothing
// that the program's handlers could run on it (signals are blocked). False when there is none to be had.
bool start_thread_apart(void (*body)(void*), void* argument);

int process_id();
int thread_id();
void yield();
uint64_t monotonic_ns();

}  // namespace sluice::guest::sys
