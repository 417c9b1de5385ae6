// Binding NVML and the small questions that several views ask.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "sim/nvidia_smi.h"

namespace sluice::sim::smi {
namespace {

template <typename F>
bool bind(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Result<Nvml> load_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return not_found("libnvidia-ml.so.1 cannot be loaded (" + std::string(dlerror()) +
                     "). Expected the driver's management library on the loader's path; for a simulated card set "
                     "LD_LIBRARY_PATH to the folder with its libraries, or run under `sluice run`");
  }
  Nvml nvml;
  const char* missing = nullptr;
#define SLUICE_SMI_CALL(name) \
  if (!bind(library, #name, &nvml.name)) missing = #name;
#include "sim/nvidia_smi_calls.inc"
#undef SLUICE_SMI_CALL
  if (missing != nullptr) {
    return internal("libnvidia-ml.so.1 has no function " + std::string(missing) +
                    "; the library is older than this tool, install the driver it came with");
  }
  const nvmlReturn_t result = nvml.nvmlInit_v2();
  if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
    return unavailable(
        "no driver or no card answers (Driver Not Loaded). A simulated card is made with `sluice-sim "
        "create`; inside a container the grant may be missing: see `sluice doctor`");
  }
  if (result != NVML_SUCCESS) return internal("NVML does not start: " + std::string(nvml.nvmlErrorString(result)));
  return nvml;
}

std::string text_of(nvmlReturn_t (*fn)(nvmlDevice_t, char*, unsigned), nvmlDevice_t device) {
  std::array<char, 128> buffer{};
  return fn(device, buffer.data(), buffer.size()) == NVML_SUCCESS ? std::string(buffer.data()) : std::string("N/A");
}

std::optional<nvmlMemory_v2_t> memory_of(const Nvml& nvml, nvmlDevice_t device) {
  nvmlMemory_v2_t memory{};
  memory.version = NVML_VERSION_WORD(nvmlMemory_v2_t, 2);
  if (nvml.nvmlDeviceGetMemoryInfo_v2(device, &memory) != NVML_SUCCESS) return std::nullopt;
  return memory;
}

std::string driver_version(const Nvml& nvml) {
  std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> buffer{};
  return nvml.nvmlSystemGetDriverVersion(buffer.data(), buffer.size()) == NVML_SUCCESS ? std::string(buffer.data())
                                                                                       : std::string("N/A");
}

std::string cuda_version(const Nvml& nvml) {
  int version = 0;
  if (nvml.nvmlSystemGetCudaDriverVersion_v2(&version) != NVML_SUCCESS) return "N/A";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string compute_mode(const Nvml& nvml, nvmlDevice_t device, bool table) {
  const auto mode = ask(nvml.nvmlDeviceGetComputeMode, device);
  if (!mode) return "N/A";
  switch (*mode) {
    case NVML_COMPUTEMODE_DEFAULT:
      return "Default";
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return table ? "E. Process" : "Exclusive_Process";
    case NVML_COMPUTEMODE_PROHIBITED:
      return "Prohibited";
    default:
      return "N/A";
  }
}

std::string local_time(const char* format) {
  const time_t now = std::time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 64> buffer{};
  std::strftime(buffer.data(), buffer.size(), format, &parts);
  return buffer.data();
}

Result<std::vector<Process>> processes_of(const Nvml& nvml, const std::vector<Gpu>& gpus) {
  std::vector<Process> list;
  for (const Gpu& gpu : gpus) {
    std::vector<nvmlProcessInfo_t> infos(64);
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned count = 0;
    // Processes may come between the two calls; a few rounds are plenty.
    for (int round = 0; round < 8 && result == NVML_ERROR_INSUFFICIENT_SIZE; ++round) {
      infos.resize(std::max<size_t>(infos.size(), count + 16));
      count = static_cast<unsigned>(infos.size());
      result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle, &count, infos.data());
    }
    if (result == NVML_ERROR_NOT_SUPPORTED) continue;
    if (result != NVML_SUCCESS) {
      return internal("the processes of GPU " + std::to_string(gpu.index) +
                      " cannot be listed: " + nvml.nvmlErrorString(result));
    }
    infos.resize(count);
    std::sort(infos.begin(), infos.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
    for (const nvmlProcessInfo_t& info : infos) {
      std::array<char, 1024> name{};
      const nvmlReturn_t named = nvml.nvmlSystemGetProcessName(info.pid, name.data(), name.size());
      const bool known = named == NVML_SUCCESS || named == NVML_ERROR_INSUFFICIENT_SIZE;
      Process process{gpu.index, info.pid, std::nullopt, known ? name.data() : "[Not Found]"};
      if (info.usedGpuMemory != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE)) {
        process.bytes = info.usedGpuMemory;
      }
      list.push_back(process);
    }
  }
  return list;
}

}  // namespace sluice::sim::smi
