// Initialisation, devices and their attributes.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim/api.h"
#include "sim/driver_version.h"

namespace sluice::sim {
namespace {

struct FixedAttribute {
  CUdevice_attribute attribute;
  int value;
};

// The same on every card.
constexpr FixedAttribute kFixed[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1},
    {CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 268435456},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16384},
};

bool card_attribute(Card& card, CUdevice_attribute attribute, int* value) {
  const ProfileData& p = card.profile();
  const auto set = [value](int64_t v) {
    *value = static_cast<int>(v);
    return true;
  };
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return set(p.sms);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return set(p.compute_major);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return set(p.compute_minor);
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return set(p.clock_khz);
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return set(p.memory_clock_khz);
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return set(p.bus_width_bits);
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return set(p.l2_bytes);
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      return set(p.compute_major >= 8 ? p.l2_bytes / 4 * 3 : 0);
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
      return set(p.compute_major >= 8 ? 134213632 : 0);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return set(p.threads_per_sm);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return set(p.blocks_per_sm);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return set(p.registers_per_sm);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return set(p.shared_per_block_bytes);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return set(p.shared_optin_bytes);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return set(p.shared_per_sm_bytes);
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return set(p.compute_major >= 8 ? 1024 : 0);
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return set(p.copy_engines);
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      return set(p.has_ecc);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return set(card.file().pci_bus);
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return set(card.file().pci_slot);
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return set(card.file().pci_domain);
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:
      return set(p.pci_device_id);
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID:
      return set(p.pci_subsystem_id);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return set(card.knob(Knob::exclusive_process) != 0 ? 3 : 0);
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return set(p.compute_major >= 9);
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return set(p.compute_major >= 9);
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
      return set(card.file().card_index);
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return set(p.compute_minor == 0 ? 2 : 32);
    default:
      return false;
  }
}

CUresult total_memory(CUdevice ordinal, uint64_t* bytes) {
  Device* device = current_process().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = device->card->capacity_bytes();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return current_process().initialise();
}

CUresult sim_cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kCudaDriverVersion;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int* count) {
  SIM_ENTER(cuDeviceGetCount, kDriver);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = call.process.device_count();
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGet(CUdevice* device, int ordinal) {
  SIM_ENTER(cuDeviceGet, kDriver);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetName, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(length), "%s", device->card->profile().name);
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetUuid, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(uuid->bytes, device->card->file().uuid_bytes, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult sim_cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  return sim_cuDeviceGetUuid(uuid, ordinal);
}

CUresult sim_cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  SIM_ENTER(cuDeviceTotalMem_v2, kDriver);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t total = 0;
  const CUresult result = total_memory(ordinal, &total);
  if (result == CUDA_SUCCESS) *bytes = total;
  return result;
}
CUresult sim_cuDeviceTotalMem(unsigned* bytes, CUdevice ordinal) {
  SIM_ENTER(cuDeviceTotalMem, kDriver);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t total = 0;
  const CUresult result = total_memory(ordinal, &total);
  if (result == CUDA_SUCCESS) *bytes = static_cast<unsigned>(std::min<uint64_t>(total, 0xffffffff));
  return result;
}

CUresult sim_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetAttribute, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  if (card_attribute(*device->card, attribute, value)) return CUDA_SUCCESS;
  const auto found =
      std::find_if(std::begin(kFixed), std::end(kFixed), [&](const auto& f) { return f.attribute == attribute; });
  if (found != std::end(kFixed)) *value = found->value;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetProperties, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ProfileData& p = device->card->profile();
  *properties = {1024,
                 {1024, 1024, 64},
                 {2147483647, 65535, 65535},
                 static_cast<int>(p.shared_per_block_bytes),
                 65536,
                 32,
                 2147483647,
                 65536,
                 static_cast<int>(p.clock_khz),
                 512};
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  SIM_ENTER(cuDeviceComputeCapability, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = static_cast<int>(device->card->profile().compute_major);
  *minor = static_cast<int>(device->card->profile().compute_minor);
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetPCIBusId, kDriver);
  Device* device = call.process.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const CardFile& f = device->card->file();
  std::snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.0", f.pci_domain, f.pci_bus, f.pci_slot);
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  SIM_ENTER(cuDeviceGetByPCIBusId, kDriver);
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) < 3) {
    domain = 0;
    if (std::sscanf(text, "%x:%x", &bus, &slot) < 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < call.process.device_count(); ++i) {
    const CardFile& f = call.process.device(i)->card->file();
    if (f.pci_domain != domain || f.pci_bus != bus || f.pci_slot != slot) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  SIM_ENTER(cuDeviceCanAccessPeer, kDriver);
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(a) == nullptr || call.process.device(b) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = a != b;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice a, CUdevice b) {
  SIM_ENTER(cuDeviceGetP2PAttribute, kDriver);
  if (value == nullptr || a == b) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(a) == nullptr || call.process.device(b) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetExecAffinitySupport, kDriver);
  if (supported == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *supported = 0;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format, unsigned, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetTexture1DLinearMaxWidth, kDriver);
  if (width == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.process.device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *width = 268435456;
  return CUDA_SUCCESS;
}

// No simulated card exports private tables: programs that need one see a driver without it.
CUresult sim_cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuProfilerStart() {
  return CUDA_SUCCESS;
}
CUresult sim_cuProfilerStop() {
  return CUDA_SUCCESS;
}
CUresult sim_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  SIM_ENTER(cuFlushGPUDirectRDMAWrites, kContext);
  return CUDA_SUCCESS;
}
}
