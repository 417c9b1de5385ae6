// The driver interface on the card: contexts, memory, captures, old and new generations, look-up of names.
#include <gtest/gtest.h>

#include <csetjmp>
#include <csignal>
#include <cstring>

#include "sim/test_card.h"

namespace sluice::sim {
namespace {

class SimApi : public testing::Test {
 protected:
  void run(std::function<void(Program&)> body, const std::string& profile = "A100-40GB") {
    TestCards cards(profile);
    cards_ = &cards;
    FibreHost host(free_costs(), 3);
    Process process(host, cards.folder(), 42, true, "program");
    host.start(process, [&] {
      Program program;
      program.begin();
      body(program);
    });
    host.run();
    EXPECT_TRUE(host.all_ended());
  }
  TestCards* cards_ = nullptr;
};

TEST_F(SimApi, NothingWorksBeforeInitialisation) {
  TestCards cards;
  FibreHost host(free_costs(), 3);
  Process process(host, cards.folder(), 42, true, "program");
  host.start(process, [] {
    int count = 0;
    EXPECT_EQ(sim_cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(sim_cuInit(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CUDA(sim_cuInit(0));
    EXPECT_CUDA(sim_cuDeviceGetCount(&count));
    EXPECT_EQ(count, 1);
    CUdeviceptr p = 0;
    EXPECT_EQ(sim_cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
  });
  host.run();
  Process lonely(host, cards.folder() + "/none", 43, true, "program");
  host.start(lonely, [] { EXPECT_EQ(sim_cuInit(0), CUDA_ERROR_NO_DEVICE); });
  host.run();
}

TEST_F(SimApi, MemoryIsRealRunsOutAndComesBack) {
  run([](Program&) {
    size_t free_before = 0, total = 0, free_after = 0;
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&free_before, &total));
    EXPECT_EQ(total, size_t{40326} << 20);
    CUdeviceptr big = 0, more = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&big, free_before));
    EXPECT_EQ(sim_cuMemAlloc_v2(&more, 4 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    CUcontext second = nullptr;
    EXPECT_EQ(sim_cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CUDA(sim_cuMemFree_v2(big));
    EXPECT_EQ(sim_cuMemFree_v2(big), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&free_after, &total));
    EXPECT_EQ(free_after, free_before);
    // Small allocations share a block of 2 MiB.
    std::vector<CUdeviceptr> small(1000);
    for (auto& p : small) ASSERT_CUDA(sim_cuMemAlloc_v2(&p, 1000));
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&free_after, &total));
    EXPECT_EQ(free_after, free_before - (2 << 20));
    for (auto p : small) ASSERT_CUDA(sim_cuMemFree_v2(p));
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&free_after, &total));
    EXPECT_EQ(free_after, free_before);
  });
}

sigjmp_buf g_back;
TEST_F(SimApi, DeviceAddressesFaultOnTheHost) {
  run([](Program&) {
    CUdeviceptr p = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&p, 4096));
    struct sigaction action{}, before{};
    action.sa_handler = [](int) { siglongjmp(g_back, 1); };
    sigaction(SIGSEGV, &action, &before);
    bool faulted = true;
    if (sigsetjmp(g_back, 1) == 0) {
      faulted = *reinterpret_cast<volatile char*>(p) == 77 && false;
    }
    sigaction(SIGSEGV, &before, nullptr);
    EXPECT_TRUE(faulted);
  });
}

TEST_F(SimApi, CopiesAndMemsetsMoveBytes) {
  run([](Program& p) {
    std::vector<uint32_t> host(1 << 20), back(1 << 20);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint32_t>(i * 2654435761u);
    CUdeviceptr a = 0, b = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&a, host.size() * 4));
    ASSERT_CUDA(sim_cuMemAlloc_v2(&b, host.size() * 4));
    ASSERT_CUDA(sim_cuMemcpyHtoD_v2(a, host.data(), host.size() * 4));
    ASSERT_CUDA(sim_cuMemcpyDtoDAsync_v2(b, a, host.size() * 4, p.stream));
    ASSERT_CUDA(sim_cuMemsetD32Async(b, 0xabcdef01, 16, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(back.data(), b, host.size() * 4));
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(back[i], 0xabcdef01);
    EXPECT_EQ(0, std::memcmp(back.data() + 16, host.data() + 16, (host.size() - 16) * 4));
    // A rectangle of 3 rows of 8 bytes out of rows of 64 into rows of 8.
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = a;
    c.srcPitch = 64;
    c.srcXInBytes = 8;
    c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    uint32_t rows[6] = {};
    c.dstHost = rows;
    c.dstPitch = 8;
    c.WidthInBytes = 8;
    c.Height = 3;
    ASSERT_CUDA(sim_cuMemcpy2D_v2(&c));
    for (size_t y = 0; y < 3; ++y) {
      EXPECT_EQ(rows[y * 2], host[(y + 1) * 16 + 2]);
      EXPECT_EQ(rows[y * 2 + 1], host[(y + 1) * 16 + 3]);
    }
    EXPECT_EQ(sim_cuMemcpyHtoD_v2(a, host.data(), size_t{1} << 30), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SimApi, BuiltInKernelsCompute) {
  run([](Program& p) {
    constexpr uint64_t kCount = 1000;
    std::vector<float> x(kCount), y(kCount), out(kCount);
    for (size_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(i), y[i] = 1;
    CUdeviceptr dx = 0, dy = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&dx, kCount * 4));
    ASSERT_CUDA(sim_cuMemAlloc_v2(&dy, kCount * 4));
    ASSERT_CUDA(sim_cuMemcpyHtoD_v2(dx, x.data(), kCount * 4));
    ASSERT_CUDA(sim_cuMemcpyHtoD_v2(dy, y.data(), kCount * 4));
    float a = 2.5;
    uint64_t n = kCount;
    void* params[] = {&dy, &dx, &a, &n};
    ASSERT_CUDA(sim_cuLaunchKernel(p.function("sluice_saxpy_f32"), 4, 1, 1, 256, 1, 1, 0, p.stream, params, nullptr));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(out.data(), dy, kCount * 4));
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], 2.5f * static_cast<float>(i) + 1);
  });
}

TEST_F(SimApi, HandlesAreReusedAndStrangersRefused) {
  run([](Program& p) {
    CUstream first = nullptr, second = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&first, 0));
    ASSERT_CUDA(sim_cuStreamDestroy_v2(first));
    EXPECT_EQ(sim_cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CUDA(sim_cuStreamCreate(&second, 0));
    EXPECT_EQ(first, second);
    int on_stack = 0;
    EXPECT_EQ(sim_cuStreamQuery(reinterpret_cast<CUstream>(&on_stack)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sim_cuEventQuery(reinterpret_cast<CUevent>(p.stream)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sim_cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(SimApi, PrimaryContextsAreCountedAndReset) {
  run([](Program&) {
    CUcontext a = nullptr, b = nullptr;
    unsigned flags = 0;
    int active = 0;
    ASSERT_CUDA(sim_cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 0);
    ASSERT_CUDA(sim_cuDevicePrimaryCtxRetain(&a, 0));
    ASSERT_CUDA(sim_cuDevicePrimaryCtxRetain(&b, 0));
    EXPECT_EQ(a, b);
    EXPECT_EQ(sim_cuCtxDestroy_v2(a), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CUDA(sim_cuDevicePrimaryCtxRelease_v2(0));
    ASSERT_CUDA(sim_cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 1);
    ASSERT_CUDA(sim_cuCtxPushCurrent_v2(a));
    ASSERT_CUDA(sim_cuDevicePrimaryCtxReset_v2(0));
    CUdeviceptr p = 0;
    EXPECT_EQ(sim_cuMemAlloc_v2(&p, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_CUDA(sim_cuCtxPopCurrent_v2(nullptr));
    ASSERT_CUDA(sim_cuDevicePrimaryCtxRelease_v2(0));
    EXPECT_EQ(sim_cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST_F(SimApi, CapturesForbidWhatTheVendorForbids) {
  run([](Program& p) {
    CUgraph graph = nullptr;
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    ASSERT_CUDA(sim_cuEventCreate(&event, 0));
    // Global mode: an allocation is refused and ends the capture.
    ASSERT_CUDA(sim_cuStreamBeginCapture_v2(p.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(sim_cuMemAlloc_v2(&memory, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUstreamCaptureStatus status{};
    ASSERT_CUDA(sim_cuStreamIsCapturing(p.stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(p.launch("short", p.stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(sim_cuStreamEndCapture(p.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // A relaxed thread may.
    ASSERT_CUDA(sim_cuStreamBeginCapture_v2(p.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASSERT_CUDA(sim_cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_CUDA(sim_cuMemAlloc_v2(&memory, 1));
    ASSERT_CUDA(sim_cuThreadExchangeStreamCaptureMode(&mode));
    // Events recorded in a capture cannot be queried; other streams join through them and have to come back.
    CUstream other = nullptr;
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuEventRecord(event, p.stream));
    EXPECT_EQ(sim_cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_CUDA(sim_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CUDA(sim_cuStreamWaitEvent(other, event, 0));
    ASSERT_CUDA(p.launch("short", other));
    EXPECT_EQ(sim_cuStreamEndCapture(p.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // The legacy stream would have to wait for a blocking stream that captures.
    CUstream blocking = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&blocking, 0));
    ASSERT_CUDA(sim_cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(p.launch("short", nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(sim_cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(sim_cuStreamBeginCapture_v2(nullptr, mode), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  });
}

TEST_F(SimApi, GraphsOfBothGenerations) {
  run([](Program& p) {
    CUgraph graph = nullptr;
    CUgraphNode fill = nullptr, kernel = nullptr;
    CUgraphExec exec = nullptr;
    CUdeviceptr x = 0, y = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&x, 4096));
    ASSERT_CUDA(sim_cuMemAlloc_v2(&y, 4096));
    ASSERT_CUDA(sim_cuMemsetD32_v2(y, 0, 1024));
    ASSERT_CUDA(sim_cuGraphCreate(&graph, 0));
    float one = 1;
    unsigned bits = 0;
    std::memcpy(&bits, &one, 4);
    const CUDA_MEMSET_NODE_PARAMS set{x, 0, bits, 4, 1024, 1};
    ASSERT_CUDA(sim_cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &set, p.context));
    float a = 3;
    uint64_t n = 1024;
    void* params[] = {&y, &x, &a, &n};
    CUDA_KERNEL_NODE_PARAMS_v1 k{p.function("sluice_saxpy_f32"), 4, 1, 1, 256, 1, 1, 0, params, nullptr};
    ASSERT_CUDA(sim_cuGraphAddKernelNode(&kernel, graph, &fill, 1, &k));
    ASSERT_CUDA(sim_cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    a = 999;  // values were taken when the node was made
    ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    float out = 0;
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(&out, y, 4));
    EXPECT_EQ(out, 3);
    a = 4;
    ASSERT_CUDA(sim_cuGraphExecKernelNodeSetParams(exec, kernel, &k));
    ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(&out, y, 4));
    EXPECT_EQ(out, 7);
    CUDA_KERNEL_NODE_PARAMS read{};
    ASSERT_CUDA(sim_cuGraphKernelNodeGetParams_v2(kernel, &read));
    EXPECT_EQ(read.gridDimX, 4u);
    float stored = 0;
    std::memcpy(&stored, read.kernelParams[2], 4);
    EXPECT_EQ(stored, 3);
    size_t count = 0;
    ASSERT_CUDA(sim_cuGraphGetNodes(graph, nullptr, &count));
    EXPECT_EQ(count, 2u);
    ASSERT_CUDA(sim_cuGraphExecDestroy(exec));
    ASSERT_CUDA(sim_cuGraphDestroy(graph));
  });
}

TEST_F(SimApi, CooperativeLaunchesHaveToFit) {
  run([](Program& p) {
    uint64_t argument = 0;
    void* params[] = {&argument};
    EXPECT_EQ(sim_cuLaunchCooperativeKernel(p.function("short"), 100000, 1, 1, 256, 1, 1, 0, p.stream, params),
              CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    EXPECT_CUDA(sim_cuLaunchCooperativeKernel(p.function("short"), 108, 1, 1, 256, 1, 1, 0, p.stream, params));
    EXPECT_EQ(sim_cuLaunchKernel(p.function("short"), 1, 1, 1, 2048, 1, 1, 0, p.stream, params, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(sim_cuLaunchKernel(p.function("short"), 1, 1, 1, 256, 1, 1, 200000, p.stream, params, nullptr),
              CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SimApi, AFaultSticksToItsContext) {
  run([this](Program& p) {
    CUcontext second = nullptr;
    ASSERT_CUDA(p.launch("long", p.stream));
    {
      auto card = cards_->open();
      Card::Guard guard(*card);
      fail_context(*card, card->process(1).first_context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    EXPECT_EQ(sim_cuStreamSynchronize(p.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr memory = 0;
    EXPECT_EQ(sim_cuMemAlloc_v2(&memory, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    ASSERT_CUDA(sim_cuCtxCreate_v2(&second, 0, 0));
    EXPECT_CUDA(sim_cuMemAlloc_v2(&memory, 1));
  });
}

TEST_F(SimApi, NamesResolveByVersionAndFlag) {
  run([](Program&) {
    void *by_name = nullptr, *per_thread = nullptr, *old = nullptr;
    CUdriverProcAddressQueryResult status{};
    ASSERT_CUDA(sim_cuGetProcAddress_v2("cuMemAlloc", &by_name, 12000, 0, &status));
    EXPECT_EQ(by_name, sim_symbol("cuMemAlloc_v2"));
    ASSERT_CUDA(sim_cuGetProcAddress("cuMemAlloc", &old, 2000, 0));
    EXPECT_EQ(old, sim_symbol("cuMemAlloc"));
    ASSERT_CUDA(sim_cuGetProcAddress_v2("cuLaunchKernel", &per_thread, 12000, 2, &status));
    EXPECT_EQ(per_thread, sim_symbol("cuLaunchKernel_ptsz"));
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    ASSERT_CUDA(sim_cuGetProcAddress_v2("cuNoSuchThing", &old, 12000, 0, &status));
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(old, nullptr);
    EXPECT_EQ(sim_cuGetProcAddress("cuNoSuchThing", &old, 12000, 0), CUDA_ERROR_NOT_FOUND);
    ASSERT_CUDA(sim_cuGetProcAddress_v2("cuLibraryLoadData", &old, 11000, 0, &status));
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  });
}

TEST_F(SimApi, FaultKnobsReachTheCall) {
  run([this](Program& p) {
    auto card = cards_->open();
    Fault& fault = card->file().faults[0];
    fault.kind = FaultKind::kErrorReturn;
    fault.result = CUDA_ERROR_UNKNOWN;
    fault.remaining = 1;
    std::strcpy(fault.symbol, "cuStreamSynchronize");
    card->file().fault_count = 1;
    EXPECT_EQ(sim_cuStreamSynchronize(p.stream), CUDA_ERROR_UNKNOWN);
    EXPECT_CUDA(sim_cuStreamSynchronize(p.stream));
    fault.kind = FaultKind::kMissingSymbol;
    fault.remaining = -1;
    std::strcpy(fault.symbol, "cuMemAllocAsync");
    EXPECT_EQ(sim_symbol("cuMemAllocAsync"), nullptr);
    EXPECT_NE(sim_symbol("cuMemAlloc_v2"), nullptr);
  });
}

TEST_F(SimApi, TheCardsOwnCostsOverrideTheImage) {
  run([this](Program& p) {
    auto card = cards_->open();
    std::strcpy(card->file().costs[0].name, "*");
    card->file().costs[0].cost.kind = CostKind::kFixed;
    card->file().costs[0].cost.a_ns = 3000000;
    card->file().cost_count = 1;
    CUevent a = nullptr, b = nullptr;
    ASSERT_CUDA(sim_cuEventCreate(&a, 0));
    ASSERT_CUDA(sim_cuEventCreate(&b, 0));
    ASSERT_CUDA(sim_cuEventRecord(a, p.stream));
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuEventRecord(b, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    float ms = 0;
    ASSERT_CUDA(sim_cuEventElapsedTime(&ms, a, b));
    EXPECT_NEAR(ms, 3, 0.07);
  });
}

TEST_F(SimApi, HoldsTenThousandStreamsAHundredThousandEventsAMillionAllocations) {
  run([](Program& p) {
    std::vector<CUstream> streams(10000);
    std::vector<CUevent> events(100000);
    std::vector<CUdeviceptr> memory(1000000);
    for (auto& s : streams) ASSERT_CUDA(sim_cuStreamCreate(&s, 0));
    for (auto& e : events) ASSERT_CUDA(sim_cuEventCreate(&e, 0));
    for (auto& m : memory) ASSERT_CUDA(sim_cuMemAlloc_v2(&m, 1024));
    for (size_t i = 0; i < streams.size(); ++i) {
      ASSERT_CUDA(p.launch("short", streams[i], 8));
      ASSERT_CUDA(sim_cuEventRecord(events[i], streams[i]));
    }
    ASSERT_CUDA(sim_cuCtxSynchronize());
    for (size_t i = 0; i < streams.size(); ++i) ASSERT_CUDA(sim_cuEventQuery(events[i]));
    for (auto m : memory) ASSERT_CUDA(sim_cuMemFree_v2(m));
    ASSERT_CUDA(sim_cuCtxDestroy_v2(p.context));
  });
}

}  // namespace
}  // namespace sluice::sim
