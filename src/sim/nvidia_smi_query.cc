// --query-gpu and --query-compute-apps: fields by name, printed as CSV. One table holds every field with its aliases,
// its unit and how to read it, so that help, checking and printing cannot disagree.

#include <fmt/core.h>

#include <algorithm>

#include "sim/nvidia_smi.h"

namespace sluice::sim::smi {
namespace {

constexpr const char* kNotAvailable = "[N/A]";

struct GpuField {
  const char* name;
  const char* alias;  // second accepted spelling, or nullptr
  const char* unit;   // "" for none
  std::string (*read)(const Nvml&, const Gpu&);
};

template <typename T>
std::string number(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : kNotAvailable;
}

std::string watts(const std::optional<unsigned>& milliwatts) {
  return milliwatts ? fmt::format("{:.2f}", *milliwatts / 1000.0) : kNotAvailable;
}

std::string megabytes(const std::optional<unsigned long long>& bytes) {
  return bytes ? std::to_string(*bytes >> 20) : kNotAvailable;
}

std::string enabled(const std::optional<nvmlEnableState_t>& state) {
  if (!state) return kNotAvailable;
  return *state == NVML_FEATURE_ENABLED ? "Enabled" : "Disabled";
}

std::string temperature(const Nvml& n, const Gpu& g) {
  return number(ask(n.nvmlDeviceGetTemperature, g.handle, NVML_TEMPERATURE_GPU));
}

std::string clock(nvmlReturn_t (*fn)(nvmlDevice_t, nvmlClockType_t, unsigned*), const Gpu& g, nvmlClockType_t type) {
  return number(ask(fn, g.handle, type));
}

std::string memory(const Nvml& n, const Gpu& g, unsigned long long nvmlMemory_v2_t::* part) {
  const auto info = memory_of(n, g.handle);
  return info ? std::to_string((*info).*part >> 20) : std::string(kNotAvailable);
}

std::string utilisation(const Nvml& n, const Gpu& g, unsigned nvmlUtilization_t::* part) {
  const auto use = ask(n.nvmlDeviceGetUtilizationRates, g.handle);
  return use ? std::to_string((*use).*part) : std::string(kNotAvailable);
}

std::string pci(const Nvml& n, const Gpu& g, std::string (*format)(const nvmlPciInfo_t&)) {
  const auto info = ask(n.nvmlDeviceGetPciInfo_v3, g.handle);
  return info ? format(*info) : std::string(kNotAvailable);
}

std::string ecc_errors(const Nvml& n, const Gpu& g, nvmlMemoryErrorType_t type) {
  return number(ask(n.nvmlDeviceGetTotalEccErrors, g.handle, type, NVML_VOLATILE_ECC));
}

std::string ecc_mode(const Nvml& n, const Gpu& g) {
  nvmlEnableState_t current{};
  nvmlEnableState_t pending{};
  if (n.nvmlDeviceGetEccMode(g.handle, &current, &pending) != NVML_SUCCESS) return kNotAvailable;
  return enabled(current);
}

std::string mig_mode(const Nvml& n, const Gpu& g) {
  unsigned current = 0;
  unsigned pending = 0;
  if (n.nvmlDeviceGetMigMode(g.handle, &current, &pending) != NVML_SUCCESS) return kNotAvailable;
  return current == NVML_DEVICE_MIG_DISABLE ? "Disabled" : "Enabled";
}

std::string power_bound(const Nvml& n, const Gpu& g, bool most) {
  unsigned low = 0;
  unsigned high = 0;
  if (n.nvmlDeviceGetPowerManagementLimitConstraints(g.handle, &low, &high) != NVML_SUCCESS) return kNotAvailable;
  return watts(most ? high : low);
}

std::string capability(const Nvml& n, const Gpu& g) {
  int major = 0;
  int minor = 0;
  if (n.nvmlDeviceGetCudaComputeCapability(g.handle, &major, &minor) != NVML_SUCCESS) return kNotAvailable;
  return fmt::format("{}.{}", major, minor);
}

const GpuField kGpuFields[] = {
    {"timestamp", nullptr, "", [](const Nvml&, const Gpu&) { return local_time("%Y/%m/%d %H:%M:%S.000"); }},
    {"driver_version", nullptr, "", [](const Nvml& n, const Gpu&) { return driver_version(n); }},
    {"count", nullptr, "",
     [](const Nvml& n, const Gpu&) {
       unsigned count = 0;
       return n.nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS ? std::to_string(count) : std::string(kNotAvailable);
     }},
    {"name", "gpu_name", "", [](const Nvml& n, const Gpu& g) { return text_of(n.nvmlDeviceGetName, g.handle); }},
    {"index", nullptr, "", [](const Nvml&, const Gpu& g) { return std::to_string(g.index); }},
    {"uuid", "gpu_uuid", "", [](const Nvml& n, const Gpu& g) { return text_of(n.nvmlDeviceGetUUID, g.handle); }},
    {"serial", "gpu_serial", "", [](const Nvml& n, const Gpu& g) { return text_of(n.nvmlDeviceGetSerial, g.handle); }},
    {"compute_cap", nullptr, "", capability},
    {"vbios_version", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return text_of(n.nvmlDeviceGetVbiosVersion, g.handle); }},
    {"pci.bus_id", "gpu_bus_id", "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return std::string(p.busId); });
     }},
    {"pci.domain", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return fmt::format("0x{:04X}", p.domain); });
     }},
    {"pci.bus", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return fmt::format("0x{:02X}", p.bus); });
     }},
    {"pci.device", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return fmt::format("0x{:02X}", p.device); });
     }},
    {"pci.device_id", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return fmt::format("0x{:08X}", p.pciDeviceId); });
     }},
    {"pci.sub_device_id", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return fmt::format("0x{:08X}", p.pciSubSystemId); });
     }},
    {"pcie.link.gen.current", "pcie.link.gen.gpucurrent", "",
     [](const Nvml& n, const Gpu& g) { return number(ask(n.nvmlDeviceGetCurrPcieLinkGeneration, g.handle)); }},
    {"pcie.link.gen.max", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return number(ask(n.nvmlDeviceGetMaxPcieLinkGeneration, g.handle)); }},
    {"pcie.link.width.current", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return number(ask(n.nvmlDeviceGetCurrPcieLinkWidth, g.handle)); }},
    {"pcie.link.width.max", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return number(ask(n.nvmlDeviceGetMaxPcieLinkWidth, g.handle)); }},
    {"persistence_mode", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return enabled(ask(n.nvmlDeviceGetPersistenceMode, g.handle)); }},
    {"display_mode", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return enabled(ask(n.nvmlDeviceGetDisplayMode, g.handle)); }},
    {"display_active", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return enabled(ask(n.nvmlDeviceGetDisplayActive, g.handle)); }},
    {"accounting.mode", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return enabled(ask(n.nvmlDeviceGetAccountingMode, g.handle)); }},
    {"compute_mode", nullptr, "", [](const Nvml& n, const Gpu& g) { return compute_mode(n, g.handle, false); }},
    {"mig.mode.current", nullptr, "", mig_mode},
    {"mig.mode.pending", nullptr, "", mig_mode},
    {"fan.speed", nullptr, "%",
     [](const Nvml& n, const Gpu& g) { return number(ask(n.nvmlDeviceGetFanSpeed, g.handle)); }},
    {"pstate", nullptr, "",
     [](const Nvml& n, const Gpu& g) {
       const auto state = ask(n.nvmlDeviceGetPerformanceState, g.handle);
       return state ? fmt::format("P{}", static_cast<int>(*state)) : std::string(kNotAvailable);
     }},
    {"memory.total", nullptr, "MiB", [](const Nvml& n, const Gpu& g) { return memory(n, g, &nvmlMemory_v2_t::total); }},
    {"memory.reserved", nullptr, "MiB",
     [](const Nvml& n, const Gpu& g) { return memory(n, g, &nvmlMemory_v2_t::reserved); }},
    {"memory.used", nullptr, "MiB", [](const Nvml& n, const Gpu& g) { return memory(n, g, &nvmlMemory_v2_t::used); }},
    {"memory.free", nullptr, "MiB", [](const Nvml& n, const Gpu& g) { return memory(n, g, &nvmlMemory_v2_t::free); }},
    {"utilization.gpu", nullptr, "%",
     [](const Nvml& n, const Gpu& g) { return utilisation(n, g, &nvmlUtilization_t::gpu); }},
    {"utilization.memory", nullptr, "%",
     [](const Nvml& n, const Gpu& g) { return utilisation(n, g, &nvmlUtilization_t::memory); }},
    {"temperature.gpu", nullptr, "", temperature},
    {"power.management", nullptr, "", [](const Nvml&, const Gpu&) { return std::string("Enabled"); }},
    {"power.draw", "power.draw.instant", "W",
     [](const Nvml& n, const Gpu& g) { return watts(ask(n.nvmlDeviceGetPowerUsage, g.handle)); }},
    {"power.limit", "enforced.power.limit", "W",
     [](const Nvml& n, const Gpu& g) { return watts(ask(n.nvmlDeviceGetEnforcedPowerLimit, g.handle)); }},
    {"power.default_limit", nullptr, "W",
     [](const Nvml& n, const Gpu& g) { return watts(ask(n.nvmlDeviceGetPowerManagementDefaultLimit, g.handle)); }},
    {"power.min_limit", nullptr, "W", [](const Nvml& n, const Gpu& g) { return power_bound(n, g, false); }},
    {"power.max_limit", nullptr, "W", [](const Nvml& n, const Gpu& g) { return power_bound(n, g, true); }},
    {"clocks.gr", "clocks.current.graphics", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetClockInfo, g, NVML_CLOCK_GRAPHICS); }},
    {"clocks.sm", "clocks.current.sm", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetClockInfo, g, NVML_CLOCK_SM); }},
    {"clocks.mem", "clocks.current.memory", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetClockInfo, g, NVML_CLOCK_MEM); }},
    {"clocks.video", "clocks.current.video", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetClockInfo, g, NVML_CLOCK_VIDEO); }},
    {"clocks.max.gr", "clocks.max.graphics", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetMaxClockInfo, g, NVML_CLOCK_GRAPHICS); }},
    {"clocks.max.sm", nullptr, "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetMaxClockInfo, g, NVML_CLOCK_SM); }},
    {"clocks.max.mem", "clocks.max.memory", "MHz",
     [](const Nvml& n, const Gpu& g) { return clock(n.nvmlDeviceGetMaxClockInfo, g, NVML_CLOCK_MEM); }},
    {"ecc.mode.current", nullptr, "", ecc_mode},
    {"ecc.mode.pending", nullptr, "", ecc_mode},
    {"ecc.errors.corrected.volatile.total", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return ecc_errors(n, g, NVML_MEMORY_ERROR_TYPE_CORRECTED); }},
    {"ecc.errors.uncorrected.volatile.total", nullptr, "",
     [](const Nvml& n, const Gpu& g) { return ecc_errors(n, g, NVML_MEMORY_ERROR_TYPE_UNCORRECTED); }},
};

struct AppField {
  const char* name;
  const char* alias;
  const char* unit;
  std::string (*read)(const Nvml&, const Gpu&, const Process&);
};

const AppField kAppFields[] = {
    {"timestamp", nullptr, "",
     [](const Nvml&, const Gpu&, const Process&) { return local_time("%Y/%m/%d %H:%M:%S.000"); }},
    {"gpu_name", nullptr, "",
     [](const Nvml& n, const Gpu& g, const Process&) { return text_of(n.nvmlDeviceGetName, g.handle); }},
    {"gpu_bus_id", nullptr, "",
     [](const Nvml& n, const Gpu& g, const Process&) {
       return pci(n, g, [](const nvmlPciInfo_t& p) { return std::string(p.busId); });
     }},
    {"gpu_serial", nullptr, "",
     [](const Nvml& n, const Gpu& g, const Process&) { return text_of(n.nvmlDeviceGetSerial, g.handle); }},
    {"gpu_uuid", nullptr, "",
     [](const Nvml& n, const Gpu& g, const Process&) { return text_of(n.nvmlDeviceGetUUID, g.handle); }},
    {"pid", nullptr, "", [](const Nvml&, const Gpu&, const Process& p) { return std::to_string(p.pid); }},
    {"process_name", "name", "", [](const Nvml&, const Gpu&, const Process& p) { return p.name; }},
    {"used_gpu_memory", "used_memory", "MiB",
     [](const Nvml&, const Gpu&, const Process& p) { return megabytes(p.bytes); }},
};

std::vector<std::string> split(const std::string& fields) {
  std::vector<std::string> names;
  std::string name;
  for (const char c : fields + ",") {
    if (c == ',') {
      if (!name.empty()) names.push_back(name);
      name.clear();
    } else if (c != ' ') {
      name += c;
    }
  }
  return names;
}

template <typename Field, size_t kCount>
const Field* find(const Field (&table)[kCount], const std::string& name) {
  for (const Field& field : table) {
    if (name == field.name || (field.alias != nullptr && name == field.alias)) return &field;
  }
  return nullptr;
}

template <typename Field, size_t kCount>
Result<void> check(const Field (&table)[kCount], const std::string& fields, const char* option) {
  const std::vector<std::string> names = split(fields);
  if (names.empty()) {
    return invalid(fmt::format("--{} needs at least one field, e.g. --{}={}", option, option, table[1].name));
  }
  for (const std::string& name : names) {
    if (find(table, name) != nullptr) continue;
    return invalid(
        fmt::format("\"{}\" is not a field that can be queried; --help-{} lists those that can", name, option));
  }
  return {};
}

template <typename Field, size_t kCount, typename Value>
std::string row(const Field (&table)[kCount], const std::vector<std::string>& names, const CsvOptions& options,
                Value value) {
  std::string line;
  for (const std::string& name : names) {
    const Field& field = *find(table, name);
    std::string text = value(field);
    if (options.units && *field.unit != '\0' && text != kNotAvailable) text += std::string(" ") + field.unit;
    line += (line.empty() ? "" : ", ") + text;
  }
  return line;
}

template <typename Field, size_t kCount>
void print_header(const Field (&table)[kCount], const std::vector<std::string>& names, const CsvOptions& options) {
  std::string line;
  for (const std::string& name : names) {
    const char* unit = find(table, name)->unit;
    line += (line.empty() ? "" : ", ") + name;
    if (*unit != '\0') line += fmt::format(" [{}]", unit);
  }
  if (options.header) fmt::print("{}\n", line);
}

}  // namespace

Result<void> check_fields(const std::string& fields, bool apps) {
  return apps ? check(kAppFields, fields, "query-compute-apps") : check(kGpuFields, fields, "query-gpu");
}

Result<void> print_gpu_fields(const Nvml& nvml, const std::vector<Gpu>& gpus, const std::string& fields,
                              const CsvOptions& options, bool header) {
  const std::vector<std::string> names = split(fields);
  if (header) print_header(kGpuFields, names, options);
  for (const Gpu& gpu : gpus) {
    fmt::print("{}\n", row(kGpuFields, names, options, [&](const GpuField& field) { return field.read(nvml, gpu); }));
  }
  return {};
}

Result<void> print_app_fields(const Nvml& nvml, const std::vector<Gpu>& gpus, const std::string& fields,
                              const CsvOptions& options, bool header) {
  const std::vector<std::string> names = split(fields);
  const auto processes = processes_of(nvml, gpus);
  if (!processes.ok()) return processes.error();
  if (header) print_header(kAppFields, names, options);
  for (const Process& process : *processes) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& g) { return g.index == process.gpu; });
    fmt::print("{}\n",
               row(kAppFields, names, options, [&](const AppField& field) { return field.read(nvml, *gpu, process); }));
  }
  return {};
}

void print_field_help(bool apps) {
  const auto print = [](const auto& table) {
    for (const auto& field : table) {
      fmt::print("\"{}\"{}\n", field.name, field.alias ? fmt::format(" or \"{}\"", field.alias) : "");
    }
  };
  if (apps) {
    print(kAppFields);
  } else {
    print(kGpuFields);
  }
}

}  // namespace sluice::sim::smi
