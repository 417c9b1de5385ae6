// Stream-ordered allocation: the default pool and pools of one's own, through the legacy and the per-thread forms.
#include "allocations/allocation.h"

namespace workloads::allocations {
namespace {

// Frees in stream order, waits, and gives cached memory of the pool back to the card, so that the next way starts even.
CUresult finish(const Driver& cuda, CUdeviceptr address, uint64_t bytes, CUmemoryPool pool, CUstream stream) {
  CUresult result = cuda.cuStreamSynchronize(stream);
  if (result == CUDA_SUCCESS) result = touch(address, bytes);
  WORKLOAD_TRY(cuda.cuMemFreeAsync(address, stream));
  WORKLOAD_TRY(cuda.cuStreamSynchronize(stream));
  WORKLOAD_TRY(cuda.cuMemPoolTrimTo(pool, 0));
  return result;
}

CUresult default_pool(const Driver& cuda, const Request& request, CUstream stream, bool from_pool) {
  CUmemoryPool pool = nullptr;
  WORKLOAD_TRY(cuda.cuDeviceGetDefaultMemPool(&pool, request.device));
  CUdeviceptr address = 0;
  WORKLOAD_TRY(from_pool ? cuda.cuMemAllocFromPoolAsync(&address, request.bytes, pool, stream)
                         : cuda.cuMemAllocAsync(&address, request.bytes, stream));
  return finish(cuda, address, request.bytes, pool, stream);
}

CUresult on_stream(const Driver& cuda, const Request& request, bool from_pool) {
  CUstream stream = nullptr;
  WORKLOAD_TRY(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUresult result = default_pool(cuda, request, stream, from_pool);
  const CUresult destroyed = cuda.cuStreamDestroy(stream);
  return result != CUDA_SUCCESS ? result : destroyed;
}

CUresult async_stream(const Request& request) {
  return on_stream(driver(), request, false);
}
CUresult async_null(const Request& request) {
  return default_pool(driver(), request, nullptr, false);
}
CUresult async_ptsz(const Request& request) {
  return default_pool(driver_per_thread(), request, nullptr, false);
}
CUresult async_named(const Request& request) {
  return default_pool(driver(), request, CU_STREAM_PER_THREAD, false);
}
CUresult from_default(const Request& request) {
  return on_stream(driver(), request, true);
}
CUresult from_default_ptsz(const Request& request) {
  return default_pool(driver_per_thread(), request, nullptr, true);
}

CUresult own_pool(const Request& request, bool keep_cached) {
  const Driver& cuda = driver();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = request.device;
  CUmemoryPool pool = nullptr;
  WORKLOAD_TRY(cuda.cuMemPoolCreate(&pool, &properties));
  CUresult result = CUDA_SUCCESS;
  if (keep_cached) {
    cuuint64_t threshold = UINT64_MAX;
    result = cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  }
  CUdeviceptr address = 0;
  if (result == CUDA_SUCCESS) result = cuda.cuMemAllocFromPoolAsync(&address, request.bytes, pool, nullptr);
  if (result == CUDA_SUCCESS && keep_cached) {
    // Freed into the pool's cache and taken again: the second time nothing new is charged and nothing may be refused.
    result = cuda.cuMemFreeAsync(address, nullptr);
    if (result == CUDA_SUCCESS) result = cuda.cuStreamSynchronize(nullptr);
    if (result == CUDA_SUCCESS) result = cuda.cuMemAllocFromPoolAsync(&address, request.bytes, pool, nullptr);
  }
  if (result == CUDA_SUCCESS) result = finish(cuda, address, request.bytes, pool, nullptr);
  const CUresult destroyed = cuda.cuMemPoolDestroy(pool);
  return result != CUDA_SUCCESS ? result : destroyed;
}
CUresult created_pool(const Request& request) {
  return own_pool(request, false);
}
CUresult cached_pool(const Request& request) {
  return own_pool(request, true);
}

constexpr Way kWays[] = {
    {"cuMemAllocAsync", Kind::kDevice, async_stream},
    {"cuMemAllocAsync on the null stream", Kind::kDevice, async_null},
    {"cuMemAllocAsync on CU_STREAM_PER_THREAD", Kind::kDevice, async_named},
    {"cuMemAllocAsync_ptsz", Kind::kDevice, async_ptsz},
    {"cuMemAllocFromPoolAsync", Kind::kDevice, from_default},
    {"cuMemAllocFromPoolAsync_ptsz", Kind::kDevice, from_default_ptsz},
    {"cuMemPoolCreate+cuMemAllocFromPoolAsync", Kind::kDevice, created_pool},
    {"cuMemPoolCreate+cuMemAllocFromPoolAsync twice from the cache", Kind::kDevice, cached_pool},
};

}  // namespace

std::span<const Way> pool_ways() {
  return kWays;
}

}  // namespace workloads::allocations
