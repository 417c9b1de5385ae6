// With a grant that limits nothing the guest must not be there: the card's log of a run through every hook is the same,
// byte for byte, as that of the same programs calling the driver directly. Two processes in virtual time; the log holds
// every command with its times, so one call too many on the way would show.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "guest/guest.h"
#include "guest/hooks.h"
#include "sim/test_card.h"

namespace sluice::guest {
namespace {

std::map<sim::Process*, Guest*>& guests() {
  static std::map<sim::Process*, Guest*> all;
  return all;
}

class SimDriver final : public Driver {
 public:
  void* symbol(const char* name) override { return const_cast<void*>(sim::sim_symbol(name)); }
};

class SimClock final : public Clock {
 public:
  explicit SimClock(sim::Host& host) : host_(host) {}
  uint64_t now_ns() override { return host_.now_ns(); }

 private:
  sim::Host& host_;
};

// Nothing in a pass-through run may wait or start threads.
class NoWaiter final : public Waiter {
 public:
  bool wait(const volatile uint32_t*, uint32_t, uint64_t) override { return used(); }
  void wake(volatile uint32_t*, uint32_t) override {}  // the doorbell tells the agent that a process is there
  void spin_pause() override { used(); }
  bool may_spin() override { return used(); }
  void sleep_ns(uint64_t) override { used(); }
  bool start_thread(void (*)(void*), void*) override { return used(); }

 private:
  static bool used() {
    ADD_FAILURE() << "the guest waited or started a thread";
    return false;
  }
};

class PlainIdentity final : public Identity {
 public:
  uint64_t exec_token() override { return 1; }
  bool forked() override { return false; }
  void renew() override {}
  bool try_lock(uint64_t) override { return true; }
  void unlock(uint64_t) override {}
  int owner_pid(uint64_t) override { return 0; }
  int own_pid() override { return 1; }
};

struct OneGuest {
  explicit OneGuest(sim::Host& host, const uint8_t (&uuid)[16]) : clock(host) {
    grant->header.card_count = 1;
    std::copy(std::begin(uuid), std::end(uuid), grant->cards[0].uuid);
    grant->cards[0].card_memory_bytes = 40ull << 30;
    grant->cards[0].gate.store(page::kGateFree);
    guest->attach_context = this;
  }
  static uint32_t attach(Guest* guest) {
    OneGuest& one = *static_cast<OneGuest*>(guest->attach_context);
    guest->seams = Seams{&one.driver, &one.clock, &one.waiter, &one.identity};
    guest->grant = one.grant.get();
    guest->usage = one.usage.get();
    guest->card_count = 1;
    guest->cards[0].grant = &one.grant->cards[0];
    guest->cards[0].usage = &one.usage->cards[0];
    return page::kRefusalNone;
  }
  SimDriver driver;
  SimClock clock;
  NoWaiter waiter;
  PlainIdentity identity;
  std::unique_ptr<page::Grant> grant = std::make_unique<page::Grant>();
  std::unique_ptr<page::Usage> usage = std::make_unique<page::Usage>();
  std::unique_ptr<Guest> guest = std::make_unique<Guest>(attach, resolve_real_cuda);
};

// The calls of the program, direct or through the hooks.
struct Direct {
#define CALL(name) static constexpr auto name = &::sim_##name;
#define CALLS(X)                 \
  X(cuInit)                      \
  X(cuDeviceGet)                 \
  X(cuCtxCreate_v2)              \
  X(cuModuleLoadData)            \
  X(cuMemAlloc_v2)               \
  X(cuMemFree_v2)                \
  X(cuMemAllocManaged)           \
  X(cuMemAllocAsync)             \
  X(cuMemFreeAsync)              \
  X(cuMemGetInfo_v2)             \
  X(cuLaunchKernel)              \
  X(cuMemcpyHtoDAsync_v2)        \
  X(cuMemcpyDtoDAsync_v2)        \
  X(cuMemsetD8Async)             \
  X(cuStreamSynchronize)         \
  X(cuCtxSynchronize)            \
  X(cuStreamWaitEvent)           \
  X(cuEventRecord)               \
  X(cuStreamBeginCapture_v2)     \
  X(cuStreamEndCapture)          \
  X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch)               \
  X(cuStreamDestroy_v2)          \
  X(cuCtxDestroy_v2)             \
  X(cuMemCreate)                 \
  X(cuMemRelease)
  CALLS(CALL)
#undef CALL
};
struct Hooked {
#define CALL(name) static constexpr auto name = &::hook_##name;
  CALLS(CALL)
#undef CALL
};

template <typename Api>
void program(int number) {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUstream first = nullptr, second = nullptr;
  CUevent event = nullptr;
  CUdevice device = -1;
  EXPECT_CUDA(Api::cuInit(0));
  EXPECT_CUDA(Api::cuDeviceGet(&device, 0));
  EXPECT_CUDA(Api::cuCtxCreate_v2(&context, 0, device));
  EXPECT_CUDA(Api::cuModuleLoadData(&module, sim::kTestImage));
  EXPECT_CUDA(sim_cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  EXPECT_CUDA(sim_cuStreamCreate(&second, CU_STREAM_DEFAULT));
  EXPECT_CUDA(sim_cuEventCreate(&event, 0));
  CUfunction functions[2] = {};
  EXPECT_CUDA(sim_cuModuleGetFunction(&functions[0], module, "short"));
  EXPECT_CUDA(sim_cuModuleGetFunction(&functions[1], module, number == 0 ? "lognormal" : "mixed"));
  CUdeviceptr buffer = 0, other = 0;
  EXPECT_CUDA(Api::cuMemAlloc_v2(&buffer, 64 << 20));
  EXPECT_CUDA(Api::cuMemAllocManaged(&other, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  uint64_t argument = 0;
  void* parameters[] = {&argument};
  const auto launch = [&](CUfunction function, CUstream stream) {
    EXPECT_CUDA(Api::cuLaunchKernel(function, 4096, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
  };
  static char host[4096];
  for (int i = 0; i < 60; ++i) {
    launch(functions[i % 2], i % 3 == 0 ? second : first);
    if (i % 5 == 0) {
      EXPECT_CUDA(Api::cuMemcpyDtoDAsync_v2(buffer, buffer + (32 << 20), 1 << 20, first));
    }
    if (i % 6 == 0) {
      EXPECT_CUDA(Api::cuMemsetD8Async(buffer, 1, 4096, second));
    }
    if (i % 7 == 0) {
      EXPECT_CUDA(Api::cuMemcpyHtoDAsync_v2(buffer, host, sizeof host, first));
    }
    if (i % 8 == 0) {
      EXPECT_CUDA(Api::cuEventRecord(event, first));
      EXPECT_CUDA(Api::cuStreamWaitEvent(second, event, 0));
    }
    if (i % 20 == 19) {
      EXPECT_CUDA(Api::cuStreamSynchronize(first));
    }
    if (i % 10 == 9) {
      CUdeviceptr pooled = 0;
      EXPECT_CUDA(Api::cuMemAllocAsync(&pooled, 3 << 20, first));
      EXPECT_CUDA(Api::cuMemFreeAsync(pooled, first));
    }
  }
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  EXPECT_CUDA(Api::cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int i = 0; i < 20; ++i) launch(functions[0], first);
  EXPECT_CUDA(Api::cuStreamEndCapture(first, &graph));
  EXPECT_CUDA(Api::cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 5; ++i) EXPECT_CUDA(Api::cuGraphLaunch(exec, first));
  EXPECT_CUDA(Api::cuCtxSynchronize());
  size_t free_bytes = 0, total = 0;
  EXPECT_CUDA(Api::cuMemGetInfo_v2(&free_bytes, &total));
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  EXPECT_CUDA(Api::cuMemCreate(&handle, 2 << 20, &properties, 0));
  EXPECT_CUDA(Api::cuMemRelease(handle));
  EXPECT_CUDA(Api::cuMemFree_v2(other));
  EXPECT_CUDA(Api::cuMemFree_v2(buffer));
  EXPECT_CUDA(Api::cuStreamDestroy_v2(second));
  EXPECT_CUDA(Api::cuCtxDestroy_v2(context));
}

template <typename Api>
std::string log_of_run(bool with_guest) {
  sim::TestCards cards;
  cards.set(sim::Knob::command_log, 1);
  // Calls are free: the guest's few questions at the start (how many devices, which UUIDs) cost the program a
  // microsecond, which is the guest's price but none of the card's business.
  sim::FibreHost host(sim::free_costs(), 5);
  auto card = cards.open();
  std::vector<std::unique_ptr<sim::Process>> processes;
  std::vector<std::unique_ptr<OneGuest>> kept;
  for (int p = 0; p < 2; ++p) {
    processes.push_back(std::make_unique<sim::Process>(host, cards.folder(), 100 + p, true, "program"));
    if (with_guest) {
      kept.push_back(std::make_unique<OneGuest>(host, card->file().uuid_bytes));
      guests()[processes.back().get()] = kept.back()->guest.get();
    }
    host.start(*processes.back(), [p] { program<Api>(p); }, 1000000000 + static_cast<uint64_t>(p) * 3000000);
  }
  host.run();
  EXPECT_TRUE(host.all_ended());
  guests().clear();
  return sim::LogReader(*card).dump();
}

TEST(PassThrough, CardsLogIsTheSameToTheByte) {
  const std::string direct = log_of_run<Direct>(false);
  const std::string hooked = log_of_run<Hooked>(true);
  EXPECT_GT(direct.size(), 10000u);
  EXPECT_TRUE(direct == hooked) << "logs of " << direct.size() << " and " << hooked.size() << " bytes differ";
  // And the comparison can fail.
  EXPECT_TRUE(direct == log_of_run<Direct>(false));
}

}  // namespace

Guest* current_guest() {
  return guests().at(sim::current_thread().process);
}

}  // namespace sluice::guest
