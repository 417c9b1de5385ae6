#include "agent/card_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::agent {
namespace {

// Who holds it, as the holder wrote it; for people only.
std::string holder_text(int fd) {
  char buffer[512];
  ssize_t got = ::pread(fd, buffer, sizeof(buffer), 0);
  std::string text(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text.empty() ? "another agent" : text;
}

// In a sticky directory that all may write, the kernel refuses O_CREAT on somebody else's file (fs.protected_regular):
// open what is there, create only what is not. Reading is enough for flock.
Result<Fd> open_lock(const std::string& path) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid() && (errno == EACCES || errno == EPERM))
      fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (fd.valid()) return fd;
    if (errno != ENOENT) return errno_error("cannot open the card's lock", path, errno);
    fd = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (fd.valid()) {
      if (::fchmod(fd.get(), 0644) != 0) return errno_error("cannot set the mode of", path, errno);
      return fd;
    }
    if (errno != EEXIST) return errno_error("cannot create the card's lock", path, errno);
  }
  return internal(fmt::format("cannot open the card's lock {}: it comes and goes", path));
}

}  // namespace

std::string default_card_lock_directory() {
  struct stat status{};
  if (::stat("/run/lock", &status) == 0 && (status.st_mode & 01777) == 01777 && status.st_uid == 0) return "/run/lock";
  return "/tmp";
}

Result<Fd> lock_card(const std::string& directory, const std::string& uuid, const std::string& run_directory) {
  const std::string path = fmt::format("{}/sluice-card-{}.lock", directory, uuid);
  Result<Fd> fd = open_lock(path);
  if (!fd) return std::move(fd.error());
  if (::flock(fd->get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Error{ErrorCode::kExists, fmt::format("card {} already has an arbiter: {}", uuid, holder_text(fd->get()))};
    }
    return errno_error("cannot lock", path, errno);
  }
  std::string text = fmt::format("agent with pid {} of uid {} in {}\n", ::getpid(), ::geteuid(), run_directory);
  if (::ftruncate(fd->get(), 0) == 0) {
    // Only for the sentence above; a file that is not ours to write stays as it is.
    [[maybe_unused]] ssize_t put = ::pwrite(fd->get(), text.data(), text.size(), 0);
  }
  return fd;
}

}  // namespace sluice::agent
