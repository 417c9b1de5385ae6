#include "agent/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace sluice::agent {
namespace {

constexpr int kListenBacklog = 128;

Result<sockaddr_un> socket_address(int directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = fmt::format("/proc/self/fd/{}/{}", directory, name);
  if (path.size() >= sizeof(address.sun_path)) return invalid(fmt::format("socket name {} is too long", name));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

std::string root_run_directory() {
  return "/run/sluice";
}

std::string user_run_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/sluice";
  return fmt::format("/tmp/sluice-{}", ::geteuid());
}

std::string default_run_directory() {
  return ::geteuid() == 0 ? root_run_directory() : user_run_directory();
}

Result<Fd> open_run_directory(const std::string& path) {
  const bool root = ::geteuid() == 0;
  if (path.empty() || path[0] != '/') {
    return invalid(fmt::format("run directory '{}': expected an absolute path (--run-dir or SLUICE_RUN_DIR)", path));
  }
  if (root) {
    size_t slash = path.find_last_of('/');
    if (slash > 0) {
      Result<void> parents = make_directories(path.substr(0, slash));
      if (!parents) return std::move(parents.error()).wrap("run directory");
    }
  }
  if (::mkdir(path.c_str(), root ? 0755 : 0700) != 0 && errno != EEXIST) {
    Error error = errno_error("cannot create the run directory", path, errno);
    if (error.code == ErrorCode::kPermission) error.message += "; choose another with --run-dir or SLUICE_RUN_DIR";
    return error;
  }
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open the run directory (a directory, no link)", path, errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return errno_error("cannot look at the run directory", path, errno);
  if (status.st_uid != ::geteuid()) {
    return permission(
        fmt::format("run directory {} belongs to uid {}, not to uid {}; remove it or choose another with "
                    "--run-dir or SLUICE_RUN_DIR",
                    path, status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & 0022) != 0) {
    return permission(fmt::format("run directory {} can be written by others (mode {:04o}); make it 0755 or 0700", path,
                                  status.st_mode & 07777));
  }
  return fd;
}

Result<Fd> lock_file(int directory, const std::string& directory_path, const std::string& name, int timeout_ms) {
  Fd fd(::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_error("cannot open the lock file", directory_path + "/" + name, errno);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return errno_error("cannot lock", directory_path + "/" + name, errno);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return unavailable(
          fmt::format("{}/{} is locked by another process ({})", directory_path, name, lock_holder(directory, name)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string text = fmt::format("pid {}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) == 0) {
    // Only for people: a file system that is full keeps nobody from the lock.
    [[maybe_unused]] ssize_t put = ::pwrite(fd.get(), text.data(), text.size(), 0);
  }
  return fd;
}

std::string last_holder(int directory, const std::string& name) {
  Fd fd(::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char buffer[64] = "";
  if (!fd.valid() || ::pread(fd.get(), buffer, sizeof(buffer) - 1, 0) <= 0) return "";
  const std::string text(buffer);
  return text.substr(0, text.find('\n'));
}

std::string lock_holder(int directory, const std::string& name) {
  int pid = 0;
  return std::sscanf(last_holder(directory, name).c_str(), "pid %d", &pid) == 1 ? fmt::format("pid {}", pid)
                                                                                : "pid not known";
}

Result<int> connect_socket(int directory, const std::string& name) {
  Result<sockaddr_un> address = socket_address(directory, name);
  if (!address) return std::move(address.error());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_error("cannot make a socket for", name, errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    if (errno == ECONNREFUSED) return not_found(fmt::format("{}: nobody listens there", name));
    return errno_error("cannot connect to", name, errno);
  }
  return fd.release();
}

Result<Fd> listen_socket(int directory, const std::string& name, mode_t mode) {
  Result<sockaddr_un> address = socket_address(directory, name);
  if (!address) return std::move(address.error());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_error("cannot make a socket for", name, errno);
  // Under the run directory's lock nobody else serves it: what lies there is stale.
  ::unlinkat(directory, name.c_str(), 0);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return errno_error("cannot bind the socket", name, errno);
  }
  // Before listen: a peer that connects too early is refused, not let in under the wrong mode.
  if (::fchmodat(directory, name.c_str(), mode, 0) != 0) return errno_error("cannot set the mode of", name, errno);
  if (::listen(fd.get(), kListenBacklog) != 0) return errno_error("cannot listen on", name, errno);
  return fd;
}

}  // namespace sluice::agent
