#include "node/driver.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

namespace sluice::node {
namespace {

constexpr char kCuda[] = "libcuda.so.1";
constexpr char kNvml[] = "libnvidia-ml.so.1";
constexpr std::array<const char*, 7> kFolders{"",
                                              "/usr/lib/x86_64-linux-gnu",
                                              "/usr/lib64",
                                              "/usr/lib",
                                              "/usr/lib/x86_64-linux-gnu/nvidia/current",
                                              "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
                                              "/opt/nvidia/lib64"};
constexpr std::array<const char*, 3> kPrograms{"/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump",
                                               "/usr/bin/nvidia-persistenced"};
// Device nodes that belong to no card. Names as in the driver's own nvidia-modprobe.
constexpr std::array<const char*, 3> kControls{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"};
// What computing, transcoding and debugging programs load besides the pair (the driver's README, "Installed
// components").
constexpr std::array<const char*, 13> kHelpers{
    "libcudadebugger",    "libnvidia-allocator",       "libnvidia-cfg",
    "libnvidia-compiler", "libnvidia-encode",          "libnvidia-gpucomp",
    "libnvidia-nvvm",     "libnvidia-opencl",          "libnvidia-opticalflow",
    "libnvidia-pkcs11",   "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler",
    "libnvcuvid"};
constexpr size_t kMaxLinks = 16;
constexpr size_t kMaxHelpers = 128;

bool exists(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0;
}

// Follows links inside the root: an absolute link on the node means the node's own root.
std::string resolve(const std::string& root, std::string path) {
  for (size_t step = 0; step < kMaxLinks; ++step) {
    struct stat status{};
    const std::string seen = root + path;
    if (::lstat(seen.c_str(), &status) != 0) return "";
    if (!S_ISLNK(status.st_mode)) return S_ISREG(status.st_mode) ? path : "";
    std::array<char, PATH_MAX> target{};
    const ssize_t length = ::readlink(seen.c_str(), target.data(), target.size() - 1);
    if (length <= 0) return "";
    const std::string text(target.data(), static_cast<size_t>(length));
    path = text.front() == '/' ? text : path.substr(0, path.rfind('/') + 1) + text;
  }
  return "";
}

// libcuda.so.550.54.15 -> "550.54.15"; "" where the file carries no version.
std::string version_of(const std::string& path) {
  const size_t at = path.rfind(".so.");
  const std::string version = at == std::string::npos ? "" : path.substr(at + 4);
  return version.find('.') == std::string::npos ? "" : version;
}

// The driver's other libraries stand beside the pair and carry its version; programs open them under the names that the
// driver's links have (libnvidia-nvvm.so.4), so files and links are both handed in, in the folders that the loaders of
// both families of images search without a cache. What belongs to screens is left out.
void add_helpers(const DriverRoot& root, const std::string& folder, const std::string& version, Driver& driver) {
  DIR* directory = ::opendir((root.seen + folder).c_str());
  if (directory == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    const bool wanted = std::any_of(kHelpers.begin(), kHelpers.end(),
                                    [&](const char* stem) { return name.starts_with(std::string(stem) + ".so."); });
    if (wanted && names.size() < kMaxHelpers) names.push_back(name);
  }
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string path = resolve(root.seen, folder + "/" + name);
    if (!path.ends_with(".so." + version)) continue;  // another driver's, or a link to nowhere
    for (const char* target : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"})
      driver.others.push_back({root.on_node + path, fmt::format("{}/{}", target, name)});
  }
}

}  // namespace

Result<Driver> find_driver(const DriverRoot& root) {
  Driver driver;
  driver.simulated = exists(root.seen + "/simulated");
  for (const char* folder : kFolders) {
    const std::string base = folder;
    const std::string cuda = resolve(root.seen, base + "/" + kCuda);
    const std::string nvml = resolve(root.seen, base + "/" + kNvml);
    if (cuda.empty() || nvml.empty()) continue;
    driver.library_folder = root.seen + base;
    driver.cuda = root.on_node + cuda;
    driver.nvml = root.on_node + nvml;
    if (driver.simulated) break;
    if (const std::string version = version_of(cuda); !version.empty())
      add_helpers(root, cuda.substr(0, cuda.rfind('/')), version, driver);
    break;
  }
  if (driver.cuda.empty()) {
    return not_found(
        fmt::format("no driver under {}: {} and {} are neither there nor in the usual folders below it; install the "
                    "driver or name its root with --driver-root",
                    root.seen, kCuda, kNvml));
  }
  if (driver.simulated) {
    driver.state_folder = root.seen + "/state";
    driver.state_on_node = root.on_node + "/state";
    if (exists(root.seen + "/nvidia-smi"))
      driver.others.push_back({root.on_node + "/nvidia-smi", "/usr/bin/nvidia-smi"});
    return driver;
  }
  for (const char* program : kPrograms) {
    const std::string path = resolve(root.seen, program);
    if (!path.empty()) driver.others.push_back({root.on_node + path, program});
  }
  for (const char* control : kControls) {
    if (exists(control) || exists(root.seen + control)) driver.controls.emplace_back(control);
  }
  return driver;
}

}  // namespace sluice::node
