#include "base/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

#include "base/files.h"

namespace sluice {

Result<void> flush_output() {
  errno = 0;
  const bool before = std::ferror(stdout) != 0;
  const bool now = std::fflush(stdout) != 0;
  if (now) return errno_error("cannot write", "standard output", errno);
  if (before) return exhausted("cannot write standard output: a part of it did not arrive");
  return {};
}

int finish_output(std::string_view program, int status, int failed) {
  const Result<void> arrived = flush_output();
  if (arrived) return status;
  fmt::print(stderr, "{}: {}\n", program, arrived.error().message);
  return status == 0 ? failed : status;
}

}  // namespace sluice
