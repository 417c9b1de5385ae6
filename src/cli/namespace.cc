#include "cli/namespace.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr size_t kRebuiltEntriesMax = 4096;
constexpr char kOwnRoot[] = "/run/sluice";  // parent of page::kContainerRoot
constexpr char kPreloadFile[] = "/etc/ld.so.preload";

Result<void> failed(std::string_view what, std::string_view path) {
  return errno_error(what, path, errno);
}

// Why a namespace was refused, and which setting allows it. `error` is unshare's or, where a security module lets
// unshare pass and takes the capabilities away, the first mount's.
Error namespace_refused(int error) {
  std::string cause = "the kernel does not let this user make a private mount namespace";
  std::string mend = "run as root, or allow it";
  const auto setting = [](const char* path) { return read_file(path, 64); };
  const auto clone = setting("/proc/sys/kernel/unprivileged_userns_clone");
  const auto most = setting("/proc/sys/user/max_user_namespaces");
  const auto armour = setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  if (clone && clone->starts_with("0")) {
    mend = "run as root, or allow it with: sysctl kernel.unprivileged_userns_clone=1";
  } else if (most && most->starts_with("0")) {
    mend = "run as root, or allow it with: sysctl user.max_user_namespaces=10000";
  } else if (armour && armour->starts_with("1")) {
    mend =
        "run as root, or allow it with an AppArmor profile for sluice or: sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0";
  } else {
    mend = "run as root, or outside of a container or sandbox that forbids unshare and mount";
  }
  return permission(fmt::format("{} ({}); {}", cause, std::strerror(error), mend));
}

Result<void> write_proc(const char* path, const std::string& text) {
  Fd fd(open(path, O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return failed("cannot open", path);
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return failed("cannot write", path);
  return {};
}

// Leaves the process in mount namespace of its own in which nothing it mounts reaches the host.
Result<void> unshare_mounts() {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return namespace_refused(errno);
    // setgroups has to be given up before an unprivileged gid map; the groups themselves stay in force.
    if (auto r = write_proc("/proc/self/setgroups", "deny"); !r) return r;
    if (auto r = write_proc("/proc/self/uid_map", fmt::format("{} {} 1", uid, uid)); !r) return r;
    if (auto r = write_proc("/proc/self/gid_map", fmt::format("{} {} 1", gid, gid)); !r) return r;
  }
  // Slave, not private: a disk that the host mounts or unmounts later appears and goes here too.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return namespace_refused(errno);
  return {};
}

// An open place that a bind mount can start from, kept valid when something is mounted over its path.
Result<Fd> open_place(const std::string& path) {
  Fd fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open", path, errno);
  return fd;
}

std::string fd_path(const Fd& fd) {
  return fmt::format("/proc/self/fd/{}", fd.get());
}

// Flags that a less privileged namespace has to keep when it remounts.
unsigned long kept_flags(const std::string& path) {
  struct statvfs fs{};
  if (statvfs(path.c_str(), &fs) != 0) return 0;
  constexpr std::pair<unsigned long, unsigned long> kFlags[] = {
      {ST_NOSUID, MS_NOSUID},   {ST_NODEV, MS_NODEV},           {ST_NOEXEC, MS_NOEXEC},
      {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME}};
  unsigned long flags = 0;
  for (const auto& [have, keep] : kFlags) {
    if ((fs.f_flag & have) != 0) flags |= keep;
  }
  return flags;
}

Result<void> bind_place(const Fd& source, const std::string& target, bool read_only, unsigned long more = 0) {
  if (mount(fd_path(source).c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0)
    return failed("cannot mount over", target);
  if (!read_only && more == 0) return {};
  const unsigned long flags = MS_BIND | MS_REMOUNT | kept_flags(target) | more | (read_only ? +MS_RDONLY : 0ul);
  if (mount(nullptr, target.c_str(), nullptr, flags, nullptr) != 0) return failed("cannot make read-only", target);
  return {};
}

Result<void> make_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return failed("cannot create", path);
  return {};
}

Result<void> make_file(const std::string& path, std::string_view text = "") {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) return failed("cannot create", path);
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return failed("cannot write", path);
  return {};
}

Result<void> mount_tmpfs(const std::string& path, const char* options) {
  if (mount("sluice", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options) == 0) return {};
  if (errno == EPERM || errno == EACCES) return namespace_refused(errno);
  return failed("cannot mount a tmpfs over", path);
}

// One old entry of a rebuilt directory.
Result<void> bring_back(const Fd& old, const std::string& directory, const std::string& name) {
  const std::string target = directory + "/" + name;
  struct stat st{};
  if (fstatat(old.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return {};  // gone meanwhile
  if (S_ISLNK(st.st_mode)) {
    std::string text(4096, '\0');
    const ssize_t length = readlinkat(old.get(), name.c_str(), text.data(), text.size());
    if (length < 0) return {};
    text.resize(static_cast<size_t>(length));
    if (symlink(text.c_str(), target.c_str()) != 0) return failed("cannot link", target);
    return {};
  }
  Fd place(openat(old.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!place.valid()) return {};
  if (S_ISDIR(st.st_mode)) {
    if (auto r = make_directory(target); !r) return r;
  } else {
    if (auto r = make_file(target); !r) return r;
  }
  if (mount(fd_path(place).c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("cannot bring back", target);
  }
  return {};
}

// Mounts a tmpfs over a directory that may not be written, with every old entry bound back, so that entries can be
// added.
Result<void> rebuild_directory(const std::string& directory) {
  Fd old(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!old.valid()) return failed("cannot open", directory);
  if (auto r = mount_tmpfs(directory, "mode=0755,size=1m,nr_inodes=8192"); !r) return r;
  DIR* listing = fdopendir(dup(old.get()));
  if (listing == nullptr) return failed("cannot list", directory);
  size_t entries = 0;
  Result<void> result;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++entries > kRebuiltEntriesMax) {
      result = exhausted(fmt::format("{} holds more than {} entries", directory, kRebuiltEntriesMax));
    } else {
      result = bring_back(old, directory, name);
    }
    if (!result) break;
  }
  closedir(listing);
  return result;
}

// An empty tmpfs at /run/sluice, whatever was there before.
Result<void> make_own_root() {
  struct stat st{};
  if (stat(kOwnRoot, &st) != 0 && mkdir(kOwnRoot, 0755) != 0) {
    if (auto r = rebuild_directory("/run"); !r) return r;
    if (auto r = make_directory(kOwnRoot); !r) return r;
  }
  return mount_tmpfs(kOwnRoot, "mode=0755,size=64k,nr_inodes=64");
}

struct OpenPlan {
  Fd grant, usage;
  std::vector<Fd> drivers, covers, preloads;
};

// Everything is opened before anything is mounted: later paths may be hidden, or lead to what was mounted meanwhile.
Result<OpenPlan> open_sources(const NamespacePlan& plan) {
  OpenPlan open;
  const std::pair<const std::string*, Fd*> single[] = {{&plan.grant_directory, &open.grant},
                                                       {&plan.usage_file, &open.usage}};
  for (const auto& [path, fd] : single) {
    auto place = open_place(*path);
    if (!place) return std::move(place).error();
    *fd = std::move(*place);
  }
  const std::pair<const std::vector<Bind>*, std::vector<Fd>*> lists[] = {
      {&plan.drivers, &open.drivers}, {&plan.covers, &open.covers}, {&plan.preloads, &open.preloads}};
  for (const auto& [binds, fds] : lists) {
    for (const Bind& entry : *binds) {
      auto place = open_place(entry.source);
      if (!place) return std::move(place).error();
      fds->push_back(std::move(*place));
    }
  }
  return open;
}

// The pages and the driver at their fixed paths.
Result<void> mount_container(const NamespacePlan& plan, const OpenPlan& open) {
  const std::string root = page::kContainerRoot;
  for (const std::string& directory : {root, root + "/grant", std::string(page::kDriverDirectory), root + "/lib"}) {
    if (auto r = make_directory(directory); !r) return r;
  }
  constexpr unsigned long kPageFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (auto r = bind_place(open.grant, root + "/grant", true, kPageFlags); !r) return r;
  if (auto r = make_file(page::kUsagePath); !r) return r;
  if (auto r = bind_place(open.usage, page::kUsagePath, false, kPageFlags); !r) return r;
  for (size_t i = 0; i < plan.drivers.size(); ++i) {
    const std::string target = fmt::format("{}/{}", page::kDriverDirectory, plan.drivers[i].target);
    if (auto r = make_file(target); !r) return r;
    if (auto r = bind_place(open.drivers[i], target, true); !r) return r;
  }
  return {};
}

// A mount that ended up elsewhere (a link changed meanwhile) would leave the driver open.
Result<void> check_cover(const Fd& source, const std::string& target) {
  struct stat ours{};
  struct stat there{};
  if (fstat(source.get(), &ours) != 0 || stat(target.c_str(), &there) != 0) return failed("cannot look at", target);
  if (ours.st_dev == there.st_dev && ours.st_ino == there.st_ino) return {};
  return internal(
      fmt::format("{} still leads to another file after our library was mounted over it; was the driver being "
                  "changed? Try again",
                  target));
}

Result<void> mount_covers(const NamespacePlan& plan, const OpenPlan& open) {
  for (size_t i = 0; i < plan.covers.size(); ++i) {
    const std::string& target = plan.covers[i].target;
    if (auto r = bind_place(open.covers[i], target, true); !r) return r;
    if (auto r = check_cover(open.covers[i], target); !r) return r;
  }
  return {};
}

Result<void> mount_preload(const NamespacePlan& plan, const OpenPlan& open) {
  if (plan.preloads.empty()) return {};
  const std::string root = page::kContainerRoot;
  const Result<std::string> old = read_file(kPreloadFile, 64u << 10);
  std::string text;
  for (size_t i = 0; i < plan.preloads.size(); ++i) {
    const std::string target = fmt::format("{}/lib/{}", root, plan.preloads[i].target);
    if (auto r = make_file(target); !r) return r;
    if (auto r = bind_place(open.preloads[i], target, true); !r) return r;
    text += target + "\n";
  }
  if (old) text += *old;
  const std::string ours = root + "/ld.so.preload";
  if (auto r = make_file(ours, text); !r) return r;
  if (!old) {
    if (auto r = rebuild_directory("/etc"); !r) return r;
    if (auto r = make_file(kPreloadFile); !r) return r;
  }
  auto place = open_place(ours);
  if (!place) return std::move(place).error();
  return bind_place(*place, kPreloadFile, true);
}

void drop_from(uint32_t (&set)[2], int capability) {
  set[capability / 32] &= ~(1u << (capability % 32));
}

}  // namespace

Result<void> enter_namespace(const NamespacePlan& plan) {
  const std::string directory = [] {
    char* path = getcwd(nullptr, 0);
    std::string text = path == nullptr ? "" : path;
    free(path);
    return text;
  }();
  if (auto r = unshare_mounts(); !r) return r;
  auto open = open_sources(plan);
  if (!open) return std::move(open).error();
  if (auto r = make_own_root(); !r) return r;
  if (auto r = mount_container(plan, *open); !r) return r;
  if (auto r = mount_preload(plan, *open); !r) return r;
  if (auto r = mount_covers(plan, *open); !r) return r;
  for (const std::string& hidden : plan.hidden) {
    if (auto r = mount_tmpfs(hidden, "mode=0755,size=4k,nr_inodes=2"); !r) return r;
  }
  if (mount(nullptr, kOwnRoot, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) != 0) {
    return failed("cannot make read-only", kOwnRoot);
  }
  // The working directory may be one that has been mounted over.
  if (!directory.empty() && chdir(directory.c_str()) != 0) return failed("cannot enter", directory);
  return {};
}

Result<void> drop_privileges() {
  // Mounting and entering namespaces, other programs' memory and files, files by handle behind mounts, kernel and
  // hardware.
  constexpr int kDropped[] = {CAP_SYS_ADMIN,    CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH,    CAP_SYS_MODULE,
                              CAP_SYS_RAWIO,    CAP_BPF,        CAP_CHECKPOINT_RESTORE, CAP_MAC_ADMIN,
                              CAP_MAC_OVERRIDE, CAP_PERFMON};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return errno_error("cannot read", "capabilities", errno);
  uint32_t effective[2] = {data[0].effective, data[1].effective};
  uint32_t permitted[2] = {data[0].permitted, data[1].permitted};
  uint32_t inheritable[2] = {data[0].inheritable, data[1].inheritable};
  for (const int capability : kDropped) {
    // EINVAL: a kernel that does not know it. EPERM: without CAP_SETPCAP nothing can be dropped, and nothing is there.
    prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    drop_from(effective, capability);
    drop_from(permitted, capability);
    drop_from(inheritable, capability);
  }
  for (int i = 0; i < 2; ++i) data[i] = {effective[i], permitted[i], inheritable[i]};
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (syscall(SYS_capset, &header, data) != 0) return errno_error("cannot give up", "capabilities", errno);
  if (geteuid() != 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return errno_error("cannot set", "no_new_privs", errno);
  return {};
}

Result<void> try_namespace() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make", "a pipe", errno);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return errno_error("cannot start", "a process", errno);
  if (child == 0) {
    Result<void> result = unshare_mounts();
    if (result) result = mount_tmpfs("/tmp", "size=4k");
    const std::string text = result ? "" : result.error().message;
    const ssize_t written = write(writer.get(), text.data(), text.size());
    _exit(result && written >= 0 ? 0 : 1);
  }
  writer.reset();
  std::string text(4096, '\0');
  const ssize_t length = read(reader.get(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return permission(text.empty() ? "the process that tried a mount namespace died" : text);
}

}  // namespace sluice::cli
