// What a card is, by NVML: names, identifiers, PCI, memory sizes, links. All of it from the card's file.

#include <algorithm>
#include <cstdio>

#include "sim/driver_version.h"
#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

template <typename Make>
nvmlReturn_t text_answer(std::string_view call, nvmlDevice_t handle, char* out, unsigned length, Make make) {
  return with_device(call, handle, [&](NvmlView& view) { return give_text(make(view), out, length); });
}

std::string bus_id(const CardFile& file, const char* format) {
  char text[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
  std::snprintf(text, sizeof text, format, file.pci_domain, file.pci_bus, file.pci_slot);
  return text;
}

nvmlReturn_t pci_info(std::string_view call, nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  return with_device(call, handle, [&](NvmlView& view) {
    if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const CardFile& file = view.card.file();
    *pci = {};
    bus_id(file, "%04X:%02X:%02X.0").copy(pci->busIdLegacy, sizeof pci->busIdLegacy - 1);
    bus_id(file, "%08X:%02X:%02X.0").copy(pci->busId, sizeof pci->busId - 1);
    pci->domain = file.pci_domain;
    pci->bus = file.pci_bus;
    pci->device = file.pci_slot;
    pci->pciDeviceId = file.profile.pci_device_id;
    pci->pciSubSystemId = file.profile.pci_subsystem_id;
    return NVML_SUCCESS;
  });
}

struct BrandName {
  const char* name;
  nvmlBrandType_t brand;
};
const BrandName kBrands[] = {{"tesla", NVML_BRAND_TESLA},
                             {"nvidia", NVML_BRAND_NVIDIA},
                             {"quadro", NVML_BRAND_QUADRO},
                             {"geforce", NVML_BRAND_GEFORCE},
                             {"rtx", NVML_BRAND_NVIDIA_RTX}};

nvmlBrandType_t brand_of(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const BrandName& row : kBrands) {
    if (lower.find(row.name) != std::string::npos) return row.brand;
  }
  return NVML_BRAND_NVIDIA;
}

// Cores per multiprocessor by compute capability.
unsigned cores_per_sm(unsigned major, unsigned minor) {
  if (major == 7) return 64;
  if (major == 8) return minor == 0 ? 64 : 128;
  return 128;
}

// Of the whole memory when the card has a large BAR, as cards for servers have; 256 MiB else.
uint64_t bar1_bytes(const ProfileData& profile) {
  uint64_t bytes = uint64_t{256} << 20;
  if (profile.nvml_total_bytes > uint64_t{16} << 30) {
    while (bytes < profile.nvml_total_bytes) bytes <<= 1;
  }
  return bytes;
}

// What the driver keeps for itself: never more than programs cannot have anyway, so that free memory is never negative.
uint64_t reserved_bytes(const ProfileData& profile) {
  return std::min(profile.reserved_bytes, profile.nvml_total_bytes - profile.cuda_total_bytes);
}

unsigned pcie_generation(const ProfileData& profile) {
  if (profile.architecture >= NVML_DEVICE_ARCH_HOPPER) return 5;
  return profile.architecture >= NVML_DEVICE_ARCH_AMPERE ? 4 : 3;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return text_answer("nvmlDeviceGetName", device, name, length, [](NvmlView& v) { return v.card.profile().name; });
}

nvmlReturn_t sim_nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return text_answer("nvmlDeviceGetUUID", device, uuid, length, [](NvmlView& v) { return v.card.file().uuid; });
}

nvmlReturn_t sim_nvmlDeviceGetSerial(nvmlDevice_t device, char* serial, unsigned length) {
  return text_answer("nvmlDeviceGetSerial", device, serial, length,
                     [](NvmlView& v) { return v.card.file().serial_number; });
}

nvmlReturn_t sim_nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char* part, unsigned length) {
  return text_answer("nvmlDeviceGetBoardPartNumber", device, part, length, [](NvmlView& v) {
    char text[32];
    std::snprintf(text, sizeof text, "900-%05X-0000-000", v.card.profile().pci_device_id >> 16);
    return std::string(text);
  });
}

nvmlReturn_t sim_nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char* version, unsigned length) {
  return text_answer("nvmlDeviceGetVbiosVersion", device, version, length, [](NvmlView& v) {
    char text[32];
    std::snprintf(text, sizeof text, "%02X.00.%02X.00.01", 0x80 + v.card.profile().architecture * 2,
                  v.card.profile().sms & 0xff);
    return std::string(text);
  });
}

nvmlReturn_t sim_nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char* version, unsigned length) {
  return text_answer("nvmlDeviceGetInforomImageVersion", device, version, length, [](NvmlView& v) {
    char text[32];
    std::snprintf(text, sizeof text, "G%03X.0200.00.03", (v.card.profile().pci_device_id >> 20) & 0xfff);
    return std::string(text);
  });
}

nvmlReturn_t sim_nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char* version,
                                             unsigned length) {
  if (object < NVML_INFOROM_OEM || object >= NVML_INFOROM_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (object == NVML_INFOROM_POWER || object == NVML_INFOROM_DEN) return NVML_ERROR_NOT_SUPPORTED;
  return text_answer("nvmlDeviceGetInforomVersion", device, version, length,
                     [&](NvmlView&) { return object == NVML_INFOROM_OEM ? "1.1" : "5.0"; });
}

nvmlReturn_t sim_nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char* version) {
  return text_answer("nvmlDeviceGetGspFirmwareVersion", device, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE,
                     [](NvmlView&) { return kDriverVersion; });
}

nvmlReturn_t sim_nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned* enabled, unsigned* by_default) {
  if (by_default == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer("nvmlDeviceGetGspFirmwareMode", device, enabled,
                [&](NvmlView& v) { return *by_default = v.card.profile().architecture >= NVML_DEVICE_ARCH_TURING; });
}

nvmlReturn_t sim_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  return answer("nvmlDeviceGetIndex", device, index, [](NvmlView& v) { return v.device.index; });
}

nvmlReturn_t sim_nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return answer("nvmlDeviceGetMinorNumber", device, minor, [](NvmlView& v) { return v.card.file().minor; });
}

nvmlReturn_t sim_nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned* id) {
  return answer("nvmlDeviceGetModuleId", device, id, [](NvmlView& v) { return v.card.file().card_index; });
}

nvmlReturn_t sim_nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned* id) {
  return answer("nvmlDeviceGetBoardId", device, id, [](NvmlView& v) { return v.card.file().pci_bus << 8; });
}

nvmlReturn_t sim_nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned* multi) {
  return answer("nvmlDeviceGetMultiGpuBoard", device, multi, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int* same) {
  return answer("nvmlDeviceOnSameBoard", one, same, [&](NvmlView&) { return one == other; });
}

nvmlReturn_t sim_nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return answer("nvmlDeviceGetBrand", device, brand, [](NvmlView& v) { return brand_of(v.card.profile().brand); });
}

nvmlReturn_t sim_nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  return answer("nvmlDeviceGetArchitecture", device, architecture,
                [](NvmlView& v) { return v.card.profile().architecture; });
}

nvmlReturn_t sim_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  if (minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer("nvmlDeviceGetCudaComputeCapability", device, major, [&](NvmlView& v) {
    *minor = static_cast<int>(v.card.profile().compute_minor);
    return v.card.profile().compute_major;
  });
}

nvmlReturn_t sim_nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned* cores) {
  return answer("nvmlDeviceGetNumGpuCores", device, cores, [](NvmlView& v) {
    const ProfileData& p = v.card.profile();
    return p.sms * cores_per_sm(p.compute_major, p.compute_minor);
  });
}

nvmlReturn_t sim_nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned* bits) {
  return answer("nvmlDeviceGetMemoryBusWidth", device, bits,
                [](NvmlView& v) { return v.card.profile().bus_width_bits; });
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info("nvmlDeviceGetPciInfo", device, pci);
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info("nvmlDeviceGetPciInfo_v2", device, pci);
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info("nvmlDeviceGetPciInfo_v3", device, pci);
}

nvmlReturn_t sim_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (pci->version != NVML_VERSION_WORD(nvmlPciInfoExt_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t plain;
  const nvmlReturn_t result = pci_info("nvmlDeviceGetPciInfoExt", device, &plain);
  if (result != NVML_SUCCESS) return result;
  constexpr unsigned kDisplayController = 3;
  constexpr unsigned k3dController = 2;
  *pci = {pci->version,       plain.domain,  plain.bus, plain.device, plain.pciDeviceId, plain.pciSubSystemId,
          kDisplayController, k3dController, {}};
  std::memcpy(pci->busId, plain.busId, sizeof pci->busId);
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t* type) {
  return answer("nvmlDeviceGetBusType", device, type, [](NvmlView&) { return NVML_BUS_TYPE_PCIE; });
}

nvmlReturn_t sim_nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return answer("nvmlDeviceGetMaxPcieLinkGeneration", device, generation,
                [](NvmlView& v) { return pcie_generation(v.card.profile()); });
}

nvmlReturn_t sim_nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return sim_nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

nvmlReturn_t sim_nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return sim_nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

nvmlReturn_t sim_nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return answer("nvmlDeviceGetMaxPcieLinkWidth", device, width, [](NvmlView&) { return 16; });
}

nvmlReturn_t sim_nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return sim_nvmlDeviceGetMaxPcieLinkWidth(device, width);
}

nvmlReturn_t sim_nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned* speed_mbps) {
  return answer("nvmlDeviceGetPcieSpeed", device, speed_mbps,
                [](NvmlView& v) { return 1000U << pcie_generation(v.card.profile()); });
}

nvmlReturn_t sim_nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned* count) {
  return answer("nvmlDeviceGetPcieReplayCounter", device, count, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t, unsigned* kib_per_second) {
  return answer("nvmlDeviceGetPcieThroughput", device, kib_per_second,
                [](NvmlView& v) { return v.card.utilisation_percent(v.now_ns, 20000000) * 512; });
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return with_device("nvmlDeviceGetMemoryInfo", device, [&](NvmlView& v) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const ProfileData& p = v.card.profile();
    memory->total = p.nvml_total_bytes;
    memory->used = reserved_bytes(p) + v.card.used_bytes();  // the first form has no place for the reserved part
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return with_device("nvmlDeviceGetMemoryInfo_v2", device, [&](NvmlView& v) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != NVML_VERSION_WORD(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const ProfileData& p = v.card.profile();
    memory->total = p.nvml_total_bytes;
    memory->reserved = reserved_bytes(p);
    memory->used = v.card.used_bytes();
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  return with_device("nvmlDeviceGetBAR1MemoryInfo", device, [&](NvmlView& v) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    memory->bar1Total = bar1_bytes(v.card.profile());
    // The driver maps 2 MiB for itself and as much per context.
    memory->bar1Used = uint64_t{2097152} * (1 + v.card.header().tables.contexts.live);
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t* state) {
  return with_device("nvmlDeviceGetNvLinkState", device, [&](NvmlView& v) {
    if (state == nullptr || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    if (link >= v.card.profile().nvlinks) return NVML_ERROR_NOT_SUPPORTED;
    *state = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                     nvmlGpuTopologyLevel_t* level) {
  NvmlDevice* second = nullptr;
  if (const nvmlReturn_t result = find_device(other, &second); result != NVML_SUCCESS) return result;
  return answer("nvmlDeviceGetTopologyCommonAncestor", one, level,
                [&](NvmlView&) { return one == other ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE; });
}

nvmlReturn_t sim_nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t,
                                        nvmlGpuP2PStatus_t* status) {
  NvmlDevice* second = nullptr;
  if (const nvmlReturn_t result = find_device(other, &second); result != NVML_SUCCESS) return result;
  return answer("nvmlDeviceGetP2PStatus", one, status, [](NvmlView&) { return NVML_P2P_STATUS_OK; });
}

}  // extern "C"
