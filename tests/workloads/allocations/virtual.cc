// Physical memory by handle, mapped into address ranges: memory lives until its handles and its mappings are gone, and
// can be shared. Address space alone and aliases of memory are the contrasts.
#include <unistd.h>

#include "allocations/allocation.h"

namespace workloads::allocations {
namespace {

CUmemAllocationProp properties(const Request& request, CUmemLocationType where, CUmemAllocationHandleType share) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.requestedHandleTypes = share;
  result.location.type = where;
  result.location.id = where == CU_MEM_LOCATION_TYPE_DEVICE ? request.device : 0;
  return result;
}

CUmemAllocationProp on_card(const Request& request) {
  return properties(request, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_NONE);
}

CUresult create(const Request& request) {
  const CUmemAllocationProp wanted = on_card(request);
  CUmemGenericAllocationHandle handle = 0;
  WORKLOAD_TRY(driver().cuMemCreate(&handle, request.bytes, &wanted, 0));
  return driver().cuMemRelease(handle);
}

// Maps, releases the handle while mapped (the memory stays), touches and unmaps.
CUresult mapped(const Request& request, CUmemGenericAllocationHandle handle) {
  const Driver& cuda = driver();
  CUdeviceptr address = 0;
  CUresult result = cuda.cuMemAddressReserve(&address, request.bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    WORKLOAD_TRY(cuda.cuMemRelease(handle));
    return result;
  }
  result = cuda.cuMemMap(address, request.bytes, 0, handle, 0);
  WORKLOAD_TRY(cuda.cuMemRelease(handle));
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = request.device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = cuda.cuMemSetAccess(address, request.bytes, &access, 1);
    if (result == CUDA_SUCCESS) result = touch(address, request.bytes);
    WORKLOAD_TRY(cuda.cuMemUnmap(address, request.bytes));
  }
  WORKLOAD_TRY(cuda.cuMemAddressFree(address, request.bytes));
  return result;
}

CUresult create_map_release(const Request& request) {
  const CUmemAllocationProp wanted = on_card(request);
  CUmemGenericAllocationHandle handle = 0;
  WORKLOAD_TRY(driver().cuMemCreate(&handle, request.bytes, &wanted, 0));
  return mapped(request, handle);
}

// Half the bytes are created, mapped and released; while they stay mapped the other half must count on top.
CUresult released_but_mapped(const Request& request) {
  const Driver& cuda = driver();
  const uint64_t half = request.bytes / 2 / (2u << 20) * (2u << 20);
  const CUmemAllocationProp wanted = on_card(request);
  CUmemGenericAllocationHandle handle = 0;
  WORKLOAD_TRY(cuda.cuMemCreate(&handle, half, &wanted, 0));
  CUdeviceptr address = 0;
  CUresult result = cuda.cuMemAddressReserve(&address, half, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = cuda.cuMemMap(address, half, 0, handle, 0);
  WORKLOAD_TRY(cuda.cuMemRelease(handle));
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr other = 0;
  result = cuda.cuMemAlloc(&other, request.bytes - half);
  if (result == CUDA_SUCCESS) WORKLOAD_TRY(cuda.cuMemFree(other));
  WORKLOAD_TRY(cuda.cuMemUnmap(address, half));
  WORKLOAD_TRY(cuda.cuMemAddressFree(address, half));
  return result;
}

CUresult retained(const Request& request) {
  const Driver& cuda = driver();
  const CUmemAllocationProp wanted = on_card(request);
  CUmemGenericAllocationHandle handle = 0;
  WORKLOAD_TRY(cuda.cuMemCreate(&handle, request.bytes, &wanted, 0));
  CUdeviceptr address = 0;
  WORKLOAD_TRY(cuda.cuMemAddressReserve(&address, request.bytes, 0, 0, 0));
  WORKLOAD_TRY(cuda.cuMemMap(address, request.bytes, 0, handle, 0));
  CUmemGenericAllocationHandle again = 0;
  const CUresult result =
      cuda.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
  if (result == CUDA_SUCCESS) WORKLOAD_TRY(cuda.cuMemRelease(again));
  WORKLOAD_TRY(cuda.cuMemRelease(handle));
  WORKLOAD_TRY(cuda.cuMemUnmap(address, request.bytes));
  WORKLOAD_TRY(cuda.cuMemAddressFree(address, request.bytes));
  return result;
}

CUresult shared(const Request& request) {
  const Driver& cuda = driver();
  const CUmemAllocationProp wanted =
      properties(request, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemGenericAllocationHandle handle = 0;
  WORKLOAD_TRY(cuda.cuMemCreate(&handle, request.bytes, &wanted, 0));
  int fd = -1;
  CUresult result = cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  CUmemGenericAllocationHandle imported = 0;
  if (result == CUDA_SUCCESS) {
    result = cuda.cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
  }
  WORKLOAD_TRY(cuda.cuMemRelease(handle));
  if (result != CUDA_SUCCESS) return result;
  return mapped(request, imported);
}

CUresult create_host(const Request& request) {
  const CUmemAllocationProp wanted = properties(request, CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_HANDLE_TYPE_NONE);
  CUmemGenericAllocationHandle handle = 0;
  constexpr uint64_t kMostHostBytes = 64u << 20;
  const uint64_t bytes = request.bytes < kMostHostBytes ? request.bytes : kMostHostBytes;
  WORKLOAD_TRY(driver().cuMemCreate(&handle, bytes, &wanted, 0));
  return driver().cuMemRelease(handle);
}

CUresult reserve_address(const Request& request) {
  CUdeviceptr address = 0;
  WORKLOAD_TRY(driver().cuMemAddressReserve(&address, request.bytes, 0, 0, 0));
  return driver().cuMemAddressFree(address, request.bytes);
}

constexpr Way kWays[] = {
    {"cuMemCreate", Kind::kDevice, create},
    {"cuMemCreate+cuMemMap+cuMemRelease", Kind::kDevice, create_map_release},
    {"cuMemCreate released while mapped, then cuMemAlloc_v2", Kind::kDevice, released_but_mapped},
    {"cuMemCreate+cuMemRetainAllocationHandle", Kind::kDevice, retained},
    {"cuMemCreate+cuMemExportToShareableHandle+cuMemImportFromShareableHandle", Kind::kDevice, shared},
    {"cuMemCreate on HOST_NUMA", Kind::kHost, create_host},
    {"cuMemAddressReserve", Kind::kAddress, reserve_address},
};

}  // namespace

std::span<const Way> virtual_ways() {
  return kWays;
}

}  // namespace workloads::allocations
