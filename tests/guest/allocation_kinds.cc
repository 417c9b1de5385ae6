// Every way of taking device memory, each asked for more than the container may have (must be refused with
// CUDA_ERROR_OUT_OF_MEMORY) and for what is left (must be given), freed again, and the ledger back where it was. Binds
// the driver as a program would: linked by SONAME through dlopen, names by cuGetProcAddress with the plain export as
// fall-back. Prints one line per kind; exit status = number of kinds that misbehaved.
//
//   allocation_kinds LIMIT_MIB
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace {

void* library = nullptr;

void* symbol(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    std::exit(98);
  }
  return found;
}
#define CALL(name) (reinterpret_cast<decltype(&::name)>(symbol(#name)))

constexpr uint64_t kMiB = 1ull << 20;
uint64_t limit = 0;
int wrong = 0;

uint64_t free_bytes() {
  size_t now_free = 0, total = 0;
  CALL(cuMemGetInfo_v2)(&now_free, &total);
  if (total != limit) {
    std::printf("total is %zu, not the limit\n", total);
    ++wrong;
  }
  return now_free;
}

struct Kind {
  std::string name;
  std::function<CUresult(uint64_t)> take;  // bytes
  std::function<void()> give;
  uint64_t granule;
};

void check(const Kind& kind) {
  const uint64_t before = free_bytes();
  const CUresult too_much = kind.take(limit + kMiB);
  const uint64_t rounded = (before - kind.granule / 2) / kind.granule * kind.granule;
  if (too_much == CUDA_SUCCESS) kind.give();
  const CUresult just_over = kind.take(before + 16 * kMiB);
  if (just_over == CUDA_SUCCESS) kind.give();
  const CUresult fits = kind.take(rounded);
  const uint64_t during = free_bytes();
  if (fits == CUDA_SUCCESS) kind.give();
  const uint64_t after = free_bytes();
  const bool good = too_much == CUDA_ERROR_OUT_OF_MEMORY && just_over == CUDA_ERROR_OUT_OF_MEMORY &&
                    fits == CUDA_SUCCESS && during < before && after == before;
  if (!good) ++wrong;
  std::printf("%-34s limit+1MiB=%d left+16MiB=%d left(%llu MiB)=%d free %llu>%llu>%llu %s\n", kind.name.c_str(),
              too_much, just_over, static_cast<unsigned long long>(rounded / kMiB), fits,
              static_cast<unsigned long long>(before / kMiB), static_cast<unsigned long long>(during / kMiB),
              static_cast<unsigned long long>(after / kMiB), good ? "ok" : "WRONG");
}

CUdeviceptr address = 0;
CUarray array = nullptr;
CUmipmappedArray mipmap = nullptr;
CUmemGenericAllocationHandle handle = 0;
CUstream stream = nullptr;
CUmemoryPool pool = nullptr;
CUgraph graph = nullptr;
CUgraphExec exec = nullptr;
uint64_t mapped_bytes = 0;

void free_linear() {
  CALL(cuMemFree_v2)(address);
}
void trim(CUmemoryPool which) {
  CALL(cuStreamSynchronize)(stream);
  CALL(cuMemPoolTrimTo)(which, 0);
}
CUmemoryPool default_pool() {
  CUmemoryPool found = nullptr;
  CALL(cuDeviceGetDefaultMemPool)(&found, 0);
  return found;
}

CUresult take_array(uint64_t bytes, unsigned int depth, unsigned int flags) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  descriptor.Width = 16384;  // x 16 bytes = 256 KiB per row
  descriptor.Height = bytes / (256 * 1024) / (depth == 0 ? 1 : depth);
  descriptor.Depth = depth;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 4;
  descriptor.Flags = flags;
  return CALL(cuArray3DCreate_v2)(&array, &descriptor);
}

// Four levels, each a quarter of the one before: 85/64 of the first.
CUresult take_mipmap(uint64_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  constexpr uint64_t kWidth = 4096, kLayers = 8, kTexelBytes = 16;
  descriptor.Width = kWidth;
  descriptor.Depth = kLayers;
  descriptor.Height = bytes / 85 * 64 / (kWidth * kTexelBytes * kLayers) / 8 * 8;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 4;
  descriptor.Flags = CUDA_ARRAY3D_LAYERED;
  // What must be refused is asked for rounded up.
  if (bytes > limit) descriptor.Height += 16;
  return CALL(cuMipmappedArrayCreate)(&mipmap, &descriptor, 4);
}

CUmemAllocationProp on_card(CUmemAllocationHandleType shared_as) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = shared_as;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  return properties;
}

// Exported and imported again by the same process, mapped through the import; the first handle is released last.
CUresult take_imported(uint64_t bytes) {
  const CUmemAllocationProp properties = on_card(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUresult made = CALL(cuMemCreate)(&handle, bytes, &properties, 0);
  if (made != CUDA_SUCCESS) return made;
  int file = -1;
  CUmemGenericAllocationHandle imported = 0;
  CUresult result = CALL(cuMemExportToShareableHandle)(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) {
    result = CALL(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ::close(file);
  }
  mapped_bytes = bytes;
  if (result == CUDA_SUCCESS) result = CALL(cuMemAddressReserve)(&address, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = CALL(cuMemMap)(address, bytes, 0, imported, 0);
  CALL(cuMemRelease)(imported);
  return result;
}

void give_imported() {
  CALL(cuMemUnmap)(address, mapped_bytes);
  CALL(cuMemAddressFree)(address, mapped_bytes);
  CALL(cuMemRelease)(handle);
}

// A context, made and destroyed where no more than this is left.
CUresult crowded_context(const std::function<CUresult()>& make_and_destroy, uint64_t left_bytes) {
  CUcontext current = nullptr;
  CALL(cuCtxGetCurrent)(&current);
  CUdeviceptr ballast = 0;
  const uint64_t available = free_bytes();
  CUresult result = CALL(cuMemAlloc_v2)(&ballast, (available - left_bytes) / (2 * kMiB) * (2 * kMiB));
  if (result != CUDA_SUCCESS) return result;
  result = make_and_destroy();
  CALL(cuCtxSetCurrent)(current);
  CALL(cuMemFree_v2)(ballast);
  return result;
}

// Refused where 32 MiB are left, given where 1 GiB is, and nothing is missing afterwards.
void check_context(const char* name, const std::function<CUresult()>& make_and_destroy) {
  const uint64_t before = free_bytes();
  const CUresult crowded = crowded_context(make_and_destroy, 32 * kMiB);
  const CUresult fits = crowded_context(make_and_destroy, 1024 * kMiB);
  const uint64_t after = free_bytes();
  const bool good = crowded == CUDA_ERROR_OUT_OF_MEMORY && fits == CUDA_SUCCESS && after == before;
  if (!good) ++wrong;
  std::printf("%-34s left 32 MiB=%d left 1 GiB=%d free %llu>%llu %s\n", name, crowded, fits,
              static_cast<unsigned long long>(before / kMiB), static_cast<unsigned long long>(after / kMiB),
              good ? "ok" : "WRONG");
}

CUresult take_graph(uint64_t bytes, bool captured) {
  if (captured) {
    CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUdeviceptr inner = 0;
    const CUresult in_capture = CALL(cuMemAllocAsync)(&inner, bytes, stream);
    CALL(cuMemFreeAsync)(inner, stream);
    CALL(cuStreamEndCapture)(stream, &graph);
    if (in_capture != CUDA_SUCCESS) return in_capture;
  } else {
    CALL(cuGraphCreate)(&graph, 0);
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    params.bytesize = bytes;
    CUgraphNode node = nullptr, release = nullptr;
    CUresult result = CALL(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &params);
    if (result == CUDA_SUCCESS) result = CALL(cuGraphAddMemFreeNode)(&release, graph, &node, 1, params.dptr);
    if (result != CUDA_SUCCESS) return result;
  }
  CUresult result = CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0);
  if (result == CUDA_SUCCESS) result = CALL(cuGraphLaunch)(exec, stream);
  CALL(cuStreamSynchronize)(stream);
  if (result != CUDA_SUCCESS) {
    if (exec != nullptr) CALL(cuGraphExecDestroy)(exec);
    CALL(cuGraphDestroy)(graph);
    CALL(cuDeviceGraphMemTrim)(0);
    exec = nullptr;
  }
  return result;
}

void give_graph() {
  CALL(cuGraphExecDestroy)(exec);
  CALL(cuGraphDestroy)(graph);
  CALL(cuDeviceGraphMemTrim)(0);
  exec = nullptr;
}

std::vector<Kind> kinds() {
  const uint64_t block = 2 * kMiB;
  std::vector<Kind> all;
  all.push_back({"cuMemAlloc_v2", [](uint64_t n) { return CALL(cuMemAlloc_v2)(&address, n); }, free_linear, block});
  all.push_back({"cuMemAllocManaged global",
                 [](uint64_t n) { return CALL(cuMemAllocManaged)(&address, n, CU_MEM_ATTACH_GLOBAL); }, free_linear,
                 block});
  all.push_back({"cuMemAllocManaged host",
                 [](uint64_t n) { return CALL(cuMemAllocManaged)(&address, n, CU_MEM_ATTACH_HOST); }, free_linear,
                 block});
  for (uint64_t width : {512ull, 4096ull, 1000ull}) {
    all.push_back({"cuMemAllocPitch_v2 " + std::to_string(width),
                   [width](uint64_t n) {
                     size_t pitch = 0;
                     const uint64_t row = (width + 511) / 512 * 512;
                     return CALL(cuMemAllocPitch_v2)(&address, &pitch, width, n / row, 4);
                   },
                   free_linear, block});
  }
  all.push_back({"cuArrayCreate_v2",
                 [](uint64_t n) {
                   CUDA_ARRAY_DESCRIPTOR descriptor = {16384, n / (256 * 1024), CU_AD_FORMAT_FLOAT, 4};
                   return CALL(cuArrayCreate_v2)(&array, &descriptor);
                 },
                 [] { CALL(cuArrayDestroy)(array); }, block});
  all.push_back({"cuArray3DCreate_v2 2D", [](uint64_t n) { return take_array(n, 0, 0); },
                 [] { CALL(cuArrayDestroy)(array); }, block});
  all.push_back({"cuArray3DCreate_v2 3D", [](uint64_t n) { return take_array(n, 8, 0); },
                 [] { CALL(cuArrayDestroy)(array); }, block});
  all.push_back({"cuArray3DCreate_v2 layered", [](uint64_t n) { return take_array(n, 8, CUDA_ARRAY3D_LAYERED); },
                 [] { CALL(cuArrayDestroy)(array); }, block});
  all.push_back({"cuArray3DCreate_v2 surface", [](uint64_t n) { return take_array(n, 4, CUDA_ARRAY3D_SURFACE_LDST); },
                 [] { CALL(cuArrayDestroy)(array); }, block});
  all.push_back({"cuMipmappedArrayCreate",
                 [](uint64_t n) {
                   CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
                   descriptor.Width = 16384;
                   descriptor.Height = n / (256 * 1024);
                   descriptor.Format = CU_AD_FORMAT_FLOAT;
                   descriptor.NumChannels = 4;
                   return CALL(cuMipmappedArrayCreate)(&mipmap, &descriptor, 1);
                 },
                 [] { CALL(cuMipmappedArrayDestroy)(mipmap); }, block});
  all.push_back({"cuArray3DCreate_v2 cube map",
                 [](uint64_t n) {
                   CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
                   descriptor.Width = descriptor.Height = 1024;
                   // 6 layers of 16 MiB a cube, rounded up.
                   descriptor.Depth = (n + 96 * kMiB - 1) / (96 * kMiB) * 6;
                   descriptor.Format = CU_AD_FORMAT_FLOAT;
                   descriptor.NumChannels = 4;
                   descriptor.Flags = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED;
                   return CALL(cuArray3DCreate_v2)(&array, &descriptor);
                 },
                 [] { CALL(cuArrayDestroy)(array); }, 96 * kMiB});
  all.push_back({"cuMipmappedArrayCreate 4 levels", take_mipmap, [] { CALL(cuMipmappedArrayDestroy)(mipmap); }, block});
  all.push_back({"cuMemCreate, exported and imported", take_imported, give_imported, block});
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  all.push_back({"cuMemCreate", [properties](uint64_t n) { return CALL(cuMemCreate)(&handle, n, &properties, 0); },
                 [] { CALL(cuMemRelease)(handle); }, block});
  all.push_back({"cuMemCreate, mapped, released first",
                 [properties](uint64_t n) {
                   const CUresult made = CALL(cuMemCreate)(&handle, n / block * block, &properties, 0);
                   if (made != CUDA_SUCCESS) return made;
                   CALL(cuMemAddressReserve)(&address, n / block * block, 0, 0, 0);
                   const CUresult mapped = CALL(cuMemMap)(address, n / block * block, 0, handle, 0);
                   CALL(cuMemRelease)(handle);
                   handle = n / block * block;  // remembered for the unmap
                   return mapped;
                 },
                 [] {
                   CALL(cuMemUnmap)(address, handle);
                   CALL(cuMemAddressFree)(address, handle);
                 },
                 block});
  all.push_back({"cuMemAllocAsync", [](uint64_t n) { return CALL(cuMemAllocAsync)(&address, n, stream); },
                 [] {
                   CALL(cuMemFreeAsync)(address, stream);
                   trim(default_pool());
                 },
                 32 * kMiB});
  all.push_back({"cuMemAllocAsync, cuMemFree", [](uint64_t n) { return CALL(cuMemAllocAsync)(&address, n, stream); },
                 [] {
                   CALL(cuMemFree_v2)(address);
                   trim(default_pool());
                 },
                 32 * kMiB});
  all.push_back({"cuMemAllocAsync_ptsz", [](uint64_t n) { return CALL(cuMemAllocAsync_ptsz)(&address, n, stream); },
                 [] {
                   CALL(cuMemFreeAsync_ptsz)(address, stream);
                   trim(default_pool());
                 },
                 32 * kMiB});
  all.push_back({"cuMemAllocFromPoolAsync default",
                 [](uint64_t n) { return CALL(cuMemAllocFromPoolAsync)(&address, n, default_pool(), stream); },
                 [] {
                   CALL(cuMemFreeAsync)(address, stream);
                   trim(default_pool());
                 },
                 32 * kMiB});
  for (const bool per_thread : {false, true}) {
    all.push_back({per_thread ? "cuMemAllocFromPoolAsync_ptsz own" : "cuMemAllocFromPoolAsync own",
                   [per_thread](uint64_t n) {
                     CUmemPoolProps props = {};
                     props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
                     props.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
                     if (pool == nullptr) CALL(cuMemPoolCreate)(&pool, &props);
                     return per_thread ? CALL(cuMemAllocFromPoolAsync_ptsz)(&address, n, pool, stream)
                                       : CALL(cuMemAllocFromPoolAsync)(&address, n, pool, stream);
                   },
                   [] {
                     CALL(cuMemFreeAsync)(address, stream);
                     CALL(cuStreamSynchronize)(stream);
                     CALL(cuMemPoolDestroy)(pool);
                     pool = nullptr;
                   },
                   32 * kMiB});
  }
  all.push_back({"cuMemAllocAsync, pool replaced",
                 [](uint64_t n) {
                   CUmemPoolProps props = {};
                   props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
                   props.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
                   if (pool == nullptr) CALL(cuMemPoolCreate)(&pool, &props);
                   CALL(cuDeviceSetMemPool)(0, pool);
                   return CALL(cuMemAllocAsync)(&address, n, stream);
                 },
                 [] {
                   CALL(cuMemFreeAsync)(address, stream);
                   CALL(cuStreamSynchronize)(stream);
                   CALL(cuDeviceSetMemPool)(0, default_pool());
                   CALL(cuMemPoolDestroy)(pool);
                   pool = nullptr;
                 },
                 32 * kMiB});
  all.push_back({"graph, allocation node", [](uint64_t n) { return take_graph(n, false); }, give_graph, 32 * kMiB});
  all.push_back({"graph, captured allocation", [](uint64_t n) { return take_graph(n, true); }, give_graph, 32 * kMiB});
  all.push_back({"cuCtxSetLimit malloc heap",
                 [](uint64_t n) { return CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, n); },
                 [] { CALL(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB); }, 64 * kMiB});
  all.push_back({"cuCtxSetLimit printf buffer",
                 [](uint64_t n) { return CALL(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, n); },
                 [] { CALL(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, 1 * kMiB); }, 64 * kMiB});
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  limit = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0) * kMiB;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 97;
  }
  CUcontext context = nullptr;
  if (CALL(cuInit)(0) != CUDA_SUCCESS || CALL(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS ||
      CALL(cuStreamCreate)(&stream, 1) != CUDA_SUCCESS) {
    std::fprintf(stderr, "no context: cuInit %d\n", CALL(cuInit)(0));
    return 96;
  }
  std::vector<Kind> all = kinds();
  for (const Kind& kind : all) {
    if (argc < 3 || kind.name.find(argv[2]) != std::string::npos) check(kind);
  }
  // Further contexts, by every constructor, with and without room for one.
  CUcontext made = nullptr;
  const auto gone = [&made](CUresult result) { return result == CUDA_SUCCESS ? CALL(cuCtxDestroy_v2)(made) : result; };
  check_context("cuCtxCreate_v2", [&] { return gone(CALL(cuCtxCreate_v2)(&made, 0, 0)); });
  check_context("cuCtxCreate_v3", [&] { return gone(CALL(cuCtxCreate_v3)(&made, nullptr, 0, 0, 0)); });
  check_context("cuCtxCreate_v4", [&] { return gone(CALL(cuCtxCreate_v4)(&made, nullptr, 0, 0)); });
  check_context("cuDevicePrimaryCtxRetain", [&] {
    const CUresult result = CALL(cuDevicePrimaryCtxRetain)(&made, 0);
    return result == CUDA_SUCCESS ? CALL(cuDevicePrimaryCtxRelease_v2)(0) : result;
  });
  const CUresult stack = CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 256 * 1024);
  if (stack != CUDA_ERROR_OUT_OF_MEMORY) ++wrong;
  std::printf("%-34s %d\n", "cuCtxSetLimit stack, too large", stack);
  std::printf("%zu kinds, %d wrong\n", all.size() + 5, wrong);
  return wrong > 90 ? 90 : wrong;
}
