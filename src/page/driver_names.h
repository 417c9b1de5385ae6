// Under which names the real driver pair lies inside a container: names that no loader looks for, so that a search path
// that leads to the folder (LD_LIBRARY_PATH) finds nothing there. Only our libraries open them, by path.
#pragma once

namespace sluice::page {

inline constexpr char kRealCudaName[] = "real-cuda";
inline constexpr char kRealNvmlName[] = "real-nvml";
inline constexpr char kRealCudaPath[] = "/run/sluice/container/driver/real-cuda";
inline constexpr char kRealNvmlPath[] = "/run/sluice/container/driver/real-nvml";

// The name in the folder of the library that programs know as this.
constexpr const char* real_driver_name(const char* soname) {
  return soname[3] == 'c' ? kRealCudaName : kRealNvmlName;  // libcuda.so.1, libnvidia-ml.so.1
}

}  // namespace sluice::page
