// NVML without a device: start and end, versions, texts of results, handles, names of processes.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/result.h"
#include "sim/driver_version.h"
#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

// Opens cards that are new since the last start. Called with the state locked.
nvmlReturn_t open_cards(NvmlState& state, const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return NVML_ERROR_DRIVER_NOT_LOADED;
  std::vector<std::unique_ptr<NvmlDevice>> opened;
  for (const std::string& path : Card::list(folder)) {
    const bool known =
        std::any_of(state.devices.begin(), state.devices.end(), [&](const auto& d) { return d->card->path() == path; });
    if (known) continue;
    Result<std::unique_ptr<Card>> card = Card::open(path);
    if (!card.ok()) return access(path.c_str(), R_OK | W_OK) ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    auto device = std::make_unique<NvmlDevice>();
    device->card = std::move(card).value();
    opened.push_back(std::move(device));
  }
  for (auto& device : opened) {
    device->index = static_cast<int>(state.devices.size());
    state.devices.push_back(std::move(device));
  }
  return NVML_SUCCESS;
}

// A query without a device; faults are looked up at the first card.
template <typename Body>
nvmlReturn_t with_state(std::string_view call, Body body) {
  NvmlState& state = nvml_state();
  Card* first = nullptr;
  {
    const std::lock_guard guard(state.lock);
    if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
    if (!state.devices.empty()) first = state.devices.front()->card.get();
  }
  nvmlReturn_t result;
  if (first != nullptr && nvml_fault(*first, call, &result)) return result;
  const std::lock_guard guard(state.lock);
  return body(state);
}

template <typename Match>
nvmlReturn_t find_handle(std::string_view call, nvmlDevice_t* out, Match match) {
  return with_state(call, [&](NvmlState& state) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (const auto& device : state.devices) {
      if (!match(*device)) continue;
      *out = reinterpret_cast<nvmlDevice_t>(device.get());
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

struct ResultText {
  nvmlReturn_t result;
  const char* text;
};

const ResultText kTexts[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "The requested vGPU operation is not available on target device"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Deprecated function"},
    {NVML_ERROR_NOT_READY, "System not ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "GPU not found"},
    {NVML_ERROR_INVALID_STATE, "Invalid state"},
};

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlInitWithFlags(unsigned int flags) {
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  const nvmlReturn_t result = open_cards(state, current_process().folder());
  if (result != NVML_SUCCESS) return result;
  if (state.devices.empty() && (flags & NVML_INIT_FLAG_NO_GPUS) == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  ++state.references;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlInit_v2() {
  return sim_nvmlInitWithFlags(0);
}
nvmlReturn_t sim_nvmlInit() {
  return sim_nvmlInitWithFlags(0);
}

nvmlReturn_t sim_nvmlShutdown() {
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
  --state.references;
  return NVML_SUCCESS;
}

const char* sim_nvmlErrorString(nvmlReturn_t result) {
  for (const ResultText& row : kTexts) {
    if (row.result == result) return row.text;
  }
  return "Unknown Error";
}

nvmlReturn_t sim_nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return with_state("nvmlSystemGetDriverVersion",
                    [&](NvmlState&) { return give_text(kDriverVersion, version, length); });
}

nvmlReturn_t sim_nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  // Answers before nvmlInit too, as the real library does.
  return give_text("13." + std::string(kDriverVersion), version, length);
}

nvmlReturn_t sim_nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t* info, unsigned int length) {
  return with_state("nvmlSystemGetDriverBranch", [&](NvmlState&) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_VERSION_WORD(nvmlSystemDriverBranchInfo_v1_t, 1)) {
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return give_text(kDriverBranch, info->branch, std::min<unsigned>(length, sizeof info->branch));
  });
}

nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaDriverVersion;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion(int* version) {
  return sim_nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t sim_nvmlDeviceGetCount_v2(unsigned int* count) {
  return with_state("nvmlDeviceGetCount_v2", [&](NvmlState& state) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = static_cast<unsigned>(state.devices.size());
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetCount(unsigned int* count) {
  return sim_nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  const nvmlReturn_t result = find_handle("nvmlDeviceGetHandleByIndex_v2", device,
                                          [&](const NvmlDevice& d) { return static_cast<unsigned>(d.index) == index; });
  return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return sim_nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return find_handle("nvmlDeviceGetHandleByUUID", device,
                     [&](const NvmlDevice& d) { return std::strcmp(d.card->file().uuid, uuid) == 0; });
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != NVML_VERSION_WORD(nvmlUUID_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return find_handle("nvmlDeviceGetHandleByUUIDV", device, [&](const NvmlDevice& d) {
    const CardFile& file = d.card->file();
    return uuid->type == NVML_UUID_TYPE_BINARY
               ? std::memcmp(file.uuid_bytes, uuid->value.bytes, sizeof file.uuid_bytes) == 0
               : std::strncmp(file.uuid, uuid->value.str, sizeof uuid->value.str) == 0;
  });
}

nvmlReturn_t sim_nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  if (serial == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return find_handle("nvmlDeviceGetHandleBySerial", device,
                     [&](const NvmlDevice& d) { return std::strcmp(d.card->file().serial_number, serial) == 0; });
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  if (bus_id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  // "domain:bus:slot.function", with the domain and the function left out at will.
  if (std::sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(bus_id, "%x:%x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  return find_handle("nvmlDeviceGetHandleByPciBusId_v2", device, [&](const NvmlDevice& d) {
    const CardFile& file = d.card->file();
    return file.pci_domain == domain && file.pci_bus == bus && file.pci_slot == slot;
  });
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* device) {
  return sim_nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t sim_nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  std::string found;
  const nvmlReturn_t result = with_state("nvmlSystemGetProcessName", [&](NvmlState& state) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    std::getline(file, found, '\0');
    if (!found.empty()) return NVML_SUCCESS;
    for (const auto& device : state.devices) {
      Card::Guard guard(*device->card);
      for (const NvmlProcess& process : card_processes(*device->card)) {
        if (process.pid == static_cast<int32_t>(pid)) found = process.name;
      }
    }
    return found.empty() ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
  });
  if (result != NVML_SUCCESS) return result;
  // A name that does not fit is cut, and the caller told.
  if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const size_t fits = std::min<size_t>(found.size(), length - 1);
  std::memcpy(name, found.data(), fits);
  name[fits] = '\0';
  return fits == found.size() ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t sim_nvmlGetExcludedDeviceCount(unsigned int* count) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGetExcludedDeviceInfoByIndex(unsigned int, nvmlExcludedDeviceInfo_t*) {
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t sim_nvmlGetBlacklistDeviceCount(unsigned int* count) {
  return sim_nvmlGetExcludedDeviceCount(count);
}

nvmlReturn_t sim_nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t* info) {
  return sim_nvmlGetExcludedDeviceInfoByIndex(index, info);
}

nvmlReturn_t sim_nvmlUnitGetCount(unsigned int* count) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // extern "C"
