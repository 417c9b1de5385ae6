// The table that everybody knows, column for column as driver 580 prints it, and -L.

#include <fmt/core.h>

#include "sim/nvidia_smi.h"

namespace sluice::sim::smi {
namespace {

std::string whole_mib(unsigned long long bytes) {
  return std::to_string(bytes >> 20) + "MiB";
}

template <typename T>
std::string with_unit(const std::optional<T>& value, const char* unit, unsigned divisor = 1) {
  return value ? fmt::format("{}{}", *value / divisor, unit) : std::string("N/A");
}

std::string on_off(const std::optional<nvmlEnableState_t>& state) {
  if (!state) return "N/A";
  return *state == NVML_FEATURE_ENABLED ? "On" : "Off";
}

// A text in a fixed width: what does not fit loses its middle part, as paths are told apart by their ends.
std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  return "..." + text.substr(text.size() - (width - 3));
}

std::string mig_mode(const Nvml& nvml, nvmlDevice_t device) {
  unsigned current = 0;
  unsigned pending = 0;
  if (nvml.nvmlDeviceGetMigMode(device, &current, &pending) != NVML_SUCCESS) return "N/A";
  return current == NVML_DEVICE_MIG_DISABLE ? "Disabled" : "Enabled";
}

std::string uncorrected_ecc(const Nvml& nvml, nvmlDevice_t device) {
  const auto errors =
      ask(nvml.nvmlDeviceGetTotalEccErrors, device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC);
  return with_unit(errors, "");
}

void print_gpu(const Nvml& nvml, const Gpu& gpu) {
  const nvmlDevice_t d = gpu.handle;
  const auto pci = ask(nvml.nvmlDeviceGetPciInfo_v3, d);
  fmt::print("| {:>3}  {:<30}{:>3}  |   {:<16} {:<3} | {:>20} |\n", gpu.index,
             text_of(nvml.nvmlDeviceGetName, d).substr(0, 29), on_off(ask(nvml.nvmlDeviceGetPersistenceMode, d)),
             pci ? pci->busId : "N/A", on_off(ask(nvml.nvmlDeviceGetDisplayActive, d)), uncorrected_ecc(nvml, d));
  const auto temperature = ask(nvml.nvmlDeviceGetTemperature, d, NVML_TEMPERATURE_GPU);
  const auto pstate = ask(nvml.nvmlDeviceGetPerformanceState, d);
  const auto memory = memory_of(nvml, d);
  const auto use = ask(nvml.nvmlDeviceGetUtilizationRates, d);
  fmt::print("| {:>3}  {:>4}    {:<3}{:>15} / {:>5} | {:>10} / {:>9} | {:>7} {:>12} |\n",
             with_unit(ask(nvml.nvmlDeviceGetFanSpeed, d), "%"), with_unit(temperature, "C"),
             pstate ? fmt::format("P{}", static_cast<int>(*pstate)) : "N/A",
             with_unit(ask(nvml.nvmlDeviceGetPowerUsage, d), "W", 1000),
             with_unit(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, d), "W", 1000),
             memory ? whole_mib(memory->used) : "N/A", memory ? whole_mib(memory->total) : "N/A",
             use ? fmt::format("{}%", use->gpu) : "N/A", compute_mode(nvml, d, true));
  fmt::print("|{:41}|{:24}| {:>20} |\n", "", "", mig_mode(nvml, d));
  fmt::print("+{:-<41}+{:-<24}+{:-<22}+\n", "", "", "");
}

void print_processes(const std::vector<Process>& processes) {
  fmt::print("\n+{:-<89}+\n", "");
  fmt::print("| {:<88}|\n", "Processes:");
  fmt::print("|  {:<5}{:<5}{:<5}{:>14}   {:<7}{:<36}{:>11} |\n", "GPU", "GI", "CI", "PID", "Type", "Process name",
             "GPU Memory");
  fmt::print("|  {:<5}{:<5}{:<5}{:>14}   {:<7}{:<36}{:<11} |\n", "", "ID", "ID", "", "", "", " Usage");
  fmt::print("|{:=<89}|\n", "");
  if (processes.empty()) fmt::print("|  {:<87}|\n", "No running processes found");
  for (const Process& process : processes) {
    fmt::print("|  {:>3}  {:<5}{:<5}{:>14}   {:>4}   {:<36}{:>11} |\n", process.gpu, "N/A", "N/A", process.pid, "C",
               shortened(process.name, 35), process.bytes ? whole_mib(*process.bytes) : "N/A");
  }
  fmt::print("+{:-<89}+\n", "");
}

}  // namespace

Result<void> print_table(const Nvml& nvml, const std::vector<Gpu>& gpus) {
  const auto processes = processes_of(nvml, gpus);
  if (!processes.ok()) return processes.error();
  const std::string version = driver_version(nvml);
  fmt::print("{}\n", local_time("%a %b %e %H:%M:%S %Y"));
  fmt::print("+{:-<89}+\n", "");
  fmt::print("| {:<34}{:<35}{:<19}|\n", "NVIDIA-SMI " + version, "Driver Version: " + version,
             "CUDA Version: " + cuda_version(nvml));
  fmt::print("+{:-<41}+{:-<24}+{:-<22}+\n", "", "", "");
  fmt::print("| {:<40}|{:<24}|{:<22}|\n", "GPU  Name                 Persistence-M", " Bus-Id          Disp.A ",
             " Volatile Uncorr. ECC ");
  fmt::print("| {:<40}|{:<24}|{:<22}|\n", "Fan  Temp   Perf          Pwr:Usage/Cap", "           Memory-Usage ",
             " GPU-Util  Compute M. ");
  fmt::print("|{:41}|{:24}|{:<22}|\n", "", "", "               MIG M. ");
  fmt::print("|{:=<41}+{:=<24}+{:=<22}|\n", "", "", "");
  for (const Gpu& gpu : gpus) print_gpu(nvml, gpu);
  print_processes(*processes);
  return {};
}

Result<void> print_list(const Nvml& nvml, const std::vector<Gpu>& gpus) {
  for (const Gpu& gpu : gpus) {
    fmt::print("GPU {}: {} (UUID: {})\n", gpu.index, text_of(nvml.nvmlDeviceGetName, gpu.handle),
               text_of(nvml.nvmlDeviceGetUUID, gpu.handle));
  }
  return {};
}

}  // namespace sluice::sim::smi
