// Memory beyond plain allocation: what each kind costs the card, when it is given back, and that its bytes are real.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "sim/test_card.h"

namespace sluice::sim {
namespace {

constexpr size_t kMib = 1 << 20;

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_CUDA(sim_cuMemGetInfo_v2(&free, &total));
  return free;
}

cuuint64_t pool_figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  EXPECT_CUDA(sim_cuMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

cuuint64_t graph_figure(CUgraphMem_attribute attribute) {
  cuuint64_t value = 0;
  EXPECT_CUDA(sim_cuDeviceGetGraphMemAttribute(0, attribute, &value));
  return value;
}

CUmemAllocationProp device_memory(CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = types;
  return properties;
}

void allow(CUdeviceptr address, size_t bytes) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_CUDA(sim_cuMemSetAccess(address, bytes, &access, 1));
}

class SimMemory : public testing::Test {
 protected:
  void run(std::function<void(Program&)> body) {
    FibreHost host(free_costs(), 3);
    Process process(host, cards_.folder(), 42, true, "program");
    host.start(process, [&] {
      Program program;
      program.begin();
      body(program);
    });
    host.run();
    EXPECT_TRUE(host.all_ended());
  }
  TestCards cards_;
};

TEST_F(SimMemory, PoolsKeepWhatIsFreedUntilTheyAreSynchronisedOrTrimmed) {
  run([](Program& p) {
    CUmemoryPool pool = nullptr;
    ASSERT_CUDA(sim_cuDeviceGetDefaultMemPool(&pool, 0));
    const size_t before = free_bytes();
    CUdeviceptr a = 0;
    ASSERT_CUDA(sim_cuMemAllocAsync(&a, 1000, p.stream));
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * kMib);
    EXPECT_EQ(before - free_bytes(), 32 * kMib);
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024U);
    ASSERT_CUDA(sim_cuMemFreeAsync(a, p.stream));
    CUdeviceptr b = 0;
    ASSERT_CUDA(sim_cuMemAllocAsync(&b, 1000, p.stream));
    EXPECT_EQ(b, a) << "the same stream gets its piece back";
    ASSERT_CUDA(sim_cuMemFreeAsync(b, p.stream));
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * kMib);
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0U);
    EXPECT_EQ(free_bytes(), before);
    cuuint64_t keep = UINT64_MAX;
    ASSERT_CUDA(sim_cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    ASSERT_CUDA(sim_cuMemAllocAsync(&a, 100 * kMib, p.stream));
    ASSERT_CUDA(sim_cuMemFreeAsync(a, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 128 * kMib);
    ASSERT_CUDA(sim_cuMemPoolTrimTo(pool, 0));
    EXPECT_EQ(free_bytes(), before);
    EXPECT_EQ(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 128 * kMib);
  });
}

TEST_F(SimMemory, APieceFreedInStreamOrderIsNotGivenToAnotherStreamTooEarly) {
  run([](Program& p) {
    CUstream other = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CUdeviceptr a = 0;
    CUdeviceptr b = 0;
    ASSERT_CUDA(sim_cuMemAllocAsync(&a, 24 * kMib, p.stream));
    ASSERT_CUDA(p.launch("long", p.stream));
    ASSERT_CUDA(sim_cuMemFreeAsync(a, p.stream));
    ASSERT_CUDA(sim_cuMemAllocAsync(&b, 24 * kMib, other));
    EXPECT_NE(a, b) << "the kernel before the free is still running";
    ASSERT_CUDA(sim_cuCtxSynchronize());
    EXPECT_EQ(sim_cuMemFreeAsync(a, p.stream), CUDA_ERROR_INVALID_VALUE) << "freed twice";
  });
}

TEST_F(SimMemory, AFullCardRefusesPoolsButTheirIdleMemoryCounts) {
  run([](Program& p) {
    CUmemoryPool pool = nullptr;
    ASSERT_CUDA(sim_cuDeviceGetDefaultMemPool(&pool, 0));
    cuuint64_t keep = UINT64_MAX;
    ASSERT_CUDA(sim_cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    const size_t most = free_bytes();
    CUdeviceptr a = 0;
    CUdeviceptr b = 0;
    ASSERT_CUDA(sim_cuMemAllocAsync(&a, most - 40 * kMib, p.stream));
    EXPECT_EQ(sim_cuMemAllocAsync(&b, 64 * kMib, p.stream), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CUDA(sim_cuMemFreeAsync(a, p.stream));
    ASSERT_CUDA(sim_cuMemAllocAsync(&b, most, p.stream)) << "idle chunks give way to a bigger one";
    ASSERT_CUDA(sim_cuMemFree_v2(b));
  });
}

TEST_F(SimMemory, PhysicalMemoryLivesWhileHandlesOrMappingsDo) {
  run([](Program&) {
    const size_t before = free_bytes();
    const CUmemAllocationProp properties = device_memory();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    EXPECT_EQ(sim_cuMemCreate(&handle, 3 * kMib, &properties, 0), CUDA_ERROR_INVALID_VALUE) << "odd size";
    ASSERT_CUDA(sim_cuMemCreate(&handle, 8 * kMib, &properties, 0));
    EXPECT_EQ(before - free_bytes(), 8 * kMib);
    ASSERT_CUDA(sim_cuMemAddressReserve(&at, 16 * kMib, 0, 0, 0));
    ASSERT_CUDA(sim_cuMemMap(at, 8 * kMib, 0, handle, 0));
    ASSERT_CUDA(sim_cuMemMap(at + 8 * kMib, 8 * kMib, 0, handle, 0)) << "twice the same memory";
    char byte = 0;
    EXPECT_NE(sim_cuMemcpyDtoH_v2(&byte, at, 1), CUDA_SUCCESS) << "no access was given";
    allow(at, 16 * kMib);
    ASSERT_CUDA(sim_cuMemsetD8_v2(at + 5, 0x77, 1));
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(&byte, at + 8 * kMib + 5, 1));
    EXPECT_EQ(byte, 0x77) << "both addresses are the same byte";
    ASSERT_CUDA(sim_cuMemRelease(handle));
    EXPECT_EQ(sim_cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(before - free_bytes(), 8 * kMib) << "mapped";
    CUmemGenericAllocationHandle again = 0;
    ASSERT_CUDA(sim_cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + 9 * kMib)));
    ASSERT_CUDA(sim_cuMemUnmap(at, 16 * kMib));
    EXPECT_EQ(before - free_bytes(), 8 * kMib) << "the retained handle";
    ASSERT_CUDA(sim_cuMemRelease(again));
    EXPECT_EQ(free_bytes(), before);
    EXPECT_EQ(sim_cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CUDA(sim_cuMemAddressFree(at, 16 * kMib));
    EXPECT_EQ(sim_cuMemAddressFree(at, 16 * kMib), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SimMemory, HostLocationsCostTheCardNothing) {
  run([](Program&) {
    const size_t before = free_bytes();
    CUmemAllocationProp properties = device_memory();
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_CUDA(sim_cuMemCreate(&handle, 64 * kMib, &properties, 0));
    EXPECT_EQ(free_bytes(), before);
    ASSERT_CUDA(sim_cuMemRelease(handle));
  });
}

TEST_F(SimMemory, ArraysAndMipmapsTakeWhatTheirShapeTakes) {
  run([](Program&) {
    const size_t before = free_bytes();
    CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUarray array = nullptr;
    ASSERT_CUDA(sim_cuArrayCreate_v2(&array, &shape));
    EXPECT_EQ(before - free_bytes(), 16 * kMib);
    char line[1024];
    std::memset(line, 0x42, sizeof line);
    char back[1024] = {};
    ASSERT_CUDA(sim_cuMemcpyHtoA_v2(array, 16384, line, sizeof line));
    ASSERT_CUDA(sim_cuMemcpyAtoH_v2(back, array, 16384, sizeof back));
    EXPECT_EQ(std::memcmp(line, back, sizeof line), 0);
    ASSERT_CUDA(sim_cuArrayDestroy(array));
    EXPECT_EQ(sim_cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(free_bytes(), before);
    CUDA_ARRAY3D_DESCRIPTOR deep{1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray mipmap = nullptr;
    ASSERT_CUDA(sim_cuMipmappedArrayCreate(&mipmap, &deep, 11));
    EXPECT_EQ(before - free_bytes(), 6 * kMib) << "4 MiB and a third, in blocks of 2 MiB";
    CUarray level = nullptr;
    ASSERT_CUDA(sim_cuMipmappedArrayGetLevel(&level, mipmap, 3));
    CUDA_ARRAY_DESCRIPTOR of_level{};
    ASSERT_CUDA(sim_cuArrayGetDescriptor_v2(&of_level, level));
    EXPECT_EQ(of_level.Width, 128U);
    EXPECT_EQ(sim_cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE) << "belongs to the mipmap";
    ASSERT_CUDA(sim_cuMipmappedArrayDestroy(mipmap));
    deep.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    ASSERT_CUDA(sim_cuArray3DCreate_v2(&array, &deep));
    EXPECT_EQ(free_bytes(), before) << "deferred arrays own nothing";
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
    ASSERT_CUDA(sim_cuArrayGetMemoryRequirements(&needs, array, 0));
    EXPECT_EQ(needs.size, 4 * kMib);
    CUDA_ARRAY3D_DESCRIPTOR huge{16384, 16384, 64, CU_AD_FORMAT_FLOAT, 4, 0};
    EXPECT_EQ(sim_cuArray3DCreate_v2(&array, &huge), CUDA_ERROR_OUT_OF_MEMORY);
  });
}

TEST_F(SimMemory, ManagedMemoryIsTheHostsToo) {
  run([](Program& p) {
    const size_t before = free_bytes();
    CUdeviceptr at = 0;
    ASSERT_CUDA(sim_cuMemAllocManaged(&at, 8 * kMib, CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(before - free_bytes(), 8 * kMib);
    ASSERT_CUDA(sim_cuMemsetD32_v2(at, 0x01020304, 1024));
    ASSERT_CUDA(sim_cuCtxSynchronize());
    EXPECT_EQ(*reinterpret_cast<uint32_t*>(at + 4), 0x01020304U);
    ASSERT_CUDA(sim_cuMemAdvise(at, kMib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
    int preferred = 99;
    ASSERT_CUDA(
        sim_cuMemRangeGetAttribute(&preferred, sizeof preferred, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, kMib));
    EXPECT_EQ(preferred, 0);
    ASSERT_CUDA(sim_cuMemPrefetchAsync(at, kMib, 0, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    CUdeviceptr beyond = 0;
    ASSERT_CUDA(sim_cuMemAllocManaged(&beyond, before + kMib, CU_MEM_ATTACH_GLOBAL)) << "may exceed the card";
    ASSERT_CUDA(sim_cuMemFree_v2(beyond));
    ASSERT_CUDA(sim_cuMemFree_v2(at));
    EXPECT_EQ(free_bytes(), before);
  });
}

TEST_F(SimMemory, GraphsAllocateAtLaunchAndKeepUntilTrimmed) {
  run([](Program& p) {
    const size_t before = free_bytes();
    CUgraph graph = nullptr;
    CUgraphNode alloc = nullptr;
    CUgraphNode release = nullptr;
    ASSERT_CUDA(sim_cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = 16 * kMib;
    ASSERT_CUDA(sim_cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params));
    ASSERT_NE(params.dptr, 0U);
    EXPECT_EQ(free_bytes(), before);
    ASSERT_CUDA(sim_cuGraphAddMemFreeNode(&release, graph, &alloc, 1, params.dptr));
    CUgraphExec exec = nullptr;
    ASSERT_CUDA(sim_cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_EQ(graph_figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
    EXPECT_EQ(graph_figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 16 * kMib);
    EXPECT_EQ(before - free_bytes(), 16 * kMib);
    ASSERT_CUDA(sim_cuDeviceGraphMemTrim(0));
    EXPECT_EQ(free_bytes(), before);
  });
}

TEST_F(SimMemory, CapturedAllocationsBecomeNodes) {
  run([](Program& p) {
    const size_t before = free_bytes();
    CUdeviceptr at = 0;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_CUDA(sim_cuStreamBeginCapture_v2(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CUDA(sim_cuMemAllocAsync(&at, 4 * kMib, p.stream));
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuStreamEndCapture(p.stream, &graph));
    EXPECT_EQ(free_bytes(), before) << "capturing allocates nothing";
    size_t nodes = 0;
    ASSERT_CUDA(sim_cuGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 2U);
    ASSERT_CUDA(sim_cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_EQ(before - free_bytes(), 4 * kMib);
    ASSERT_CUDA(sim_cuMemsetD8_v2(at, 1, 4 * kMib)) << "the memory is the program's until it frees it";
    EXPECT_EQ(sim_cuGraphLaunch(exec, p.stream), CUDA_ERROR_INVALID_VALUE) << "still allocated";
    ASSERT_CUDA(sim_cuMemFreeAsync(at, p.stream));
    ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuMemFree_v2(at));
  });
}

TEST_F(SimMemory, HandlesCrossProcessesAndKeepMemoryAlive) {
  FibreHost host(free_costs(), 3);
  auto exporter = std::make_unique<Process>(host, cards_.folder(), 1, true, "exporter");
  auto importer = std::make_unique<Process>(host, cards_.folder(), 2, true, "importer");
  CUipcMemHandle handle{};
  int fd = -1;
  uint64_t used_by_both = 0;
  host.start(*exporter, [&] {
    Program program;
    program.begin();
    CUdeviceptr at = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&at, 8 * kMib));
    ASSERT_CUDA(sim_cuMemsetD8_v2(at, 0x33, 8 * kMib));
    ASSERT_CUDA(sim_cuCtxSynchronize());
    ASSERT_CUDA(sim_cuIpcGetMemHandle(&handle, at));
    CUdeviceptr own = 0;
    EXPECT_EQ(sim_cuIpcOpenMemHandle_v2(&own, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
    const CUmemAllocationProp properties = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle memory = 0;
    ASSERT_CUDA(sim_cuMemCreate(&memory, 4 * kMib, &properties, 0));
    ASSERT_CUDA(sim_cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  });
  host.run();
  host.start(*importer, [&] {
    Program program;
    program.begin();
    used_by_both = cards_.open()->used_bytes();
    CUdeviceptr at = 0;
    ASSERT_CUDA(sim_cuIpcOpenMemHandle_v2(&at, handle, 1));
    unsigned char byte = 0;
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(&byte, at + 5 * kMib, 1));
    EXPECT_EQ(byte, 0x33);
    CUmemGenericAllocationHandle memory = 0;
    ASSERT_CUDA(sim_cuMemImportFromShareableHandle(&memory, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_EQ(cards_.open()->used_bytes(), used_by_both) << "imports cost nothing new";
    ASSERT_CUDA(sim_cuIpcCloseMemHandle(at));
    EXPECT_EQ(sim_cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
    CUipcMemHandle other = handle;
    other.reserved[20] = static_cast<char>(other.reserved[20] + 1);
    EXPECT_NE(sim_cuIpcOpenMemHandle_v2(&at, other, 1), CUDA_SUCCESS) << "another card's handle";
  });
  host.run();
  // The owner ends: who has its memory open keeps it, until he lets go or ends himself.
  CUdeviceptr kept = 0;
  host.start(*importer, [&] {
    Program program;
    program.begin();
    ASSERT_CUDA(sim_cuIpcOpenMemHandle_v2(&kept, handle, 1));
  });
  host.run();
  exporter.reset();
  host.start(*importer, [&] {
    Program program;
    program.begin();
    unsigned char byte = 0;
    EXPECT_EQ(sim_cuMemcpyDtoH_v2(&byte, kept + 5 * kMib, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 0x33);
    const uint64_t before = cards_.open()->used_bytes();
    ASSERT_CUDA(sim_cuIpcCloseMemHandle(kept));
    EXPECT_EQ(before - cards_.open()->used_bytes(), 8 * kMib);
  });
  host.run();
  EXPECT_TRUE(host.all_ended());
  EXPECT_GE(cards_.open()->used_bytes(), 4 * kMib) << "the handle is still open";
  importer.reset();
  EXPECT_EQ(cards_.open()->used_bytes(), 0u);
  close(fd);
}

TEST_F(SimMemory, LibrariesLoadWhereTheyAreUsed) {
  run([](Program& p) {
    CUlibrary library = nullptr;
    ASSERT_CUDA(sim_cuLibraryLoadData(&library, kTestImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr;
    EXPECT_EQ(sim_cuLibraryGetKernel(&kernel, library, "nothing"), CUDA_ERROR_NOT_FOUND);
    ASSERT_CUDA(sim_cuLibraryGetKernel(&kernel, library, "short"));
    CUkernel same = nullptr;
    ASSERT_CUDA(sim_cuLibraryGetKernel(&same, library, "short"));
    EXPECT_EQ(kernel, same);
    CUfunction function = nullptr;
    ASSERT_CUDA(sim_cuKernelGetFunction(&function, kernel));
    uint64_t argument = 0;
    void* parameters[] = {&argument};
    ASSERT_CUDA(
        sim_cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 8, 1, 1, 64, 1, 1, 0, p.stream, parameters, nullptr))
        << "a kernel stands for its function";
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    unsigned count = 0;
    ASSERT_CUDA(sim_cuLibraryGetKernelCount(&count, library));
    EXPECT_EQ(count, 9U);
    ASSERT_CUDA(sim_cuLibraryUnload(library));
    EXPECT_EQ(sim_cuLibraryGetKernelCount(&count, library), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(SimMemory, LinkingPutsPiecesTogether) {
  run([](Program&) {
    CUlinkState link = nullptr;
    ASSERT_CUDA(sim_cuLinkCreate_v2(0, nullptr, nullptr, &link));
    void* image = nullptr;
    size_t size = 0;
    EXPECT_EQ(sim_cuLinkComplete(link, &image, &size), CUDA_ERROR_INVALID_IMAGE);
    char first[] = ".version 7.0\n.visible .entry one(.param .u64 a) { ret; }";
    char second[] = ".visible .entry two(.param .u64 a) { ret; }";
    ASSERT_CUDA(sim_cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, first, sizeof first, "a", 0, nullptr, nullptr));
    ASSERT_CUDA(sim_cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, second, sizeof second, "b", 0, nullptr, nullptr));
    ASSERT_CUDA(sim_cuLinkComplete(link, &image, &size));
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    ASSERT_CUDA(sim_cuModuleLoadData(&module, image));
    ASSERT_CUDA(sim_cuModuleGetFunction(&function, module, "one"));
    ASSERT_CUDA(sim_cuModuleGetFunction(&function, module, "two"));
    ASSERT_CUDA(sim_cuLinkDestroy(link));
    EXPECT_EQ(sim_cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(SimMemory, AContextTakesItsMemoryWithIt) {
  run([this](Program& p) {
    const uint64_t before = cards_.open()->used_bytes();
    CUcontext second = nullptr;
    ASSERT_CUDA(sim_cuCtxCreate_v2(&second, 0, 0));
    CUdeviceptr managed = 0;
    ASSERT_CUDA(sim_cuMemAllocManaged(&managed, 8 * kMib, CU_MEM_ATTACH_GLOBAL));
    CUDA_ARRAY_DESCRIPTOR shape{1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUarray array = nullptr;
    ASSERT_CUDA(sim_cuArrayCreate_v2(&array, &shape));
    EXPECT_GT(cards_.open()->used_bytes(), before + 24 * kMib);
    ASSERT_CUDA(sim_cuCtxDestroy_v2(second));
    EXPECT_EQ(cards_.open()->used_bytes(), before);
    ASSERT_CUDA(sim_cuCtxSetCurrent(p.context));
    EXPECT_EQ(sim_cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  });
}

}  // namespace
}  // namespace sluice::sim
