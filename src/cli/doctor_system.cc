// Driver, device nodes, kernel and our own libraries: what can be checked without an agent.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <linux/futex.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "abi/lookup.h"
#include "base/files.h"
#include "cli/doctor_checks.h"
#include "cli/driver_files.h"
#include "cli/elf_symbols.h"
#include "cli/namespace.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr size_t kNamesShown = 5;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> own_files() {
  const std::string directory = guest_directory();
  return {directory + "/" + soname(DriverLibrary::kCuda), directory + "/" + soname(DriverLibrary::kNvml)};
}

std::vector<std::string> known_names(DriverLibrary library) {
  std::vector<std::string> names;
  if (library == DriverLibrary::kCuda) {
    for (size_t i = 0; i < abi::kCudaNameCount; ++i) names.emplace_back(abi::kCudaNames[i].name);
  } else {
    for (size_t i = 0; i < abi::kNvmlNameCount; ++i) names.emplace_back(abi::kNvmlNames[i].name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Link check_names(DriverLibrary library, const std::string& path) {
  Link link{.name = fmt::format("driver names: {}", soname(library)), .found = "", .mend = ""};
  const auto exports = read_elf_exports(path);
  if (!exports) {
    link.state = LinkState::kBroken;
    link.found = exports.error().message;
    link.mend = "reinstall the driver";
    return link;
  }
  const std::vector<std::string> known = known_names(library);
  const std::vector<std::string> unknown = unknown_names(exports->names, known);
  const auto shared = std::count_if(exports->names.begin(), exports->names.end(), [&](const std::string& name) {
    return std::binary_search(known.begin(), known.end(), name);
  });
  link.found = fmt::format("{} of the {} names we know", shared, known.size());
  if (unknown.empty()) return link;
  link.state = LinkState::kNote;
  const size_t shown = std::min(unknown.size(), kNamesShown);
  link.found += fmt::format(", and {} we do not: {}{}", unknown.size(),
                            fmt::join(unknown.begin(), unknown.begin() + static_cast<ptrdiff_t>(shown), ", "),
                            unknown.size() > shown ? ", ..." : "");
  link.mend = "programs that look these up by name do not find them; a newer sluice will know them";
  return link;
}

Link try_futex() {
  Link link{.name = "kernel: futex", .found = "wait and wake on shared pages", .mend = ""};
  uint32_t word = 1;
  // Waits for a value that the word does not have: comes back at once with EAGAIN where futexes work.
  if (syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0) == 0 || errno == EAGAIN) return link;
  return {link.name, LinkState::kBroken, std::strerror(errno),
          "allow the system call futex in the sandbox's seccomp profile"};
}

Link try_openat2() {
  Link link{.name = "kernel: openat2", .found = "paths can be opened without following links", .mend = ""};
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;
  how.resolve = RESOLVE_NO_SYMLINKS;
  const long fd = syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof how);
  if (fd >= 0) {
    close(static_cast<int>(fd));
    return link;
  }
  return {link.name, LinkState::kBroken, std::strerror(errno),
          "Linux 5.6 or newer is needed, and a seccomp profile that allows openat2"};
}

// A lock that this process takes is seen by another with its owner's pid, and is gone when the owner is.
Link try_record_locks() {
  Link link{.name = "kernel: record locks", .found = "seen by other processes with the owner's pid", .mend = ""};
  const auto broken = [&](const std::string& found) {
    return Link{link.name, LinkState::kBroken, found,
                "run the agent and programs on a local tmpfs or file system with POSIX locks"};
  };
  std::string name = std::filesystem::temp_directory_path() / "sluice-doctor-XXXXXX";
  Fd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return broken(fmt::format("cannot create {}: {}", name, std::strerror(errno)));
  unlink(name.c_str());
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = int64_t{1} << 40;
  lock.l_len = 1;
  if (fcntl(file.get(), F_SETLK, &lock) != 0) return broken(std::strerror(errno));
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    struct flock seen = lock;
    const bool held = fcntl(file.get(), F_GETLK, &seen) == 0 && seen.l_type == F_WRLCK && seen.l_pid == self;
    _exit(held ? 0 : 1);
  }
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? link : broken("another process does not see the lock's owner");
}

Link check_library(DriverLibrary library, const std::string& path) {
  Link link{.name = fmt::format("our {}", soname(library)), .found = path, .mend = ""};
  const auto exports = read_elf_exports(path);
  if (!exports) return {link.name, LinkState::kBroken, exports.error().message, "reinstall sluice"};
  if (exports->soname != soname(library)) {
    return {link.name, LinkState::kBroken, fmt::format("{} calls itself '{}'", path, exports->soname),
            "reinstall sluice"};
  }
  struct statvfs fs{};
  if (statvfs(path.c_str(), &fs) == 0 && (fs.f_flag & ST_NOEXEC) != 0) {
    return {link.name, LinkState::kBroken, fmt::format("{} lies on a file system mounted noexec", path),
            "install sluice on a file system without noexec, such as /usr/lib; no program could load the library"};
  }
  struct stat st{};
  if (stat(path.c_str(), &st) == 0 && (st.st_mode & S_IROTH) == 0) {
    return {link.name, LinkState::kBroken, fmt::format("{} is not readable for everyone", path),
            fmt::format("chmod a+r {}", path)};
  }
  return link;
}

}  // namespace

std::vector<Link> check_place(bool inside_a_grant) {
  if (!inside_a_grant) return {};
  return {
      {"place", LinkState::kNote,
       fmt::format("this is the inside of a grant ({} is here): the driver that can be seen is Sluice's own library, "
                   "and the machine's cannot be looked at",
                   page::kGrantPath),
       "sluice verify checks the limits from in here; run sluice doctor on the machine, outside of the grant"}};
}

std::string guest_directory() {
  if (const std::string chosen = environment("SLUICE_GUEST_DIR"); !chosen.empty()) return chosen;
  std::string self(PATH_MAX, '\0');
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size());
  self.resize(length > 0 ? static_cast<size_t>(length) : 0);
  const std::filesystem::path here = std::filesystem::path(self).parent_path();
  for (const char* candidate : {"../guest", "../lib/sluice", "../lib/x86_64-linux-gnu/sluice"}) {
    std::error_code ignored;
    const auto directory = (here / candidate).lexically_normal();
    if (std::filesystem::exists(directory / soname(DriverLibrary::kCuda), ignored)) return directory;
  }
  return (here / "../lib/sluice").lexically_normal();
}

std::vector<std::string> unknown_names(const std::vector<std::string>& exported,
                                       const std::vector<std::string>& known) {
  std::vector<std::string> unknown;
  std::set_difference(exported.begin(), exported.end(), known.begin(), known.end(), std::back_inserter(unknown));
  // cudbg*: read by the debugger from the vendor's file alone.
  std::erase_if(unknown, [](const std::string& name) {
    const bool cuda = name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z';
    return !cuda && !name.starts_with("nvml");
  });
  return unknown;
}

std::vector<Link> check_driver() {
  const DriverSearch search{
      .library_path = environment("LD_LIBRARY_PATH"), .folders = default_driver_folders(), .own_files = own_files()};
  const DriverFiles files = find_driver_files(search);
  if (auto pair = check_driver_pair(files, search); !pair) {
    const std::string text = pair.error().message;
    const size_t cut = text.find("; ");
    return {
        {"driver", LinkState::kBroken, text.substr(0, cut), cut == std::string::npos ? text : text.substr(cut + 2)}};
  }
  std::vector<Link> links;
  for (const DriverLibrary library : kDriverLibraries) {
    const std::string& real = files.real(library);
    const std::vector<DriverFile>& all = files.all(library);
    const auto first =
        std::find_if(all.begin(), all.end(), [&](const DriverFile& file) { return file.target == real; });
    std::vector<std::string> targets;
    for (const DriverFile& file : all) targets.push_back(file.target);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    links.push_back({fmt::format("driver: {}", soname(library)), LinkState::kHolds,
                     fmt::format("{} (from {}; {} name{}, {} file{} to cover)", real, first->source, all.size(),
                                 all.size() == 1 ? "" : "s", targets.size(), targets.size() == 1 ? "" : "s"),
                     ""});
    links.push_back(check_names(library, real));
  }
  return links;
}

std::vector<Link> check_device_nodes() {
  std::error_code ignored;
  if (!std::filesystem::exists("/proc/driver/nvidia/version", ignored)) return {};
  std::vector<Link> links;
  for (const char* node : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    Link link{.name = fmt::format("device {}", node), .found = "can be opened", .mend = ""};
    Fd fd(open(node, O_RDWR | O_CLOEXEC));
    if (!fd.valid()) {
      link = {link.name, LinkState::kBroken, std::strerror(errno),
              errno == ENOENT ? "load the driver's module: nvidia-modprobe -u -c=0"
                              : "give this user access to the device"};
    }
    links.push_back(link);
  }
  return links;
}

std::vector<Link> check_kernel() {
  Link space{.name = "kernel: mount namespace",
             .found = geteuid() == 0 ? "allowed" : "allowed, with a user namespace",
             .mend = ""};
  if (auto tried = try_namespace(); !tried) {
    const std::string text = tried.error().message;
    const size_t cut = text.find("; ");
    space = {space.name, LinkState::kBroken, text.substr(0, cut),
             cut == std::string::npos ? "run as root" : text.substr(cut + 2)};
  }
  return {space, try_openat2(), try_futex(), try_record_locks()};
}

std::vector<Link> check_guest_libraries() {
  std::vector<Link> links;
  const std::vector<std::string> files = own_files();
  for (size_t i = 0; i < files.size(); ++i) links.push_back(check_library(kDriverLibraries[i], files[i]));
  return links;
}

}  // namespace sluice::cli
