// Arrays: one to three dimensions, layered, cube maps, mipmapped; sparse ones own nothing until memory is mapped to
// them.
#include "allocations/allocation.h"

namespace workloads::allocations {
namespace {

constexpr size_t kTexelBytes = 16;  // four channels of 32 bits
constexpr size_t kWidth = 4096;

CUresult array_2d(const Request& request) {
  CUDA_ARRAY_DESCRIPTOR wanted{};
  wanted.Width = 16384;
  wanted.Height = (request.bytes + wanted.Width * kTexelBytes - 1) / (wanted.Width * kTexelBytes);
  wanted.Format = CU_AD_FORMAT_FLOAT;
  wanted.NumChannels = 4;
  CUarray array = nullptr;
  WORKLOAD_TRY(driver().cuArrayCreate(&array, &wanted));
  return driver().cuArrayDestroy(array);
}

// Width x width x depth texels, or depth layers, that hold at least request.bytes.
CUDA_ARRAY3D_DESCRIPTOR volume(const Request& request, size_t width, unsigned flags, size_t depth_step) {
  CUDA_ARRAY3D_DESCRIPTOR wanted{};
  wanted.Width = width;
  wanted.Height = width;
  const size_t slice = width * width * kTexelBytes;
  wanted.Depth = (request.bytes + slice - 1) / slice;
  wanted.Depth = (wanted.Depth + depth_step - 1) / depth_step * depth_step;
  wanted.Format = CU_AD_FORMAT_FLOAT;
  wanted.NumChannels = 4;
  wanted.Flags = flags;
  return wanted;
}

CUresult array_volume(const CUDA_ARRAY3D_DESCRIPTOR& wanted) {
  CUarray array = nullptr;
  WORKLOAD_TRY(driver().cuArray3DCreate(&array, &wanted));
  return driver().cuArrayDestroy(array);
}
CUresult array_3d(const Request& request) {
  return array_volume(volume(request, kWidth, 0, 1));
}
CUresult array_layered(const Request& request) {
  return array_volume(volume(request, kWidth, CUDA_ARRAY3D_LAYERED, 1));
}
CUresult array_surface(const Request& request) {
  return array_volume(volume(request, kWidth, CUDA_ARRAY3D_SURFACE_LDST, 1));
}
CUresult array_cube(const Request& request) {
  return array_volume(volume(request, kWidth, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, 6));
}

CUresult mipmapped(const Request& request) {
  const CUDA_ARRAY3D_DESCRIPTOR wanted = volume(request, kWidth, CUDA_ARRAY3D_LAYERED, 1);
  CUmipmappedArray array = nullptr;
  WORKLOAD_TRY(driver().cuMipmappedArrayCreate(&array, &wanted, 4));
  return driver().cuMipmappedArrayDestroy(array);
}

// A sparse array takes nothing by itself: the bytes are those of the memory that is mapped to it.
CUresult sparse_mapped(const Request& request) {
  const Driver& cuda = driver();
  CUDA_ARRAY3D_DESCRIPTOR wanted = volume(request, kWidth, CUDA_ARRAY3D_SPARSE, 1);
  wanted.Depth = 0;
  CUarray array = nullptr;
  WORKLOAD_TRY(cuda.cuArray3DCreate(&array, &wanted));
  CUmemAllocationProp memory{};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.location.id = request.device;
  memory.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuda.cuMemCreate(&handle, request.bytes, &memory, 0);
  if (result == CUDA_SUCCESS) {
    CUarrayMapInfo map{};
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = array;
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    map.subresource.sparseLevel.extentWidth = 64;
    map.subresource.sparseLevel.extentHeight = 64;
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = handle;
    map.deviceBitMask = 1u << request.device;
    result = cuda.cuMemMapArrayAsync(&map, 1, nullptr);
    const CUresult waited = cuda.cuStreamSynchronize(nullptr);
    if (result == CUDA_SUCCESS) result = waited;
    WORKLOAD_TRY(cuda.cuMemRelease(handle));
  }
  const CUresult destroyed = cuda.cuArrayDestroy(array);
  return result != CUDA_SUCCESS ? result : destroyed;
}

constexpr Way kWays[] = {
    {"cuArrayCreate_v2", Kind::kDevice, array_2d},
    {"cuArray3DCreate_v2", Kind::kDevice, array_3d},
    {"cuArray3DCreate_v2 layered", Kind::kDevice, array_layered},
    {"cuArray3DCreate_v2 with surface access", Kind::kDevice, array_surface},
    {"cuArray3DCreate_v2 cube map", Kind::kDevice, array_cube},
    {"cuMipmappedArrayCreate", Kind::kDevice, mipmapped},
    {"cuMemCreate+cuMemMapArrayAsync of a sparse array", Kind::kDevice, sparse_mapped},
};

}  // namespace

std::span<const Way> array_ways() {
  return kWays;
}

}  // namespace workloads::allocations
