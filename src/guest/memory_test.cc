// Every allocation kind through the hooks, over a card that knows nothing of them: what the ledger charges is compared
// with what the card holds.
#include <gtest/gtest.h>

#include <thread>

#include "guest/booking.h"
#include "guest/hooks.h"
#include "guest/testing_pages.h"

extern "C" {
#define SLUICE_REFUSE(name) CUresult hook_##name(int pid, void* arguments);
#include "guest/refused.inc"
#undef SLUICE_REFUSE
}

namespace sluice::guest {
namespace {

constexpr uint64_t kLimit = 1 * kGiB;

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() : pages_(kLimit), process_(pages_, &card_) {
    EXPECT_EQ(hook_cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxCreate_v2(&context_, 0, 0), CUDA_SUCCESS);
  }

  uint64_t charged() { return pages_.charged_bytes(); }
  uint64_t resident() { return card_.shared->resident.load(); }
  // The ledger holds exactly what the card does.
  void expect_true() { EXPECT_EQ(charged(), resident()); }
  uint64_t room() { return kLimit - charged(); }

  TestCard card_;
  TestPages pages_;
  TestGuest process_;
  CUcontext context_ = nullptr;
};

TEST_F(MemoryTest, ContextIsMeasuredInPlaceOfTheEstimate) {
  EXPECT_EQ(charged(), card_.context_bytes);
  expect_true();
  EXPECT_EQ(hook_cuCtxDestroy_v2(context_), CUDA_SUCCESS);
  EXPECT_EQ(charged(), 0u);
  EXPECT_EQ(resident(), 0u);
}

TEST_F(MemoryTest, WithoutNvmlTheEstimateStands) {
  card_.nvml_lists_us = false;
  CUcontext second = nullptr;
  ASSERT_EQ(hook_cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes + 128 * kMiB);
}

TEST_F(MemoryTest, ContextThatCannotFitIsRefused) {
  CUdeviceptr address = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, room() - 100 * kMiB), CUDA_SUCCESS);
  CUcontext second = nullptr;
  EXPECT_EQ(hook_cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuDevicePrimaryCtxRetain(&second, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(card_.contexts.size(), 1u);
  expect_true();
}

TEST_F(MemoryTest, PlainAllocationsUpToTheLimitAndNotBeyond) {
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, kLimit + kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, ~0ull), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, room() + 1), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, room()), CUDA_SUCCESS);
  expect_true();
  CUdeviceptr one_more = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(&one_more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemFree_v2(address), CUDA_SUCCESS);
  expect_true();
  EXPECT_GT(pages_.usage()->cards[0].account.refused_allocations.load(), 0u);
}

TEST_F(MemoryTest, NullAndZeroGoToTheDriver) {
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(nullptr, 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hook_cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
  expect_true();
}

TEST_F(MemoryTest, SmallAllocationsAreChargedByTheBlocksTheyLieIn) {
  std::vector<CUdeviceptr> addresses(50);
  for (CUdeviceptr& address : addresses) ASSERT_EQ(hook_cuMemAlloc_v2(&address, 300 * 1024), CUDA_SUCCESS);
  expect_true();
  for (size_t i = 0; i < addresses.size(); i += 2) ASSERT_EQ(hook_cuMemFree_v2(addresses[i]), CUDA_SUCCESS);
  expect_true();  // every other one gone, the blocks stay
  for (size_t i = 1; i < addresses.size(); i += 2) ASSERT_EQ(hook_cuMemFree_v2(addresses[i]), CUDA_SUCCESS);
  expect_true();
}

TEST_F(MemoryTest, PitchedIsChargedWithThePitch) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  ASSERT_EQ(hook_cuMemAllocPitch_v2(&address, &pitch, 1000, 100000, 4), CUDA_SUCCESS);
  expect_true();
  EXPECT_EQ(hook_cuMemAllocPitch_v2(&address, &pitch, 1, kLimit / 512 + 1, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAllocPitch_v2(&address, &pitch, 1ull << 40, 1ull << 40, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAllocPitch_v2(&address, nullptr, 1000, 10, 4), CUDA_ERROR_INVALID_VALUE);
  expect_true();
}

TEST_F(MemoryTest, ManagedIsChargedInFullAndNotTakenForOverhead) {
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAllocManaged(&address, kLimit, 1), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(hook_cuMemAllocManaged(&address, 64 * kMiB, 1), CUDA_SUCCESS);
  EXPECT_EQ(process_.guest->memory.cards[0].managed_bytes.load(), 64 * kMiB);
  ASSERT_EQ(hook_cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(process_.guest->memory.cards[0].managed_bytes.load(), 0u);
  expect_true();
}

TEST_F(MemoryTest, ArraysAreChargedAndDestroyed) {
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR descriptor = {4096, 4096, CU_AD_FORMAT_FLOAT, 4};
  ASSERT_EQ(hook_cuArrayCreate_v2(&array, &descriptor), CUDA_SUCCESS);
  expect_true();
  descriptor.Width = 1ull << 30;
  CUarray big = nullptr;
  EXPECT_EQ(hook_cuArrayCreate_v2(&big, &descriptor), CUDA_ERROR_OUT_OF_MEMORY);
  descriptor.Width = ~0ull;
  EXPECT_EQ(hook_cuArrayCreate_v2(&big, &descriptor), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuArrayDestroy(array), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  expect_true();
}

TEST_F(MemoryTest, PhysicalMemoryLivesUntilHandlesAndMappingsAreGone) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  EXPECT_EQ(hook_cuMemCreate(&handle, kLimit, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(hook_cuMemCreate(&handle, 64 * kMiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemMap(0xa0000000, 64 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemMap(0xb0000000, 64 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  expect_true();  // released, still mapped twice
  EXPECT_EQ(charged(), card_.context_bytes + 64 * kMiB);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(hook_cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(0xb0000000)), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemUnmap(0xa0000000, 64 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemUnmap(0xb0000000, 64 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes + 64 * kMiB);  // one handle left
  ASSERT_EQ(hook_cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes);
  expect_true();
}

TEST_F(MemoryTest, ManyMappingsUnmappedInOneCall) {
  CUmemAllocationProp properties = {};
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  for (uint64_t i = 0; i < 8; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(hook_cuMemCreate(&handle, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuMemMap(0xa0000000 + i * 4 * kMiB, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  }
  expect_true();
  ASSERT_EQ(hook_cuMemUnmap(0xa0000000, 32 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes);
  expect_true();
}

TEST_F(MemoryTest, HostMemoryIsNotCharged) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  for (CUmemLocationType type : {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA}) {
    properties.location = {.type = type, .id = 0};
    ASSERT_EQ(hook_cuMemCreate(&handle, 4 * kLimit, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  }
  expect_true();
}

TEST_F(MemoryTest, PoolsAreChargedByWhatTheyReserve) {
  CUdeviceptr first = 0;
  ASSERT_EQ(hook_cuMemAllocAsync(&first, 100 * kMiB, nullptr), CUDA_SUCCESS);
  expect_true();  // 128 MiB: the pool grows in pieces of 32
  const uint64_t reserved = charged();
  ASSERT_EQ(hook_cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(charged(), reserved);  // the pool keeps it
  CUdeviceptr filler = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&filler, room()), CUDA_SUCCESS);
  // The container is full, the pool has room: reuse is free.
  ASSERT_EQ(hook_cuMemAllocAsync(&first, 100 * kMiB, nullptr), CUDA_SUCCESS);
  CUdeviceptr second = 0;
  EXPECT_EQ(hook_cuMemAllocAsync(&second, 100 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  expect_true();
  ASSERT_EQ(hook_cuMemFreeAsync(first, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(0x99), 0), CUDA_SUCCESS);
  expect_true();
  ASSERT_EQ(hook_cuMemAlloc_v2(&second, 100 * kMiB), CUDA_SUCCESS);
  expect_true();
}

TEST_F(MemoryTest, PoolThatShrankByItselfIsNoticedBeforeARefusal) {
  CUdeviceptr address = 0;
  ASSERT_EQ(hook_cuMemAllocAsync(&address, 512 * kMiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  // The driver trims at a synchronisation point; nobody tells us.
  reinterpret_cast<CUresult (*)(CUmemoryPool, size_t)>(card_.symbol("cuMemPoolTrimTo"))(
      reinterpret_cast<CUmemoryPool>(0x99), 0);
  EXPECT_GT(charged(), resident());
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, 800 * kMiB), CUDA_SUCCESS);
  expect_true();
}

TEST_F(MemoryTest, PoolGrowthBeyondTheLimitIsUndone) {
  CUdeviceptr filler = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&filler, room() - 4 * kMiB), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  // 2 MiB fit, but the pool would take 32.
  EXPECT_EQ(hook_cuMemAllocAsync(&address, 2 * kMiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  expect_true();
  EXPECT_LE(resident(), kLimit);
}

TEST_F(MemoryTest, CapturedAllocationsAreNotCharged) {
  card_.capturing = true;
  CUdeviceptr address = 0;
  const uint64_t before = charged();
  EXPECT_EQ(hook_cuMemAllocAsync(&address, 4 * kLimit, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(charged(), before);
}

TEST_F(MemoryTest, GraphMemoryIsChargedAtUploadAndLaunch) {
  CUgraphExec exec = nullptr;
  card_.graph_nodes_bytes = 200 * kMiB;
  ASSERT_EQ(hook_cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes);
  ASSERT_EQ(hook_cuGraphUpload(exec, nullptr), CUDA_SUCCESS);
  expect_true();
  EXPECT_EQ(charged(), card_.context_bytes + 200 * kMiB);
  ASSERT_EQ(memory_before_graph_launch(process_.guest.get(), exec), CUDA_SUCCESS);  // cached: free
  memory_after_graph_launch(process_.guest.get(), exec);
  expect_true();
  ASSERT_EQ(hook_cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  expect_true();
  card_.graph_nodes_bytes = 2 * kLimit;
  ASSERT_EQ(hook_cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(memory_before_graph_launch(process_.guest.get(), exec), CUDA_ERROR_OUT_OF_MEMORY);
  expect_true();
}

TEST_F(MemoryTest, StackLimitIsAdmittedUpFront) {
  // 64 KiB x 80 multiprocessors x 2048 threads = 10 GiB.
  EXPECT_EQ(hook_cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * 1024), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(card_.limits[CU_LIMIT_STACK_SIZE], 1024u);
  ASSERT_EQ(hook_cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes + 1024ull * 80 * 2048);
  ASSERT_EQ(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes + 1024ull * 80 * 2048 + 100 * kMiB);
  ASSERT_EQ(hook_cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes);
}

TEST_F(MemoryTest, DestroyedContextTakesItsMemoryAlong) {
  CUdeviceptr address = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, 64 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, 1000), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, 2000), CUDA_SUCCESS);
  expect_true();
  ASSERT_EQ(hook_cuCtxDestroy_v2(context_), CUDA_SUCCESS);
  EXPECT_EQ(charged(), 0u);
  EXPECT_EQ(resident(), 0u);
  EXPECT_EQ(process_.guest->memory.allocations.size(), 0u);
}

TEST_F(MemoryTest, PrimaryContextFollowsTheDriversCount) {
  CUcontext primary = nullptr;
  ASSERT_EQ(hook_cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
  expect_true();
  EXPECT_EQ(pages_.usage()->cards[0].slots[0].contexts.load(), 2u);
  ASSERT_EQ(hook_cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  expect_true();
  ASSERT_EQ(hook_cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  expect_true();
  EXPECT_EQ(charged(), card_.context_bytes);
  EXPECT_EQ(pages_.usage()->cards[0].slots[0].contexts.load(), 1u);
}

TEST_F(MemoryTest, CodeIsFoundByMeasuring) {
  card_.code_bytes = 40 * kMiB;
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
  process_.guest->memory.cards[0].measured_at_ns.store(0);  // as after 100 ms
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, kLimit - card_.context_bytes), CUDA_ERROR_OUT_OF_MEMORY);
  expect_true();
  EXPECT_EQ(charged(), card_.context_bytes + 40 * kMiB);
}

TEST_F(MemoryTest, CodeBeyondTheLimitIsUnloadedAndRefused) {
  card_.code_bytes = kLimit;
  CUmodule module = nullptr;
  EXPECT_EQ(hook_cuModuleLoadData(&module, "image"), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(module, nullptr);
  EXPECT_EQ(charged(), card_.context_bytes);
  expect_true();
  EXPECT_EQ(pages_.usage()->cards[0].account.refused_allocations.load(), 1u);
  card_.code_bytes = room();
  EXPECT_EQ(hook_cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
  expect_true();
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(charged(), card_.context_bytes);
}

TEST_F(MemoryTest, CheckpointsAreRefusedUnderALimit) {
#define SLUICE_REFUSE(name) EXPECT_EQ(hook_##name(::getpid(), nullptr), CUDA_ERROR_NOT_SUPPORTED) << #name;
#include "guest/refused.inc"
#undef SLUICE_REFUSE
}

TEST_F(MemoryTest, CodeThatCostsNothingLoadsInAContainerWhoseLimitWasLowered) {
  pages_.grant()->cards[0].memory_limit_bytes.store(kMiB);
  CUmodule module = nullptr;
  EXPECT_EQ(hook_cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
  card_.code_bytes = 2 * kMiB;
  EXPECT_EQ(hook_cuModuleLoadData(&module, "image"), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(MemoryTest, ViewIsTheLimitAndAgreesWithNvmlToTheByte) {
  CUdeviceptr address = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, 123 * kMiB + 17), CUDA_SUCCESS);
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(hook_cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, kLimit);
  EXPECT_EQ(free_bytes, kLimit - resident());
  size_t device_total = 0;
  ASSERT_EQ(hook_cuDeviceTotalMem_v2(&device_total, 0), CUDA_SUCCESS);
  EXPECT_EQ(device_total, kLimit);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(hook_nvmlInit_v2(), NVML_SUCCESS);
  ASSERT_EQ(hook_nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  nvmlMemory_t memory = {};
  nvmlMemory_v2_t memory_v2 = {};
  ASSERT_EQ(hook_nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  ASSERT_EQ(hook_nvmlDeviceGetMemoryInfo_v2(device, &memory_v2), NVML_SUCCESS);
  EXPECT_EQ(memory.total, total);
  EXPECT_EQ(memory.free, free_bytes);
  EXPECT_EQ(memory.used, total - free_bytes);
  EXPECT_EQ(memory_v2.total, total);
  EXPECT_EQ(memory_v2.used, memory.used);
  EXPECT_EQ(memory_v2.free, memory.free);
  EXPECT_EQ(memory_v2.reserved, 0u);
  // The agent knows of more: that is what is shown.
  pages_.grant()->cards[0].used_bytes.store(900 * kMiB);
  ASSERT_EQ(hook_cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes, kLimit - 900 * kMiB);
}

TEST_F(MemoryTest, NvmlShowsOwnProcessesAndShare) {
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(hook_nvmlInit_v2(), NVML_SUCCESS);
  ASSERT_EQ(hook_nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  unsigned int count = 0;
  EXPECT_EQ(hook_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 1u);
  nvmlProcessInfo_t list[4] = {};
  count = 4;
  ASSERT_EQ(hook_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), NVML_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(list[0].pid, static_cast<unsigned int>(sys::process_id()));
  nvmlUtilization_t rates = {};
  ASSERT_EQ(hook_nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 91u);  // no agent, no cap: the card's own figure
  pages_.grant()->header.heartbeat_ns.store(sys::monotonic_ns());
  pages_.grant()->cards[0].utilisation_permille.store(304);
  ASSERT_EQ(hook_nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 30u);
  EXPECT_EQ(rates.memory, 30u);
  pages_.grant()->cards[0].core_permille.store(300);  // a cap: what the container itself has measured, nothing so far
  ASSERT_EQ(hook_nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 0u);
}

TEST_F(MemoryTest, WithoutALimitNothingIsBooked) {
  pages_.grant()->cards[0].memory_limit_bytes.store(0);
  CUdeviceptr address = 0;
  const uint64_t before = charged();
  ASSERT_EQ(hook_cuMemAlloc_v2(&address, 4 * kGiB), CUDA_SUCCESS);
  EXPECT_EQ(charged(), before);
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(hook_cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 32 * kGiB);
  ASSERT_EQ(hook_cuMemFree_v2(address), CUDA_SUCCESS);
}

TEST_F(MemoryTest, CardsOutsideTheGrantAreHiddenAndRefused) {
  card_.devices = 3;
  process_.guest->devices_known.store(0);
  int count = 0;
  ASSERT_EQ(hook_cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
  CUdevice device = -1;
  EXPECT_EQ(hook_cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
  CUcontext context = nullptr;
  EXPECT_EQ(hook_cuCtxCreate_v2(&context, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(hook_cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(MemoryTest, ProcAddressGivesTheHookOfTheFormThatTheDriverChose) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = {};
  ASSERT_EQ(hook_cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&hook_cuMemAlloc_v2));
  ASSERT_EQ(hook_cuGetProcAddress_v2("cuCtxSetCurrent", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, card_.symbol("cuCtxSetCurrent"));  // not hooked: the real one itself
  EXPECT_EQ(hook_cuGetProcAddress_v2("cuNoSuchThing", &function, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(hook_cuGetProcAddress_v2("cuInit", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&hook_cuInit));
}

TEST_F(MemoryTest, ThreadsAllocateAndFreeWithoutLosingAByte) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      reinterpret_cast<CUresult (*)(CUcontext)>(card_.symbol("cuCtxSetCurrent"))(context_);
      std::vector<CUdeviceptr> mine;
      for (int i = 0; i < 400; ++i) {
        CUdeviceptr address = 0;
        const size_t bytes = (i % 3 == 0) ? 5000 + static_cast<size_t>(t) : 3 * kMiB;
        const CUresult result = hook_cuMemAlloc_v2(&address, bytes);
        if (result == CUDA_SUCCESS) {
          mine.push_back(address);
        } else {
          EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        if (mine.size() > 40 || (result != CUDA_SUCCESS && !mine.empty())) {
          EXPECT_EQ(hook_cuMemFree_v2(mine.back()), CUDA_SUCCESS);
          mine.pop_back();
        }
      }
      for (CUdeviceptr address : mine) EXPECT_EQ(hook_cuMemFree_v2(address), CUDA_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_true();
  EXPECT_LE(card_.shared->peak.load(), kLimit);
}

TEST(Refusal, EveryFlawOfThePagesIsNamed) {
  struct Case {
    const char* what;
    void (*spoil)(TestPages&);
    uint32_t code;
  };
  const Case cases[] = {
      {"no grant", [](TestPages& p) { ::unlink(p.grant_path.c_str()); }, page::kRefusalGrantMissing},
      {"magic", [](TestPages& p) { p.grant()->header.magic ^= 1; }, page::kRefusalGrantMagic},
      {"version", [](TestPages& p) { p.grant()->header.major = 9; }, page::kRefusalGrantVersion},
      {"no cards", [](TestPages& p) { p.grant()->header.card_count = 0; }, page::kRefusalGrantSize},
      {"too many cards", [](TestPages& p) { p.grant()->header.card_count = 17; }, page::kRefusalGrantSize},
      {"bytes", [](TestPages& p) { p.grant()->header.bytes = 10; }, page::kRefusalGrantSize},
      {"cut short", [](TestPages& p) { EXPECT_EQ(::truncate(p.grant_path.c_str(), 100), 0); }, page::kRefusalGrantSize},
      {"no usage", [](TestPages& p) { ::unlink(p.usage_path.c_str()); }, page::kRefusalUsageMissing},
      {"usage magic", [](TestPages& p) { p.usage()->header.magic = 0; }, page::kRefusalUsageLayout},
      {"usage cut short", [](TestPages& p) { EXPECT_EQ(::truncate(p.usage_path.c_str(), 4096), 0); },
       page::kRefusalUsageLayout},
      {"apart", [](TestPages& p) { p.usage()->header.grant_id = 7; }, page::kRefusalPagesApart},
  };
  for (const Case& c : cases) {
    TestCard card;
    TestPages pages(kLimit);
    c.spoil(pages);
    TestGuest process(pages, &card);
    EXPECT_EQ(hook_cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY) << c.what;
    EXPECT_EQ(hook_nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED) << c.what;
    EXPECT_EQ(process.guest->refusal, c.code) << c.what;
    EXPECT_FALSE(card.initialised) << c.what;
  }
}

TEST(Refusal, WithoutADriverAndWithItsReasonOnThePage) {
  TestCard card;
  TestPages pages(kLimit);
  TestGuest process(pages, nullptr);
  EXPECT_EQ(hook_cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(pages.usage()->cards[0].account.refusal_code.load(), page::kRefusalDriverMissing);
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = {};
  ASSERT_EQ(hook_cuGetProcAddress_v2("cuInit", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&hook_cuInit));
  EXPECT_EQ(hook_cuGetProcAddress_v2("cuNoSuchThing", &function, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(&address, 512), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_STREQ(hook_nvmlErrorString(NVML_ERROR_DRIVER_NOT_LOADED), "Driver Not Loaded");
}

TEST(Refusal, FunctionsThatTheDriverLacksAreNotSupported) {
  TestCard card;
  card.missing = {"cuMemAllocManaged"};
  TestPages pages(kLimit);
  TestGuest process(pages, &card);
  ASSERT_EQ(hook_cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(hook_cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(hook_cuMemAllocManaged(&address, 4096, 1), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(pages.charged_bytes(), card.shared->resident.load());
}

}  // namespace
}  // namespace sluice::guest
