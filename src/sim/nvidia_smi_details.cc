// -q: everything about each card, as indented "name : value" lines.

#include <fmt/core.h>

#include "sim/nvidia_smi.h"

namespace sluice::sim::smi {
namespace {

void line(int depth, const std::string& name, const std::string& value) {
  fmt::print("{:{}}{:<{}}: {}\n", "", depth * 4, name, 50 - depth * 4, value);
}

void title(int depth, const std::string& name) {
  fmt::print("{:{}}{}\n", "", depth * 4, name);
}

template <typename T>
std::string value_or_na(const std::optional<T>& value, const char* unit, unsigned divisor = 1) {
  return value ? fmt::format("{}{}", *value / divisor, unit) : std::string("N/A");
}

std::string mib(unsigned long long bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

std::string watts(const std::optional<unsigned>& milliwatts) {
  return milliwatts ? fmt::format("{:.2f} W", *milliwatts / 1000.0) : std::string("N/A");
}

std::string enabled(const std::optional<nvmlEnableState_t>& state) {
  if (!state) return "N/A";
  return *state == NVML_FEATURE_ENABLED ? "Enabled" : "Disabled";
}

void print_identity(const Nvml& nvml, nvmlDevice_t d) {
  line(1, "Product Name", text_of(nvml.nvmlDeviceGetName, d));
  line(1, "Display Mode", enabled(ask(nvml.nvmlDeviceGetDisplayMode, d)));
  line(1, "Display Active", enabled(ask(nvml.nvmlDeviceGetDisplayActive, d)));
  line(1, "Persistence Mode", enabled(ask(nvml.nvmlDeviceGetPersistenceMode, d)));
  line(1, "Accounting Mode", enabled(ask(nvml.nvmlDeviceGetAccountingMode, d)));
  line(1, "Serial Number", text_of(nvml.nvmlDeviceGetSerial, d));
  line(1, "GPU UUID", text_of(nvml.nvmlDeviceGetUUID, d));
  line(1, "Minor Number", value_or_na(ask(nvml.nvmlDeviceGetMinorNumber, d), ""));
  line(1, "VBIOS Version", text_of(nvml.nvmlDeviceGetVbiosVersion, d));
  const auto pci = ask(nvml.nvmlDeviceGetPciInfo_v3, d);
  title(1, "PCI");
  line(2, "Bus", pci ? fmt::format("0x{:02X}", pci->bus) : "N/A");
  line(2, "Device", pci ? fmt::format("0x{:02X}", pci->device) : "N/A");
  line(2, "Domain", pci ? fmt::format("0x{:04X}", pci->domain) : "N/A");
  line(2, "Device Id", pci ? fmt::format("0x{:08X}", pci->pciDeviceId) : "N/A");
  line(2, "Bus Id", pci ? pci->busId : "N/A");
  line(2, "Sub System Id", pci ? fmt::format("0x{:08X}", pci->pciSubSystemId) : "N/A");
  title(2, "GPU Link Info");
  title(3, "PCIe Generation");
  line(4, "Max", value_or_na(ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, d), ""));
  line(4, "Current", value_or_na(ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, d), ""));
  title(3, "Link Width");
  line(4, "Max", value_or_na(ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, d), "x"));
  line(4, "Current", value_or_na(ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, d), "x"));
}

void print_memory_and_use(const Nvml& nvml, nvmlDevice_t d) {
  line(1, "Fan Speed", value_or_na(ask(nvml.nvmlDeviceGetFanSpeed, d), " %"));
  const auto pstate = ask(nvml.nvmlDeviceGetPerformanceState, d);
  line(1, "Performance State", pstate ? fmt::format("P{}", static_cast<int>(*pstate)) : "N/A");
  const auto memory = memory_of(nvml, d);
  title(1, "FB Memory Usage");
  line(2, "Total", memory ? mib(memory->total) : "N/A");
  line(2, "Reserved", memory ? mib(memory->reserved) : "N/A");
  line(2, "Used", memory ? mib(memory->used) : "N/A");
  line(2, "Free", memory ? mib(memory->free) : "N/A");
  const auto bar1 = ask(nvml.nvmlDeviceGetBAR1MemoryInfo, d);
  title(1, "BAR1 Memory Usage");
  line(2, "Total", bar1 ? mib(bar1->bar1Total) : "N/A");
  line(2, "Used", bar1 ? mib(bar1->bar1Used) : "N/A");
  line(2, "Free", bar1 ? mib(bar1->bar1Free) : "N/A");
  line(1, "Compute Mode", compute_mode(nvml, d, false));
  const auto use = ask(nvml.nvmlDeviceGetUtilizationRates, d);
  title(1, "Utilization");
  line(2, "GPU", use ? fmt::format("{} %", use->gpu) : "N/A");
  line(2, "Memory", use ? fmt::format("{} %", use->memory) : "N/A");
  unsigned percent = 0;
  unsigned period_us = 0;
  const bool encoder = nvml.nvmlDeviceGetEncoderUtilization(d, &percent, &period_us) == NVML_SUCCESS;
  line(2, "Encoder", encoder ? fmt::format("{} %", percent) : "N/A");
  const bool decoder = nvml.nvmlDeviceGetDecoderUtilization(d, &percent, &period_us) == NVML_SUCCESS;
  line(2, "Decoder", decoder ? fmt::format("{} %", percent) : "N/A");
}

void print_sensors(const Nvml& nvml, nvmlDevice_t d) {
  nvmlEnableState_t current{};
  nvmlEnableState_t pending{};
  const bool ecc = nvml.nvmlDeviceGetEccMode(d, &current, &pending) == NVML_SUCCESS;
  title(1, "ECC Mode");
  line(2, "Current", ecc ? enabled(current) : "N/A");
  line(2, "Pending", ecc ? enabled(pending) : "N/A");
  title(1, "Temperature");
  const auto threshold = [&](nvmlTemperatureThresholds_t which) {
    return value_or_na(ask(nvml.nvmlDeviceGetTemperatureThreshold, d, which), " C");
  };
  line(2, "GPU Current Temp", value_or_na(ask(nvml.nvmlDeviceGetTemperature, d, NVML_TEMPERATURE_GPU), " C"));
  line(2, "GPU Shutdown Temp", threshold(NVML_TEMPERATURE_THRESHOLD_SHUTDOWN));
  line(2, "GPU Slowdown Temp", threshold(NVML_TEMPERATURE_THRESHOLD_SLOWDOWN));
  line(2, "GPU Max Operating Temp", threshold(NVML_TEMPERATURE_THRESHOLD_GPU_MAX));
  title(1, "GPU Power Readings");
  line(2, "Instantaneous Power Draw", watts(ask(nvml.nvmlDeviceGetPowerUsage, d)));
  line(2, "Current Power Limit", watts(ask(nvml.nvmlDeviceGetEnforcedPowerLimit, d)));
  line(2, "Default Power Limit", watts(ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit, d)));
  const auto clock = [&](auto fn, nvmlClockType_t type) { return value_or_na(ask(fn, d, type), " MHz"); };
  title(1, "Clocks");
  line(2, "Graphics", clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_GRAPHICS));
  line(2, "SM", clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_SM));
  line(2, "Memory", clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_MEM));
  line(2, "Video", clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_VIDEO));
  title(1, "Max Clocks");
  line(2, "Graphics", clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_GRAPHICS));
  line(2, "SM", clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_SM));
  line(2, "Memory", clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_MEM));
  line(2, "Video", clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_VIDEO));
}

}  // namespace

Result<void> print_details(const Nvml& nvml, const std::vector<Gpu>& gpus, unsigned attached) {
  fmt::print("\n==============NVSMI LOG==============\n\n");
  line(0, "Timestamp", local_time("%a %b %e %H:%M:%S %Y"));
  line(0, "Driver Version", driver_version(nvml));
  line(0, "CUDA Version", cuda_version(nvml));
  fmt::print("\n");
  line(0, "Attached GPUs", std::to_string(attached));
  for (const Gpu& gpu : gpus) {
    const auto pci = ask(nvml.nvmlDeviceGetPciInfo_v3, gpu.handle);
    fmt::print("GPU {}\n", pci ? pci->busId : "N/A");
    print_identity(nvml, gpu.handle);
    print_memory_and_use(nvml, gpu.handle);
    print_sensors(nvml, gpu.handle);
    const auto processes = processes_of(nvml, {gpu});
    if (!processes.ok()) return processes.error();
    if (processes->empty())
      line(1, "Processes", "None");
    else
      title(1, "Processes");
    for (const Process& process : *processes) {
      line(2, "GPU instance ID", "N/A");
      line(2, "Compute instance ID", "N/A");
      line(2, "Process ID", std::to_string(process.pid));
      line(3, "Type", "C");
      line(3, "Name", process.name);
      line(3, "Used GPU Memory", process.bytes ? mib(*process.bytes) : "N/A");
    }
    fmt::print("\n");
  }
  return {};
}

}  // namespace sluice::sim::smi
