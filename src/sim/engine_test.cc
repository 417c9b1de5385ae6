// The card's timing rules one by one, in virtual time.
#include <gtest/gtest.h>

#include <random>

#include "sim/test_card.h"

namespace sluice::sim {
namespace {

constexpr uint64_t kMs = 1000000;

// Three processes of different habits; returns the log as text. `poll`: the card is looked at at random times too.
std::string mixed_run(uint64_t poll_seed) {
  TestCards cards;
  cards.set(Knob::command_log, 1);
  FibreHost host(normal_costs(), 5);
  auto watcher = cards.open();
  std::mt19937_64 random(poll_seed);
  if (poll_seed != 0) {
    host.on_advance = [&](uint64_t now, uint64_t next) {
      for (int i = static_cast<int>(random() % 4); i > 0; --i) {
        now += random() % (next - now + 1);
        Card::Guard guard(*watcher);
        advance(*watcher, watcher->card_time(now));
      }
    };
  }
  std::vector<std::unique_ptr<Process>> processes;
  const char* kernels[] = {"lognormal", "mixed", "short"};
  for (int p = 0; p < 3; ++p) {
    processes.push_back(std::make_unique<Process>(host, cards.folder(), 100 + p, true, "program"));
    host.start(*processes.back(), [&, p] {
      Program program;
      program.begin();
      CUstream second = nullptr;
      CUevent event = nullptr;
      EXPECT_CUDA(sim_cuStreamCreate(&second, 0));
      EXPECT_CUDA(sim_cuEventCreate(&event, 0));
      for (int i = 0; i < 120; ++i) {
        EXPECT_CUDA(program.launch(kernels[p], program.stream));
        if (i % 7 == p) {
          EXPECT_CUDA(program.launch("narrow", second, 8));
        }
        if (i % 10 == 3) {
          EXPECT_CUDA(sim_cuEventRecord(event, program.stream));
          EXPECT_CUDA(sim_cuStreamWaitEvent(second, event, 0));
          EXPECT_CUDA(program.launch("short", second));
        }
        if (i % 40 == 39) {
          EXPECT_CUDA(sim_cuStreamSynchronize(program.stream));
        }
      }
      EXPECT_CUDA(sim_cuCtxSynchronize());
    });
  }
  host.run();
  EXPECT_TRUE(host.all_ended());
  return LogReader(*watcher).dump();
}

TEST(SimEngine, LogIsTheSameHoweverOftenTheCardIsLookedAt) {
  const std::string plain = mixed_run(0);
  EXPECT_GT(plain.size(), 10000u);
  for (uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(plain, mixed_run(seed)) << "poll seed " << seed;
}

// One program on one card.
class SimTiming : public testing::Test {
 protected:
  void run(std::function<void(Program&)> body, HostCosts costs = free_costs()) {
    FibreHost host(costs, 3);
    host_ = &host;
    Process process(host, cards_.folder(), 42, true, "program");
    host.start(process, [&] {
      Program program;
      program.begin();
      body(program);
    });
    host.run();
    EXPECT_TRUE(host.all_ended());
    host_ = nullptr;
  }
  // Without draws, so that sums can be checked exactly.
  void exact() {
    cards_.set(Knob::duration_jitter_ppm, 0);
    cards_.set(Knob::gap_min_ns, 1500);
    cards_.set(Knob::gap_max_ns, 1500);
    cards_.set(Knob::visible_min_ns, 3000);
    cards_.set(Knob::visible_max_ns, 3000);
    cards_.set(Knob::event_grain_ns, 1);
    cards_.set(Knob::clock_drift_ppb, 0);
    cards_.set(Knob::command_log, 1);
  }
  std::vector<CommandPoint> commands(CommandKind kind) {
    auto card = cards_.open();
    std::vector<CommandPoint> found;
    const LogReader log(*card);
    for (const CommandPoint& c : log.commands()) {
      if (c.kind == kind) found.push_back(c);
    }
    return found;
  }
  TestCards cards_;
  FibreHost* host_ = nullptr;
};

TEST_F(SimTiming, KernelsOfAStreamFollowWithAGap) {
  exact();
  run([](Program& p) {
    for (int i = 0; i < 3; ++i) ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
  });
  const auto kernels = commands(CommandKind::kKernel);
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0].started_ns, kernels[0].submitted_ns + 3000);
  for (const auto& k : kernels) EXPECT_EQ(k.ended_ns - k.started_ns, 20000u);
  EXPECT_EQ(kernels[1].started_ns, kernels[0].ended_ns + 1500);
  EXPECT_EQ(kernels[2].started_ns, kernels[1].ended_ns + 1500);
}

TEST_F(SimTiming, OccupiedTimeIncludesGapsButNotMarkers) {
  exact();
  run([](Program& p) {
    CUevent event = nullptr;
    ASSERT_CUDA(sim_cuEventCreate(&event, 0));
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuEventRecord(event, p.stream));
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
  });
  auto card = cards_.open();
  const LogReader log(*card);
  EXPECT_EQ(log.executing_ns(Index{2}, 0, log.now_ns()), 60000u);
  EXPECT_EQ(log.occupied_ns(Index{2}, 0, log.now_ns()), 60000u + 1500 + 1500);
  EXPECT_EQ(log.occupied_ns(Index{1}, 0, log.now_ns()), 63000u);
}

TEST_F(SimTiming, EventsAreStampedWhenProcessedAndRoundedToTheGrain) {
  exact();
  cards_.set(Knob::event_grain_ns, 500);
  run([](Program& p) {
    CUevent a = nullptr, b = nullptr, untimed = nullptr, never = nullptr;
    ASSERT_CUDA(sim_cuEventCreate(&a, 0));
    ASSERT_CUDA(sim_cuEventCreate(&b, 0));
    ASSERT_CUDA(sim_cuEventCreate(&never, 0));
    ASSERT_CUDA(sim_cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    float ms = 0;
    EXPECT_EQ(sim_cuEventElapsedTime(&ms, a, never), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_CUDA(sim_cuEventQuery(never));
    ASSERT_CUDA(sim_cuEventRecord(a, p.stream));
    ASSERT_CUDA(p.launch("long", p.stream));
    ASSERT_CUDA(sim_cuEventRecord(b, p.stream));
    ASSERT_CUDA(sim_cuEventRecord(untimed, p.stream));
    EXPECT_EQ(sim_cuEventQuery(b), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(sim_cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
    ASSERT_CUDA(sim_cuEventSynchronize(b));
    EXPECT_CUDA(sim_cuEventQuery(b));
    EXPECT_EQ(sim_cuEventElapsedTime(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CUDA(sim_cuEventElapsedTime(&ms, a, b));
    // From the end of one marker to the end of the next: gap, kernel, marker.
    EXPECT_NEAR(ms, 5.0025, 0.0006);
    EXPECT_NEAR(ms * 2000, std::round(ms * 2000), 0.01);
  });
}

TEST_F(SimTiming, DeviceClockDriftsAgainstTheHost) {
  exact();
  cards_.set(Knob::clock_drift_ppb, 20000);
  run([this](Program& p) {
    CUevent a = nullptr, b = nullptr;
    ASSERT_CUDA(sim_cuEventCreate(&a, 0));
    ASSERT_CUDA(sim_cuEventCreate(&b, 0));
    ASSERT_CUDA(sim_cuEventRecord(a, p.stream));
    host_->wait_until(host_->now_ns() + 10000 * kMs, WaitMode::kSpin);
    ASSERT_CUDA(sim_cuEventRecord(b, p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    float ms = 0;
    ASSERT_CUDA(sim_cuEventElapsedTime(&ms, a, b));
    EXPECT_NEAR(ms, 10000.2, 0.01);
  });
}

TEST_F(SimTiming, SmallKernelsOfDifferentStreamsOverlapWhileMultiprocessorsAreFree) {
  exact();
  run([](Program& p) {
    CUstream other = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CUDA(p.launch("narrow", p.stream, 8));
    ASSERT_CUDA(p.launch("narrow", other, 8));
    ASSERT_CUDA(sim_cuCtxSynchronize());
    ASSERT_CUDA(p.launch("narrow", p.stream, 1 << 16));
    ASSERT_CUDA(p.launch("narrow", other, 1 << 16));
    ASSERT_CUDA(sim_cuCtxSynchronize());
  });
  const auto k = commands(CommandKind::kKernel);
  ASSERT_EQ(k.size(), 4u);
  EXPECT_EQ(k[0].started_ns, k[1].started_ns);
  EXPECT_EQ(k[3].started_ns, k[2].ended_ns);
}

TEST_F(SimTiming, BlocksAndWavesDecideTheDuration) {
  exact();
  run([](Program& p) {
    for (const unsigned blocks : {1u, 108u, 109u, 1080u}) ASSERT_CUDA(p.launch("waves", p.stream, blocks));
    ASSERT_CUDA(sim_cuCtxSynchronize());
  });
  const auto k = commands(CommandKind::kKernel);
  ASSERT_EQ(k.size(), 4u);
  const uint64_t expected[] = {10000, 10000, 20000, 100000};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(k[i].duration_ns, expected[i]);
}

TEST_F(SimTiming, TheLegacyStreamIsABarrierForMarkersToo) {
  exact();
  run([](Program& p) {
    CUstream blocking = nullptr;
    CUevent event = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&blocking, 0));
    ASSERT_CUDA(sim_cuEventCreate(&event, 0));
    ASSERT_CUDA(p.launch("narrow", blocking, 8));
    ASSERT_CUDA(sim_cuEventRecord(event, nullptr));
    ASSERT_CUDA(p.launch("narrow", blocking, 8));
    ASSERT_CUDA(p.launch("narrow", p.stream, 8));
    ASSERT_CUDA(sim_cuCtxSynchronize());
  });
  const auto k = commands(CommandKind::kKernel);
  const auto m = commands(CommandKind::kMarker);
  ASSERT_EQ(k.size(), 3u);
  ASSERT_EQ(m.size(), 1u);
  EXPECT_GE(m[0].started_ns, k[0].ended_ns + 0);
  uint64_t after_barrier = 0, free_stream = kNever;
  for (const auto& c : k) {
    after_barrier = std::max(after_barrier, c.started_ns);
    free_stream = std::min(free_stream, c.started_ns);
  }
  EXPECT_GE(after_barrier, m[0].ended_ns);
  EXPECT_LT(free_stream, m[0].started_ns);
}

TEST_F(SimTiming, PrioritiesDecideInsideAContext) {
  exact();
  run([this](Program& p) {
    CUstream low = nullptr, high = nullptr;
    ASSERT_CUDA(sim_cuStreamCreateWithPriority(&low, CU_STREAM_NON_BLOCKING, 0));
    ASSERT_CUDA(sim_cuStreamCreateWithPriority(&high, CU_STREAM_NON_BLOCKING, -5));
    ASSERT_CUDA(p.launch("long", p.stream));
    host_->wait_until(host_->now_ns() + kMs, WaitMode::kSpin);
    ASSERT_CUDA(p.launch("short", low));
    ASSERT_CUDA(p.launch("narrow", high));
    ASSERT_CUDA(sim_cuCtxSynchronize());
  });
  const auto k = commands(CommandKind::kKernel);
  ASSERT_EQ(k.size(), 3u);
  EXPECT_EQ(k[1].duration_ns, 100000u);  // the later one of higher priority came first
  EXPECT_EQ(k[2].duration_ns, 20000u);
}

TEST_F(SimTiming, AFullQueueBlocksTheLaunchWithItsContextLocked) {
  exact();
  cards_.set(Knob::queue_depth, 16);
  FibreHost host(normal_costs(), 3);
  Process process(host, cards_.folder(), 42, true, "program");
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  uint64_t blocked_for = 0, query_took = 0;
  host.start(process, [&] {
    Program p;
    p.begin();
    context = p.context;
    stream = p.stream;
    ASSERT_CUDA(sim_cuEventCreate(&event, 0));
    ASSERT_CUDA(sim_cuEventRecord(event, p.stream));
    for (int i = 0; i < 16; ++i) {
      const uint64_t before = host.now_ns();
      ASSERT_CUDA(p.launch("long", p.stream));
      blocked_for = std::max(blocked_for, host.now_ns() - before);
    }
    ASSERT_CUDA(sim_cuCtxSynchronize());
    EXPECT_LT(blocked_for, 10000u);
    for (int i = 0; i < 17; ++i) {
      const uint64_t before = host.now_ns();
      ASSERT_CUDA(p.launch("long", p.stream));
      blocked_for = std::max(blocked_for, host.now_ns() - before);
    }
  });
  host.start(process, [&] {
    while (stream == nullptr || event == nullptr) host.wait_until(host.now_ns() + kMs, WaitMode::kSpin);
    EXPECT_CUDA(sim_cuCtxSetCurrent(context));
    for (int i = 0; i < 400; ++i) {
      const uint64_t before = host.now_ns();
      sim_cuEventQuery(event);
      query_took = std::max(query_took, host.now_ns() - before);
      host.wait_until(host.now_ns() + 300000, WaitMode::kSpin);
    }
  });
  host.run();
  EXPECT_GT(blocked_for, 4 * kMs);
  EXPECT_GT(query_took, 3 * kMs);
}

TEST_F(SimTiming, ContextsTakeTheCardInSlicesAndSwitchesAreLoggedApart) {
  exact();
  cards_.set(Knob::switch_ns, 50000);
  FibreHost host(free_costs(), 3);
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 2; ++i) {
    processes.push_back(std::make_unique<Process>(host, cards_.folder(), 100 + i, true, "program"));
    host.start(*processes.back(), [] {
      Program p;
      p.begin();
      for (int k = 0; k < 20; ++k) ASSERT_CUDA(p.launch("long", p.stream));
      ASSERT_CUDA(sim_cuCtxSynchronize());
    });
  }
  host.run();
  auto card = cards_.open();
  const LogReader log(*card);
  const uint64_t from = 50 * kMs, to = 150 * kMs;
  const uint64_t a = log.executing_ns(log.of_pid(100), from + 1000 * kMs, to + 1000 * kMs),
                 b = log.executing_ns(log.of_pid(101), from + 1000 * kMs, to + 1000 * kMs);
  EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), 1.1e6);
  // 1.024 ms of work, 0.05 ms of switching.
  EXPECT_NEAR(static_cast<double>(a + b), 100e6 * 1.024 / 1.074, 1.5e6);
  uint64_t switching = 0;
  for (const LogSwitch& s : log.switches()) {
    if (s.time_ns >= from + 1000 * kMs && s.time_ns < to + 1000 * kMs) switching += s.duration_ns;
  }
  EXPECT_NEAR(static_cast<double>(switching), 100e6 * 0.05 / 1.074, 0.3e6);
  std::vector<Index> both = log.of_pid(100);
  for (const Index i : log.of_pid(101)) both.push_back(i);
  EXPECT_NEAR(static_cast<double>(log.occupied_ns(both, from + 1000 * kMs, to + 1000 * kMs)), 100e6, 0.3e6);
}

TEST_F(SimTiming, GraphsRunNodesWithASmallGapOneLaunchAtATime) {
  exact();
  run([](Program& p) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUstream other = nullptr;
    ASSERT_CUDA(sim_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CUDA(sim_cuStreamBeginCapture_v2(p.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 10; ++i) ASSERT_CUDA(p.launch("short", p.stream, 8));
    ASSERT_CUDA(sim_cuStreamEndCapture(p.stream, &graph));
    ASSERT_CUDA(sim_cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_CUDA(sim_cuGraphLaunch(exec, p.stream));
    ASSERT_CUDA(sim_cuGraphLaunch(exec, other));
    ASSERT_CUDA(sim_cuCtxSynchronize());
  });
  const auto g = commands(CommandKind::kGraph);
  ASSERT_EQ(g.size(), 2u);
  EXPECT_EQ(g[0].duration_ns, 10 * 20000u + 9 * 700u);
  EXPECT_GE(g[1].started_ns, g[0].ended_ns);
  auto card = cards_.open();
  const LogReader log(*card);
  EXPECT_NEAR(static_cast<double>(log.executing_ns(Index{2}, 0, log.now_ns())), 400000, 20);
}

TEST_F(SimTiming, PageableCopiesBlockPinnedOnesDoNot) {
  run([this](Program& p) {
    constexpr size_t kBytes = 24 << 20;
    std::vector<char> pageable(kBytes, 'x');
    void* pinned = nullptr;
    CUdeviceptr device = 0;
    ASSERT_CUDA(sim_cuMemHostAlloc(&pinned, kBytes, 0));
    ASSERT_CUDA(sim_cuMemAlloc_v2(&device, kBytes));
    uint64_t before = host_->now_ns();
    ASSERT_CUDA(sim_cuMemcpyHtoDAsync_v2(device, pinned, kBytes, p.stream));
    EXPECT_LT(host_->now_ns() - before, 100000u);
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    before = host_->now_ns();
    ASSERT_CUDA(sim_cuMemcpyHtoDAsync_v2(device, pageable.data(), kBytes, p.stream));
    EXPECT_GT(host_->now_ns() - before, kBytes / 25000 * 1000 / 2);
    EXPECT_CUDA(sim_cuStreamQuery(p.stream));
    std::vector<char> back(kBytes);
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(back.data(), device, kBytes));
    EXPECT_EQ(back, pageable);
  });
}

TEST_F(SimTiming, SpinKernelsEndWhenTheHostWrites) {
  run([this](Program& p) {
    void* word = nullptr;
    ASSERT_CUDA(sim_cuMemHostAlloc(&word, 4096, 0));
    auto* flag = static_cast<volatile uint32_t*>(word);
    ASSERT_CUDA(p.launch("spinner", p.stream, 1, reinterpret_cast<uint64_t>(word)));
    host_->wait_until(host_->now_ns() + 5 * kMs, WaitMode::kSpin);
    EXPECT_EQ(sim_cuStreamQuery(p.stream), CUDA_ERROR_NOT_READY);
    *flag = 1;
    const uint64_t before = host_->now_ns();
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_LT(host_->now_ns() - before, 200000u);
  });
  auto card = cards_.open();
  const LogReader log(*card);
  EXPECT_GT(log.executing_ns(Index{2}, 0, log.now_ns()), 4900000u);
}

TEST_F(SimTiming, StreamsWaitForValuesThatOthersWrite) {
  run([this](Program& p) {
    CUstream writer = nullptr;
    CUdeviceptr word = 0;
    ASSERT_CUDA(sim_cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    ASSERT_CUDA(sim_cuMemAlloc_v2(&word, 64));
    ASSERT_CUDA(sim_cuMemsetD32_v2(word, 0, 16));
    ASSERT_CUDA(sim_cuCtxSynchronize());
    ASSERT_CUDA(sim_cuStreamWaitValue32_v2(p.stream, word, 7, CU_STREAM_WAIT_VALUE_GEQ));
    ASSERT_CUDA(p.launch("short", p.stream));
    host_->wait_until(host_->now_ns() + 2 * kMs, WaitMode::kSpin);
    EXPECT_EQ(sim_cuStreamQuery(p.stream), CUDA_ERROR_NOT_READY);
    ASSERT_CUDA(sim_cuStreamWriteValue32_v2(writer, word, 7, 0));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    uint32_t value = 0;
    ASSERT_CUDA(sim_cuMemcpyDtoH_v2(&value, word, 4));
    EXPECT_EQ(value, 7u);
  });
}

TEST_F(SimTiming, HostFunctionsRunInOrderOnAnotherThread) {
  run([](Program& p) {
    static std::vector<int> order;
    static CUresult inside = CUDA_SUCCESS;
    order.clear();
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuLaunchHostFunc(
        p.stream,
        [](void*) {
          order.push_back(1);
          size_t a = 0, b = 0;
          inside = sim_cuMemGetInfo_v2(&a, &b);
        },
        nullptr));
    ASSERT_CUDA(sim_cuLaunchHostFunc(p.stream, [](void*) { order.push_back(2); }, nullptr));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  });
}

TEST(SimCollective, EndsWhenAllRanksHaveBegun) {
  TestCards cards("A100-40GB", 2);
  FibreHost host(normal_costs(), 3);
  std::vector<std::unique_ptr<Process>> ranks;
  uint64_t ended[2] = {}, late = 0;
  for (uint32_t r = 0; r < 2; ++r) {
    ranks.push_back(std::make_unique<Process>(host, cards.folder(), 100 + static_cast<int>(r), true, "rank"));
    host.start(*ranks.back(), [&, r] {
      Program p;
      p.begin(0, static_cast<CUdevice>(r));
      if (r == 1) host.wait_until(host.now_ns() + 20 * kMs, WaitMode::kSpin);
      if (r == 1) late = host.now_ns();
      uint64_t id = 5;
      uint32_t rank = r, count = 2;
      void* parameters[] = {&id, &rank, &count};
      for (int round = 0; round < 3; ++round) {
        ASSERT_CUDA(sim_cuLaunchKernel(p.function("reduce"), 8, 1, 1, 256, 1, 1, 0, p.stream, parameters, nullptr));
      }
      ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
      ended[r] = host.now_ns();
    });
  }
  host.run();
  ASSERT_TRUE(host.all_ended());
  EXPECT_GT(ended[0], late);
  EXPECT_GT(ended[1], late + 90000);
  EXPECT_LT(ended[1], late + 2 * kMs);
}

}  // namespace
}  // namespace sluice::sim
