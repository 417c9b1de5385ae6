// The program of a scenario: binds the driver by name, as the CUDA runtime does, one thread per stream, launches units,
// synchronises and pauses as its streams say. What a kernel costs is drawn by the card from its own table; the image
// that the library sees holds names only.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "abi/cuda.h"
#include "accuracy/world.h"
#include "guest/real_cuda.h"

namespace sluice::accuracy {

namespace {

// The driver as a program of this process finds it: hooks where the library stands in front, the driver elsewhere.
template <typename Function>
Function bind(const ProgramProcess& process, const char* name) {
  void* hook = process.guest ? guest::hook_for_name(name) : nullptr;
  return reinterpret_cast<Function>(hook != nullptr ? hook : const_cast<void*>(sim::sim_symbol(name)));
}

#define SLUICE_BIND(name) name = bind<decltype(&::name)>(process, #name)

struct Calls {
  decltype(&::cuInit) cuInit;
  decltype(&::cuDeviceGet) cuDeviceGet;
  decltype(&::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain;
  decltype(&::cuCtxSetCurrent) cuCtxSetCurrent;
  decltype(&::cuModuleLoadData) cuModuleLoadData;
  decltype(&::cuModuleGetFunction) cuModuleGetFunction;
  decltype(&::cuStreamCreate) cuStreamCreate;
  decltype(&::cuStreamSynchronize) cuStreamSynchronize;
  decltype(&::cuStreamBeginCapture_v2) cuStreamBeginCapture_v2;
  decltype(&::cuStreamEndCapture) cuStreamEndCapture;
  decltype(&::cuGraphInstantiateWithFlags) cuGraphInstantiateWithFlags;
  decltype(&::cuGraphLaunch) cuGraphLaunch;
  decltype(&::cuLaunchKernel) cuLaunchKernel;
  decltype(&::cuLaunchCooperativeKernel) cuLaunchCooperativeKernel;
  decltype(&::cuLaunchHostFunc) cuLaunchHostFunc;
  decltype(&::cuMemAlloc_v2) cuMemAlloc_v2;
  decltype(&::cuMemHostAlloc) cuMemHostAlloc;
  decltype(&::cuMemcpyDtoHAsync_v2) cuMemcpyDtoHAsync_v2;

  explicit Calls(const ProgramProcess& process) {
    SLUICE_BIND(cuInit);
    SLUICE_BIND(cuDeviceGet);
    SLUICE_BIND(cuDevicePrimaryCtxRetain);
    SLUICE_BIND(cuCtxSetCurrent);
    SLUICE_BIND(cuModuleLoadData);
    SLUICE_BIND(cuModuleGetFunction);
    SLUICE_BIND(cuStreamCreate);
    SLUICE_BIND(cuStreamSynchronize);
    SLUICE_BIND(cuStreamBeginCapture_v2);
    SLUICE_BIND(cuStreamEndCapture);
    SLUICE_BIND(cuGraphInstantiateWithFlags);
    SLUICE_BIND(cuGraphLaunch);
    SLUICE_BIND(cuLaunchKernel);
    SLUICE_BIND(cuLaunchCooperativeKernel);
    SLUICE_BIND(cuLaunchHostFunc);
    SLUICE_BIND(cuMemAlloc_v2);
    SLUICE_BIND(cuMemHostAlloc);
    SLUICE_BIND(cuMemcpyDtoHAsync_v2);
  }
};

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "accuracy program: %s gave CUDA error %d\n", what, static_cast<int>(result));
  std::abort();
}

struct Shared {
  World* world;
  ProgramProcess* process;
  Calls calls;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  uint64_t stop_ns;
};

// Kernels of a stream have one name; its entry in the card's table says what they cost.
std::string kernel_name(const ProgramProcess& process, size_t stream) {
  return "k_" + std::to_string(process.pid) + "_" + std::to_string(stream);
}

uint32_t set_cost(World& world, const std::string& name, const Distribution& distribution) {
  sim::CardFile& file = world.card().file();
  const uint32_t index = file.cost_count;
  if (index >= sim::kMaxCosts) {
    std::fprintf(stderr, "accuracy program: the card's cost table holds %u kernels\n", sim::kMaxCosts);
    std::abort();
  }
  sim::CostEntry& entry = file.costs[index];
  std::snprintf(entry.name, sizeof entry.name, "%s", name.c_str());
  sim::Cost& cost = entry.cost;
  cost = {};
  cost.a_ns = distribution.a * 1000;
  cost.b_ns = distribution.b * 1000;
  switch (distribution.kind) {
    case Distribution::Kind::kFixed:
      cost.kind = sim::CostKind::kFixed;
      break;
    case Distribution::Kind::kUniform:
      cost.kind = sim::CostKind::kUniform;
      break;
    case Distribution::Kind::kLognormal:
      cost.kind = sim::CostKind::kLognormal;
      cost.c = distribution.sigma;
      break;
    case Distribution::Kind::kChoice:
      // The card draws one of two; a list of more is drawn before each launch (redraw).
      cost.kind = distribution.choices.size() == 1 ? sim::CostKind::kFixed : sim::CostKind::kChoice;
      cost.a_ns = distribution.choices.front() * 1000;
      cost.b_ns = distribution.choices.back() * 1000;
      cost.c = 1.0 - 1.0 / static_cast<double>(distribution.choices.size());
      break;
  }
  ++file.cost_count;
  return index;
}

void host_function(void*) {}

void run_stream(Shared& shared, size_t index, uint32_t cost_index) {
  World& world = *shared.world;
  Fibres& fibres = world.fibres();
  const Calls& calls = shared.calls;
  const StreamSpec& spec = world.scenario().containers[shared.process->container].streams[index];
  std::mt19937_64 random(world.scenario().seed * 1'000'003 + static_cast<uint64_t>(shared.process->pid) * 131 + index);
  check(calls.cuCtxSetCurrent(shared.context), "cuCtxSetCurrent");
  CUfunction function = nullptr;
  check(calls.cuModuleGetFunction(&function, shared.module, kernel_name(*shared.process, index).c_str()),
        "cuModuleGetFunction");
  CUstream stream = nullptr;
  check(calls.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUgraphExec exec = nullptr;
  const auto launch_kernel = [&]() {
    return spec.cooperative ? calls.cuLaunchCooperativeKernel(function, spec.grid, 1, 1, 128, 1, 1, 0, stream, nullptr)
                            : calls.cuLaunchKernel(function, spec.grid, 1, 1, 128, 1, 1, 0, stream, nullptr, nullptr);
  };
  if (spec.graph_nodes != 0) {
    check(calls.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (uint32_t i = 0; i < spec.graph_nodes; ++i) check(launch_kernel(), "captured launch");
    CUgraph graph = nullptr;
    check(calls.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    check(calls.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
  }
  CUdeviceptr on_card = 0;
  void* on_host = nullptr;
  size_t copy_bytes = 0;
  if (spec.copy_us > 0) {
    const int64_t rate = world.card().profile().d2h_bytes_per_us;
    copy_bytes = static_cast<size_t>(spec.copy_us * static_cast<double>(rate));
    check(calls.cuMemAlloc_v2(&on_card, copy_bytes), "cuMemAlloc");
    check(calls.cuMemHostAlloc(&on_host, copy_bytes, 0), "cuMemHostAlloc");
  }
  const bool redraw = spec.kernel_us.kind == Distribution::Kind::kChoice && spec.kernel_us.choices.size() > 2;
  uint64_t units = 0;
  while (fibres.now_ns() < shared.stop_ns) {
    if (redraw) {
      sim::Cost& cost = world.card().file().costs[cost_index].cost;
      cost.kind = sim::CostKind::kFixed;
      cost.a_ns = spec.kernel_us.draw(random) * 1000;
    }
    const uint64_t before = fibres.now_ns();
    check(exec != nullptr ? calls.cuGraphLaunch(exec, stream) : launch_kernel(), "launch");
    const double waited_ms = static_cast<double>(fibres.now_ns() - before) / 1e6;
    shared.process->longest_wait_ms = std::max(shared.process->longest_wait_ms, waited_ms);
    ++shared.process->units;
    ++units;
    if (spec.host_functions && units % 50 == 0)
      check(calls.cuLaunchHostFunc(stream, host_function, nullptr), "host function");
    bool pause = spec.sync_every == 0;
    if (spec.sync_every != 0 && units % spec.sync_every == 0) {
      if (copy_bytes != 0) check(calls.cuMemcpyDtoHAsync_v2(on_host, on_card, copy_bytes, stream), "cuMemcpyDtoHAsync");
      check(calls.cuStreamSynchronize(stream), "cuStreamSynchronize");
      pause = true;
    }
    const double gap_us = pause ? spec.gap_us.draw(random) : 0;
    if (gap_us > 0) fibres.sleep_until(fibres.now_ns() + static_cast<uint64_t>(gap_us * 1000));
  }
  check(calls.cuStreamSynchronize(stream), "cuStreamSynchronize");
}

}  // namespace

void run_program(World& world, ProgramProcess& process) {
  const ContainerSpec& spec = world.scenario().containers[process.container];
  // Lives as long as the run: stream threads use it.
  Shared* shared = new Shared{&world, &process, Calls(process), nullptr, nullptr, ~0ull};
  if (spec.stop_s) shared->stop_ns = 1'000'000'000 + static_cast<uint64_t>(*spec.stop_s * 1e9);
  check(shared->calls.cuInit(0), "cuInit");
  CUdevice device = 0;
  check(shared->calls.cuDeviceGet(&device, 0), "cuDeviceGet");
  check(shared->calls.cuDevicePrimaryCtxRetain(&shared->context, device), "cuDevicePrimaryCtxRetain");
  check(shared->calls.cuCtxSetCurrent(shared->context), "cuCtxSetCurrent");
  std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n";
  std::vector<uint32_t> costs;
  for (size_t i = 0; i < spec.streams.size(); ++i) {
    image += ".visible .entry " + kernel_name(process, i) + "()\n{\n  ret;\n}\n";
    costs.push_back(set_cost(world, kernel_name(process, i), spec.streams[i].kernel_us));
  }
  check(shared->calls.cuModuleLoadData(&shared->module, image.c_str()), "cuModuleLoadData");
  for (size_t i = 0; i < spec.streams.size(); ++i) {
    world.fibres().start(
        process.driver.get(), process.guest.get(), [shared, i, cost = costs[i]] { run_stream(*shared, i, cost); },
        world.fibres().now_ns());
  }
}

}  // namespace sluice::accuracy
