// The program of a scenario: binds the driver by name, as the CUDA runtime does, one thread per stream, launches units,
// synchronises and pauses as its streams say. What a kernel costs is drawn by the card from its own table; the image
// that the library sees holds names only.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "abi/cuda.h"
#include "accuracy/world.h"
#include "guest/real_cuda.h"

namespace sluice::accuracy {

namespace {

std::string sim_folder;  // removed when a run is given up

// The driver as a program of this process finds it: hooks where the library stands in front, the driver elsewhere.
template <typename Function>
Function bind(const ProgramProcess& process, const char* name) {
  void* hook = process.guest ? guest::hook_for_name(name) : nullptr;
  return reinterpret_cast<Function>(hook != nullptr ? hook : const_cast<void*>(sim::sim_symbol(name)));
}

// A macro of macro calls has no stable form for clang-format 19: it moves lines to and fro at every run.
// clang-format off
#define SLUICE_CALLS(CALL) \
  CALL(cuInit) CALL(cuDeviceGet) CALL(cuDevicePrimaryCtxRetain) CALL(cuCtxSetCurrent) CALL(cuModuleLoadData) \
  CALL(cuModuleGetFunction) CALL(cuStreamCreate) CALL(cuStreamSynchronize) CALL(cuStreamBeginCapture_v2) \
  CALL(cuStreamEndCapture) CALL(cuGraphInstantiateWithFlags) CALL(cuGraphLaunch) CALL(cuLaunchKernel) \
  CALL(cuLaunchCooperativeKernel) CALL(cuLaunchHostFunc) CALL(cuMemAlloc_v2) CALL(cuMemHostAlloc) \
  CALL(cuMemcpyDtoHAsync_v2) CALL(cuMemcpyHtoDAsync_v2) CALL(cuStreamWaitValue32_v2) \
  CALL(cuStreamWriteValue32_v2) CALL(cuStreamWaitEvent) CALL(cuEventCreate) CALL(cuEventRecord) \
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor) CALL(cuFuncLoad)
// clang-format on

struct Calls {
#define SLUICE_DECLARE(name) decltype(&::name) name;
  SLUICE_CALLS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
  explicit Calls(const ProgramProcess& process) {
#define SLUICE_FIND(name) name = bind<decltype(&::name)>(process, #name);
    SLUICE_CALLS(SLUICE_FIND)
#undef SLUICE_FIND
  }
};

// A scenario that the simulated card cannot run: said, and the run ends.
[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "sluice-accuracy: a program of the scenario: %s\n", why.c_str());
  std::error_code ignored;
  std::filesystem::remove_all(sim_folder, ignored);
  std::_Exit(1);
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) give_up(std::string(what) + " gave CUDA error " + std::to_string(result));
}

constexpr uint32_t kThreads = 128;
constexpr size_t kMostCopyBytes = 64u << 20;
constexpr size_t kAllCopyBytes = size_t{2} << 30;  // of all streams of a container
constexpr size_t kOrderBytes = 64 << 10;
constexpr uint32_t kOrderEvery = 50;

// What the threads of a process share.
struct Shared {
  World* world;
  ProgramProcess* process;
  Calls calls;
  uint64_t stop_ns = ~0ull;
  std::vector<CUcontext> contexts{};  // by card
  std::vector<CUmodule> modules{};
  uint32_t collective_ranks = 0;
};

std::string kernel_name(size_t container, size_t stream) {
  return "k_" + std::to_string(container) + "_" + std::to_string(stream);
}

bool same(const sim::Cost& a, const sim::Cost& b) {
  return a.kind == b.kind && a.per_block == b.per_block && a.a_ns == b.a_ns && a.b_ns == b.b_ns && a.c == b.c;
}

sim::Cost cost_of(const Distribution& distribution, bool per_block) {
  sim::Cost cost = {};
  cost.per_block = per_block ? 1 : 0;
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
      // The card draws one of two; a list of more is drawn before each launch.
      cost.kind = distribution.choices.size() == 1 ? sim::CostKind::kFixed : sim::CostKind::kChoice;
      cost.a_ns = distribution.choices.front() * 1000;
      cost.b_ns = distribution.choices.back() * 1000;
      cost.c = 1.0 - 1.0 / static_cast<double>(distribution.choices.size());
      break;
  }
  return cost;
}

// The kernel of this cost in a card's own table: by its own name, or, once the table is full, by that of another one
// that costs the same.
std::string put_cost(sim::CardFile& file, const std::string& name, const sim::Cost& cost) {
  for (uint32_t i = 0; i < file.cost_count; ++i) {
    if (name == file.costs[i].name) return name;
  }
  if (file.cost_count < sim::kMaxCosts) {
    sim::CostEntry& entry = file.costs[file.cost_count++];
    std::snprintf(entry.name, sizeof entry.name, "%s", name.c_str());
    entry.cost = cost;
    return name;
  }
  for (const sim::CostEntry& entry : file.costs) {
    if (same(entry.cost, cost)) return entry.name;
  }
  give_up("more than " + std::to_string(sim::kMaxCosts) + " different kernels");
}

void host_function(void*) {}

// One thread with one stream on one card.
class StreamThread {
 public:
  StreamThread(Shared& shared, size_t stream, uint32_t card, std::string kernel, uint32_t rank)
      : shared_(shared),
        calls_(shared.calls),
        fibres_(shared.world->fibres()),
        spec_(shared.world->scenario().containers[shared.process->container].streams[stream]),
        card_(card),
        kernel_(std::move(kernel)),
        rank_(rank),
        // The same draws alone on the card and beside others.
        random_(shared.world->scenario().seed * 1'000'003 + std::hash<std::string>()(container().name) +
                shared.process->ordinal * 131ull + stream + card * 7'777'777ull) {}

  void run() {
    set_up();
    ProgramProcess& process = *shared_.process;
    uint64_t step_began = 0;
    for (uint64_t units = 1; fibres_.now_ns() < shared_.stop_ns; ++units) {
      const uint64_t before = fibres_.now_ns();
      if (step_began == 0) step_began = before;
      launch_unit();
      const uint64_t after = fibres_.now_ns();
      const bool counts = before >= kWarmUpEndNs;
      if (counts) ++process.units;
      const double waited_ms = static_cast<double>(after - before) / 1e6;
      if (counts) process.longest_wait_ms = std::max(process.longest_wait_ms, waited_ms);
      if (spec_.hangs_after != 0 && units == spec_.hangs_after) hang();
      if (spec_.collective_every != 0 && units % spec_.collective_every == 0) launch_collective();
      if (units % kOrderEvery == 0) put_orders();
      bool pause = spec_.sync_every == 0;
      if (spec_.sync_every != 0 && units % spec_.sync_every == 0) {
        copy_out();
        check(calls_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
        if (counts) process.latency_ms.push_back(static_cast<float>(fibres_.now_ns() - step_began) / 1e6f);
        step_began = 0;
        pause = true;
      }
      const double gap_us = pause ? spec_.gap_us.draw(random_) : 0;
      if (gap_us > 0) fibres_.sleep_until(fibres_.now_ns() + static_cast<uint64_t>(gap_us * 1000));
    }
    check(calls_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

 private:
  static constexpr uint64_t kWarmUpEndNs = 3'000'000'000;  // 2 s after the beginning

  const ContainerSpec& container() const { return shared_.world->scenario().containers[shared_.process->container]; }

  void set_up() {
    check(calls_.cuCtxSetCurrent(shared_.contexts[card_]), "cuCtxSetCurrent");
    function_ = function(kernel_);
    check(calls_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    int fit = 0;
    check(calls_.cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, function_, kThreads, 0), "occupancy");
    most_cooperative_ = static_cast<uint32_t>(fit) * static_cast<uint32_t>(shared_.world->card(card_).profile().sms);
    if (spec_.collective_every != 0) {
      // Kernels that wait for each other must be loaded before: loading one waits for those that run.
      collective_ = function("c_" + kernel_);
      check(calls_.cuFuncLoad(function_), "cuFuncLoad");
      check(calls_.cuFuncLoad(collective_), "cuFuncLoad");
    }
    if (spec_.graph_nodes != 0) capture();
    if (spec_.copy_us > 0) make_copies();
    if (spec_.orders) make_orders();
    const Distribution& cost = spec_.kernel_us;
    if (cost.kind == Distribution::Kind::kChoice && cost.choices.size() > 2) {
      sim::CardFile& file = shared_.world->card(card_).file();
      for (uint32_t i = 0; i < file.cost_count; ++i) {
        if (kernel_ == file.costs[i].name) redrawn_ = &file.costs[i].cost;
      }
    }
  }

  CUfunction function(const std::string& name) {
    CUfunction found = nullptr;
    check(calls_.cuModuleGetFunction(&found, shared_.modules[card_], name.c_str()), "cuModuleGetFunction");
    return found;
  }

  void capture() {
    CUgraph graph = nullptr;
    check(calls_.cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (uint32_t i = 0; i < spec_.graph_nodes; ++i) launch_kernel();
    check(calls_.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    check(calls_.cuGraphInstantiateWithFlags(&exec_, graph, 0), "cuGraphInstantiate");
  }

  // One copy takes copy_us; very long ones are made of several.
  void make_copies() {
    const ContainerSpec& container = shared_.world->scenario().containers[shared_.process->container];
    const size_t threads = container.processes * container.streams.size();
    const size_t most = std::max(kOrderBytes, std::min(kMostCopyBytes, kAllCopyBytes / threads));
    const int64_t rate = shared_.world->card(card_).profile().d2h_bytes_per_us;
    copy_bytes_ = static_cast<size_t>(spec_.copy_us * static_cast<double>(rate));
    copies_ = static_cast<uint32_t>((copy_bytes_ + most - 1) / most);
    copy_bytes_ = std::max<size_t>(1, copy_bytes_ / std::max(1u, copies_));
    check(calls_.cuMemAlloc_v2(&on_card_, copy_bytes_), "cuMemAlloc");
    check(calls_.cuMemHostAlloc(&on_host_, copy_bytes_, 0), "cuMemHostAlloc");
  }

  void make_orders() {
    check(calls_.cuMemAlloc_v2(&order_on_card_, kOrderBytes), "cuMemAlloc");
    check(calls_.cuMemHostAlloc(&order_on_host_, kOrderBytes, 0), "cuMemHostAlloc");
    check(calls_.cuStreamCreate(&other_stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(calls_.cuEventCreate(&other_event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }

  uint32_t blocks() {
    const uint32_t drawn = static_cast<uint32_t>(std::max(1.0, std::round(spec_.grid.draw(random_))));
    return spec_.cooperative ? std::min(drawn, most_cooperative_) : drawn;
  }

  void launch_kernel() {
    const uint32_t grid = blocks();
    check(spec_.cooperative
              ? calls_.cuLaunchCooperativeKernel(function_, grid, 1, 1, kThreads, 1, 1, 0, stream_, nullptr)
              : calls_.cuLaunchKernel(function_, grid, 1, 1, kThreads, 1, 1, 0, stream_, nullptr, nullptr),
          "launch");
  }

  void launch_unit() {
    if (redrawn_ != nullptr) {
      redrawn_->kind = sim::CostKind::kFixed;
      redrawn_->a_ns = spec_.kernel_us.draw(random_) * 1000;
    }
    if (exec_ == nullptr) return launch_kernel();
    check(calls_.cuGraphLaunch(exec_, stream_), "cuGraphLaunch");
  }

  void launch_collective() {
    uint64_t id = static_cast<uint64_t>(shared_.process->pid);
    uint32_t ranks = shared_.collective_ranks;
    void* parameters[] = {&id, &rank_, &ranks};
    check(calls_.cuLaunchKernel(collective_, 1, 1, 1, kThreads, 1, 1, 0, stream_, parameters, nullptr), "collective");
  }

  // A kernel that waits for a word that nobody ever writes.
  void hang() {
    CUdeviceptr word = 0;
    check(calls_.cuMemAlloc_v2(&word, 4), "cuMemAlloc");
    void* parameters[] = {&word};
    check(calls_.cuLaunchKernel(function("hang"), 1, 1, 1, kThreads, 1, 1, 0, stream_, parameters, nullptr), "hang");
  }

  void put_orders() {
    if (spec_.host_functions) check(calls_.cuLaunchHostFunc(stream_, host_function, nullptr), "host function");
    if (!spec_.orders) return;
    ++order_;
    check(calls_.cuMemcpyHtoDAsync_v2(order_on_card_, order_on_host_, kOrderBytes, stream_), "cuMemcpyHtoDAsync");
    check(calls_.cuEventRecord(other_event_, other_stream_), "cuEventRecord");
    check(calls_.cuStreamWaitEvent(stream_, other_event_, 0), "cuStreamWaitEvent");
    check(calls_.cuStreamWaitValue32_v2(stream_, order_on_card_ + 4096, order_, CU_STREAM_WAIT_VALUE_GEQ),
          "wait value");
    check(calls_.cuStreamWriteValue32_v2(other_stream_, order_on_card_ + 4096, order_, 0), "write value");
  }

  void copy_out() {
    for (uint32_t i = 0; i < copies_; ++i) {
      check(calls_.cuMemcpyDtoHAsync_v2(on_host_, on_card_, copy_bytes_, stream_), "cuMemcpyDtoHAsync");
    }
  }

  Shared& shared_;
  const Calls& calls_;
  Fibres& fibres_;
  const StreamSpec& spec_;
  uint32_t card_;
  std::string kernel_;
  uint32_t rank_;
  std::mt19937_64 random_;
  CUstream stream_ = nullptr;
  CUstream other_stream_ = nullptr;
  CUevent other_event_ = nullptr;
  CUfunction function_ = nullptr;
  CUfunction collective_ = nullptr;
  CUgraphExec exec_ = nullptr;
  uint32_t most_cooperative_ = 1;
  sim::Cost* redrawn_ = nullptr;
  CUdeviceptr on_card_ = 0;
  void* on_host_ = nullptr;
  size_t copy_bytes_ = 0;
  uint32_t copies_ = 0;
  CUdeviceptr order_on_card_ = 0;
  void* order_on_host_ = nullptr;
  uint32_t order_ = 0;
};

// Names only: costs are in the card's own table.
std::string image_of(sim::CardFile& file, const ContainerSpec& spec, size_t container,
                     std::vector<std::string>& kernels) {
  std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n// sluice kernel hang spin\n";
  std::string entries = ".visible .entry hang(.param .u64 a)\n{\n  ret;\n}\n";
  for (size_t i = 0; i < spec.streams.size(); ++i) {
    const StreamSpec& stream = spec.streams[i];
    kernels.push_back(put_cost(file, kernel_name(container, i), cost_of(stream.kernel_us, stream.per_block)));
    if (entries.find(" " + kernels.back() + "(") == std::string::npos) {
      entries += ".visible .entry " + kernels.back() + "()\n{\n  ret;\n}\n";
    }
    if (stream.collective_every == 0) continue;
    Distribution cost;
    cost.a = stream.collective_us;
    const std::string name = put_cost(file, "c_" + kernels.back(), cost_of(cost, false));
    image += "// sluice kernel " + name + " collective\n";
    entries += ".visible .entry " + name + "(.param .u64 a, .param .u32 b, .param .u32 c)\n{\n  ret;\n}\n";
  }
  return image + entries;
}

}  // namespace

void run_program(World& world, ProgramProcess& process) {
  const ContainerSpec& spec = world.scenario().containers[process.container];
  // Lives as long as the run: stream threads use it.
  Shared* shared = new Shared{&world, &process, Calls(process)};
  sim_folder = world.folder();
  if (spec.stop_s) shared->stop_ns = 1'000'000'000 + static_cast<uint64_t>(*spec.stop_s * 1e9);
  check(shared->calls.cuInit(0), "cuInit");
  shared->contexts.resize(spec.cards);
  shared->modules.resize(spec.cards);
  for (const StreamSpec& stream : spec.streams) {
    if (stream.collective_every != 0) shared->collective_ranks += spec.cards;
  }
  uint32_t rank = 0;
  for (uint32_t card = 0; card < spec.cards; ++card) {
    CUdevice device = 0;
    check(shared->calls.cuDeviceGet(&device, static_cast<int>(card)), "cuDeviceGet");
    check(shared->calls.cuDevicePrimaryCtxRetain(&shared->contexts[card], device), "cuDevicePrimaryCtxRetain");
    check(shared->calls.cuCtxSetCurrent(shared->contexts[card]), "cuCtxSetCurrent");
    std::vector<std::string> kernels;
    const std::string image = image_of(world.card(card).file(), spec, process.container, kernels);
    check(shared->calls.cuModuleLoadData(&shared->modules[card], image.c_str()), "cuModuleLoadData");
    for (size_t i = 0; i < spec.streams.size(); ++i) {
      const uint32_t own = spec.streams[i].collective_every != 0 ? rank++ : 0;
      world.fibres().start(
          process.driver.get(), process.guest.get(),
          [shared, i, card, name = kernels[i], own] { StreamThread(*shared, i, card, name, own).run(); },
          world.fibres().now_ns());
    }
  }
}

}  // namespace sluice::accuracy
