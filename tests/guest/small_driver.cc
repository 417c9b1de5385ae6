// A driver pair that runs in a root of any age and any C library, as the vendor's does: no C library at all, and memory
// that is a counter. It refuses nothing by itself, so what a program is refused the guest has refused; and it says how
// much it ever gave (small_driver_most_mib). Built by loads.sh with -nostdlib: with SMALL_NVML, and without it together
// with bench/null_driver/exports.cc, whose every other name answers success.
#ifndef SMALL_NVML
#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"
#else
#include "abi/nvml.h"
#endif

namespace {
constexpr unsigned long long kMiB = 1ull << 20;
constexpr unsigned long long kCardBytes = 32510 * kMiB;
}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifndef SMALL_NVML
namespace {
constexpr int kMostPieces = 64;
struct Piece {
  CUdeviceptr address;
  unsigned long long bytes;
};
Piece pieces[kMostPieces];
unsigned long long given = 0, most = 0, next_address = 0x700000000000;
CUcontext current = nullptr;
}  // namespace

EXPORT int small_driver_most_mib() {
  return static_cast<int>(most / kMiB);
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 12080;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  for (char& byte : uuid->bytes) byte = 0x5a;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid(uuid, device);
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kCardBytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo_v2(size_t* left, size_t* total) {
  *left = kCardBytes - given;
  *total = kCardBytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice) {
  *context = current = reinterpret_cast<CUcontext>(&current);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (context != nullptr) *context = current;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  for (Piece& piece : pieces) {
    if (piece.address != 0) continue;
    *address = next_address;
    piece = {next_address, bytes};
    next_address += bytes;
    given += bytes;
    most = given > most ? given : most;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_UNKNOWN;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  for (Piece& piece : pieces) {
    if (piece.address != address || address == 0) continue;
    given -= piece.bytes;
    piece.address = 0;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
#else

EXPORT nvmlReturn_t nvmlInit_v2() {
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 1;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t* device) {
  static int card;
  *device = reinterpret_cast<nvmlDevice_t>(&card);
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned int length) {
  static const char text[] = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
  for (unsigned int i = 0; i < length && i < sizeof text; ++i) uuid[i] = text[i];
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  memory->total = memory->free = kCardBytes;
  memory->used = 0;
  return NVML_SUCCESS;
}
#endif
