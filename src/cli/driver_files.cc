#include "cli/driver_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/files.h"
#include "cli/ld_cache.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCacheBytesMax = 16u << 20;
constexpr const char* kHwcapFolders[] = {"", "glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3",
                                         "glibc-hwcaps/x86-64-v2"};

const char* bare_name(DriverLibrary library) {
  return library == DriverLibrary::kCuda ? "libcuda.so" : "libnvidia-ml.so";
}

class Finder {
 public:
  explicit Finder(const DriverSearch& search) : search_(search) {
    for (const std::string& own : search.own_files) {
      std::error_code ignored;
      if (fs::exists(own, ignored)) own_.push_back(own);
    }
  }

  void folder(const std::string& path, const char* source) {
    for (const char* hwcap : kHwcapFolders) {
      const fs::path where = *hwcap == '\0' ? fs::path(path) : fs::path(path) / hwcap;
      std::error_code failed;
      std::vector<std::string> names;
      for (fs::directory_iterator it(where, failed), end; !failed && it != end; it.increment(failed)) {
        names.push_back(it->path().filename());
      }
      std::sort(names.begin(), names.end());
      for (const std::string& name : names) add((where / name).string(), name, source);
    }
  }

  void cache() {
    const Result<std::string> bytes = read_file(search_.cache_file, kCacheBytesMax);
    if (!bytes) return;
    const auto entries = parse_ld_cache(*bytes, {bare_name(DriverLibrary::kCuda), bare_name(DriverLibrary::kNvml)});
    if (!entries) return;
    // The whole folder, not the entry alone: the versioned file and the bare name beside it lead to the driver too.
    std::set<std::string> folders;
    for (const LdCacheEntry& entry : *entries) {
      add(entry.path, fs::path(entry.path).filename(), "ld.so.cache");
      const std::string parent = fs::path(entry.path).parent_path();
      if (folders.insert(parent).second) folder(parent, "ld.so.cache");
    }
  }

  DriverFiles take() { return std::move(files_); }

 private:
  void add(const std::string& path, const std::string& name, const char* source) {
    for (const DriverLibrary library : kDriverLibraries) {
      if (!is_driver_name(library, name)) continue;
      std::error_code failed;
      const fs::path target = fs::canonical(path, failed);
      if (failed || !fs::is_regular_file(target, failed) || is_own(target)) continue;
      std::vector<DriverFile>& all = library == DriverLibrary::kCuda ? files_.all_cuda : files_.all_nvml;
      const bool known = std::any_of(all.begin(), all.end(), [&](const DriverFile& file) { return file.path == path; });
      if (known) continue;
      all.push_back({path, target.string(), source});
      std::string& real = library == DriverLibrary::kCuda ? files_.cuda : files_.nvml;
      if (real.empty() && name == soname(library)) real = target.string();
    }
  }

  bool is_own(const fs::path& target) const {
    return std::any_of(own_.begin(), own_.end(), [&](const std::string& own) {
      std::error_code ignored;
      return fs::equivalent(own, target, ignored);
    });
  }

  const DriverSearch& search_;
  std::vector<std::string> own_;
  DriverFiles files_;
};

}  // namespace

const char* soname(DriverLibrary library) {
  return library == DriverLibrary::kCuda ? "libcuda.so.1" : "libnvidia-ml.so.1";
}

bool is_driver_name(DriverLibrary library, std::string_view file_name) {
  const std::string_view bare = bare_name(library);
  if (!file_name.starts_with(bare)) return false;
  file_name.remove_prefix(bare.size());
  if (file_name.empty()) return true;
  if (file_name.size() < 2 || file_name[0] != '.') return false;
  return std::all_of(file_name.begin(), file_name.end(), [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

std::vector<std::string> default_driver_folders() {
  std::vector<std::string> folders = {
      "/lib/x86_64-linux-gnu",
      "/usr/lib/x86_64-linux-gnu",
      "/lib64",
      "/usr/lib64",
      "/lib",
      "/usr/lib",
      "/usr/local/lib",
      "/lib/i386-linux-gnu",
      "/usr/lib/i386-linux-gnu",
      "/usr/lib32",
      "/usr/lib/x86_64-linux-gnu/nvidia/current",
      "/usr/lib64/nvidia",
      "/usr/lib/nvidia",
      "/usr/local/nvidia/lib64",
      "/usr/local/nvidia/lib",
      "/usr/lib/wsl/lib",
      "/run/opengl-driver/lib",
  };
  // The forward-compatibility driver that CUDA installs beside itself.
  std::error_code failed;
  std::vector<std::string> compat;
  for (fs::directory_iterator it("/usr/local", failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename();
    if (name.starts_with("cuda")) compat.push_back(it->path() / "compat");
  }
  std::sort(compat.begin(), compat.end());
  folders.insert(folders.end(), compat.begin(), compat.end());
  return folders;
}

DriverFiles find_driver_files(const DriverSearch& search) {
  Finder finder(search);
  std::string_view rest = search.library_path;
  while (!search.library_path.empty()) {
    const size_t end = rest.find_first_of(":;");
    const std::string folder(rest.substr(0, end));
    finder.folder(folder.empty() ? "." : folder, "LD_LIBRARY_PATH");
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  finder.cache();
  for (const std::string& folder : search.folders) finder.folder(folder, "distribution");
  return finder.take();
}

Result<void> check_driver_pair(const DriverFiles& files, const DriverSearch& search) {
  std::string missing;
  for (const DriverLibrary library : kDriverLibraries) {
    if (!files.real(library).empty()) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : " and ", soname(library));
  }
  if (missing.empty()) return {};
  const std::string path = search.library_path.empty() ? "not set" : fmt::format("'{}'", search.library_path);
  return not_found(
      fmt::format("no GPU driver: {} not found in LD_LIBRARY_PATH ({}), the loader's cache or the usual folders; "
                  "install the NVIDIA "
                  "driver, or put the folder of a simulated card's libraries into LD_LIBRARY_PATH",
                  missing, path));
}

}  // namespace sluice::cli
