// Finds every file by which a program could reach the vendor's driver, because every one of them has to be covered: a
// program may ask for libcuda.so.1, for libcuda.so, or for a file by its full path, and symbolic links lead from the
// first two to the last. What is covered are therefore the files at the end of the links.
//
// Where the loader looks: LD_LIBRARY_PATH, the loader's cache, the distribution's folders (each with its glibc-hwcaps
// subfolders). Added are folders that container images and installers use for the driver and put into LD_LIBRARY_PATH
// only later. A program that brings its own copy elsewhere is outside of what an in-process limit can promise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

enum class DriverLibrary { kCuda, kNvml };
inline constexpr DriverLibrary kDriverLibraries[] = {DriverLibrary::kCuda, DriverLibrary::kNvml};

// "libcuda.so.1", "libnvidia-ml.so.1"
const char* soname(DriverLibrary library);

struct DriverFile {
  std::string path;    // as found by name: ".../libcuda.so.1"
  std::string target;  // the regular file behind it, absolute and without symbolic links
  std::string source;  // where it was found, for people: "LD_LIBRARY_PATH", "ld.so.cache", "distribution"
  bool operator==(const DriverFile&) const = default;
};

struct DriverSearch {
  std::string library_path;  // the command's LD_LIBRARY_PATH, may be empty
  std::string cache_file = "/etc/ld.so.cache";
  std::vector<std::string> folders;    // searched after both; default_driver_folders()
  std::vector<std::string> own_files;  // our libraries: found under the driver's name they are no driver
};

struct DriverFiles {
  // What a program that asks for the SONAME gets: the first of `all` by that name. Empty when there is none.
  std::string cuda;
  std::string nvml;
  std::vector<DriverFile> all_cuda;  // every name, search order
  std::vector<DriverFile> all_nvml;

  const std::string& real(DriverLibrary library) const { return library == DriverLibrary::kCuda ? cuda : nvml; }
  const std::vector<DriverFile>& all(DriverLibrary library) const {
    return library == DriverLibrary::kCuda ? all_cuda : all_nvml;
  }
};

std::vector<std::string> default_driver_folders();

// True for "libcuda.so", "libcuda.so.1", "libcuda.so.580.95.05" and NVML's likewise, not for "libcudart.so.12".
bool is_driver_name(DriverLibrary library, std::string_view file_name);

// Reads directories and links only. Missing or unreadable places are skipped: the loader does the same.
DriverFiles find_driver_files(const DriverSearch& search);

// kNotFound with where it was looked for, when one of the pair is missing.
Result<void> check_driver_pair(const DriverFiles& files, const DriverSearch& search);

}  // namespace sluice::cli
