// Whole-file reads and writes with errors as values. Writes are atomic: readers see the old text or the new one.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace sluice {

// Owns one file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// At most max_bytes; a longer file is an error, not a cut text.
Result<std::string> read_file(const std::string& path, size_t max_bytes = 64u << 20);

// Writes path + ".tmp-<pid>", syncs it and renames it over path. A failure leaves the old file as it was.
Result<void> write_file_atomic(const std::string& path, std::string_view text, mode_t mode = 0644);

// Creates a directory and its missing parents.
Result<void> make_directories(const std::string& path, mode_t mode = 0755);

// "what path: reason" with the kind of error that errno_value stands for.
Error errno_error(std::string_view what, std::string_view path, int errno_value);

}  // namespace sluice
