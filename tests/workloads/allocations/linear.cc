// Linear memory: each exported form of cuMemAlloc, pitched and managed memory, and host memory as the contrast.
#include "allocations/allocation.h"

namespace workloads::allocations {
namespace {

constexpr uint64_t kPitchWidth = 1u << 20;

CUresult freed(CUdeviceptr address, uint64_t bytes) {
  const CUresult touched = touch(address, bytes);
  const CUresult result = driver().cuMemFree(address);
  return touched != CUDA_SUCCESS ? touched : result;
}

CUresult alloc_v2(const Request& request) {
  CUdeviceptr address = 0;
  WORKLOAD_TRY(driver().cuMemAlloc(&address, request.bytes));
  return freed(address, request.bytes);
}

// The form of CUDA 2: sizes and addresses of 32 bits, so it cannot ask for 4 GiB and more.
CUresult alloc_v1(const Request& request) {
  auto* const allocate = symbol<decltype(::cuMemAlloc)>("cuMemAlloc");
  auto* const free = symbol<decltype(::cuMemFree)>("cuMemFree");
  if (allocate == nullptr || free == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (request.bytes > UINT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr_v1 address = 0;
  WORKLOAD_TRY(allocate(&address, static_cast<unsigned>(request.bytes)));
  return free(address);
}

CUresult alloc_pitch(const Request& request) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  const size_t rows = (request.bytes + kPitchWidth - 1) / kPitchWidth;
  WORKLOAD_TRY(driver().cuMemAllocPitch(&address, &pitch, kPitchWidth, rows, 16));
  return freed(address, pitch * rows);
}

// A width one byte over the pitch's step: what is taken is pitch x rows, more than width x rows.
CUresult alloc_pitch_wide(const Request& request) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  constexpr size_t kWidth = 513;
  const size_t rows = (request.bytes + kWidth - 1) / kWidth;
  WORKLOAD_TRY(driver().cuMemAllocPitch(&address, &pitch, kWidth, rows, 4));
  return freed(address, pitch * rows);
}

CUresult managed(const Request& request, CUmemAttach_flags flags) {
  CUdeviceptr address = 0;
  WORKLOAD_TRY(driver().cuMemAllocManaged(&address, request.bytes, flags));
  return freed(address, request.bytes);
}
CUresult managed_global(const Request& request) {
  return managed(request, CU_MEM_ATTACH_GLOBAL);
}
CUresult managed_host(const Request& request) {
  return managed(request, CU_MEM_ATTACH_HOST);
}

// Many small blocks instead of one big one: together they pass the limit.
CUresult alloc_pieces(const Request& request) {
  constexpr uint64_t kPiece = 16u << 20;
  constexpr size_t kMost = 4096;
  CUdeviceptr pieces[kMost];
  size_t count = 0;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t held = 0; held < request.bytes && count < kMost && result == CUDA_SUCCESS; held += kPiece) {
    const uint64_t rest = request.bytes - held;
    result = driver().cuMemAlloc(&pieces[count], rest < kPiece ? rest : kPiece);
    if (result == CUDA_SUCCESS) ++count;
  }
  while (count > 0) {
    const CUresult free_result = driver().cuMemFree(pieces[--count]);
    if (result == CUDA_SUCCESS) result = free_result;
  }
  return result;
}

// Host memory is asked for in a bounded amount: a test must not drive the machine out of memory.
constexpr uint64_t kMostHostBytes = 64u << 20;
size_t host_bytes(const Request& request) {
  return request.bytes < kMostHostBytes ? request.bytes : kMostHostBytes;
}

CUresult alloc_host(const Request& request) {
  void* address = nullptr;
  WORKLOAD_TRY(driver().cuMemAllocHost(&address, host_bytes(request)));
  return driver().cuMemFreeHost(address);
}

CUresult host_alloc(const Request& request) {
  void* address = nullptr;
  WORKLOAD_TRY(driver().cuMemHostAlloc(&address, host_bytes(request), CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr alias = 0;
  const CUresult result = driver().cuMemHostGetDevicePointer(&alias, address, 0);
  WORKLOAD_TRY(driver().cuMemFreeHost(address));
  return result;
}

constexpr Way kWays[] = {
    {"cuMemAlloc_v2", Kind::kDevice, alloc_v2},
    {"cuMemAlloc", Kind::kDevice, alloc_v1},
    {"cuMemAlloc_v2 in pieces of 16 MiB", Kind::kDevice, alloc_pieces},
    {"cuMemAllocPitch_v2", Kind::kDevice, alloc_pitch},
    {"cuMemAllocPitch_v2 of width 513", Kind::kDevice, alloc_pitch_wide},
    {"cuMemAllocManaged global", Kind::kManaged, managed_global},
    {"cuMemAllocManaged host", Kind::kManaged, managed_host},
    {"cuMemAllocHost_v2", Kind::kHost, alloc_host},
    {"cuMemHostAlloc", Kind::kHost, host_alloc},
};

}  // namespace

std::span<const Way> linear_ways() {
  return kWays;
}

}  // namespace workloads::allocations
