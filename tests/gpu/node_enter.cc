// gpu_node enter: puts a program into a container made by `hold`, with our libraries over the driver's files.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "node.h"
#include "page/driver_names.h"
#include "page/grant.h"

namespace sluice::gpu_node {
namespace {

constexpr char kCuda[] = "/libcuda.so.1";
constexpr char kNvml[] = "/libnvidia-ml.so.1";

bool write_text(const char* path, const std::string& text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  return written;
}

// A user namespace in which we are who we were.
bool own_user_namespace() {
  const unsigned user = ::geteuid(), group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  return write_text("/proc/self/uid_map", std::to_string(user) + " " + std::to_string(user) + " 1") &&
         write_text("/proc/self/gid_map", std::to_string(group) + " " + std::to_string(group) + " 1");
}

bool private_mounts() {
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/run", "tmpfs", 0, "mode=0755") == 0;
}

// Tried in a child, since a namespace cannot be left again.
bool works(bool (*step)()) {
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) ::_exit(step() && private_mounts() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool mount_namespace() {
  return ::unshare(CLONE_NEWNS) == 0;
}

void touch(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) fail(path);
  ::close(file);
}

void folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) fail(path);
}

void bind(const std::string& from, const std::string& to, bool read_only) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0) fail("mount " + from + " on " + to);
  // In a user namespace flags of the mount below may not be cleared; the pages' modes protect nothing here anyway.
  if (read_only) ::mount(nullptr, to.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr);
}

void bind_file(const std::string& from, const std::string& to, bool read_only) {
  touch(to);
  bind(from, to, read_only);
}

// A tmpfs over /run/sluice of this namespace alone. Where the folder is not there and cannot be made, over /run.
void fixed_folder() {
  if (::mkdir("/run/sluice", 0755) != 0 && errno != EEXIST) {
    if (::mount("tmpfs", "/run", "tmpfs", 0, "mode=0755") != 0) fail("tmpfs on /run");
    folder("/run/sluice");
    return;
  }
  if (::mount("tmpfs", "/run/sluice", "tmpfs", 0, "mode=0755") != 0) fail("tmpfs on /run/sluice");
}

void enter_by_mounts(const EnterOptions& options) {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("private mounts");
  fixed_folder();
  const std::string root = page::kContainerRoot;
  for (const char* part : {"", "/grant", "/driver"}) folder(root + part);
  bind(options.state + "/grant", root + "/grant", true);
  bind_file(options.state + "/usage", page::kUsagePath, false);
  bind_file(options.cuda, page::kRealCudaPath, true);
  bind_file(options.nvml, page::kRealNvmlPath, true);
  bind(options.guest + kCuda, options.cuda, true);
  bind(options.guest + kNvml, options.nvml, true);
}

void link_anew(const std::string& to, const std::string& at) {
  struct stat there{};
  if (::lstat(at.c_str(), &there) == 0 && !S_ISLNK(there.st_mode)) {
    fail(at + " is there and is not this program's; without mount namespaces its place is needed", false);
  }
  if (::unlink(at.c_str()) != 0 && errno != ENOENT) fail(at);
  if (::symlink(to.c_str(), at.c_str()) != 0) fail(at);
}

// Without namespaces: the fixed paths lead to this container until the next `enter`, and the loader finds our libraries
// first. Programs that open the driver by its path go round them.
void enter_plainly(const EnterOptions& options) {
  const std::string root = page::kContainerRoot;
  folder("/run/sluice");
  folder(root);
  folder(root + "/driver");
  link_anew(options.state + "/grant", root + "/grant");
  link_anew(options.state + "/usage", page::kUsagePath);
  link_anew(options.cuda, page::kRealCudaPath);
  link_anew(options.nvml, page::kRealNvmlPath);
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string path = before != nullptr && *before != '\0' ? options.guest + ":" + before : options.guest;
  ::setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

}  // namespace

const char* way_in() {
  if (works(mount_namespace)) return "mounts";
  if (works(own_user_namespace)) return "user-mounts";
  return "plain";
}

void enter(const EnterOptions& options) {
  const std::string way = options.way.empty() ? way_in() : options.way;
  if (way == "plain") {
    enter_plainly(options);
  } else {
    if (!(way == "mounts" ? mount_namespace() : own_user_namespace())) fail("namespaces");
    enter_by_mounts(options);
  }
  ::execvp(options.program[0], options.program);
  fail(options.program[0]);
}

}  // namespace sluice::gpu_node
