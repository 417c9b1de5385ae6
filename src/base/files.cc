#include "base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice {

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Error errno_error(std::string_view what, std::string_view path, int errno_value) {
  ErrorCode code = ErrorCode::kInternal;
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      code = ErrorCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermission;
      break;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = ErrorCode::kExhausted;
      break;
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      code = ErrorCode::kInvalid;
      break;
    case EEXIST:
      code = ErrorCode::kExists;
      break;
    default:
      break;
  }
  return {code, fmt::format("{} {}: {}", what, path, std::strerror(errno_value))};
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open", path, errno);
  std::string text;
  char buffer[16384];
  while (true) {
    ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("cannot read", path, errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > max_bytes) return invalid(fmt::format("{} is larger than {} bytes", path, max_bytes));
  }
}

Result<void> write_file_atomic(const std::string& path, std::string_view text, mode_t mode) {
  std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd.valid()) return errno_error("cannot create", temporary, errno);
  auto fail = [&](std::string_view what) -> Result<void> {
    Error error = errno_error(what, temporary, errno);
    ::unlink(temporary.c_str());
    return error;
  };
  while (!text.empty()) {
    ssize_t put = ::write(fd.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail("cannot write");
    text.remove_prefix(static_cast<size_t>(put));
  }
  if (::fsync(fd.get()) != 0) return fail("cannot sync");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail("cannot rename");
  return {};
}

Result<void> make_directories(const std::string& path, mode_t mode) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) return errno_error("cannot create directory", part, errno);
    if (slash == std::string::npos) return {};
  }
}

}  // namespace sluice
