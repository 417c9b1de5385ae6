// Processes that die at any instant, real ones: the card stays usable, what they held comes back.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <random>

#include "sim/test_card.h"

namespace sluice::sim {
namespace {

void sleep_us(long us) {
  const timespec t{us / 1000000, us % 1000000 * 1000};
  nanosleep(&t, nullptr);
}

uint64_t monotonic() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

// A child that hammers the card until it is killed.
pid_t start_hammer(const std::string& folder) {
  const pid_t child = fork();
  if (child != 0) return child;
  setenv("SLUICE_SIM_DIR", folder.c_str(), 1);
  Program p;
  if (sim_cuInit(0) != CUDA_SUCCESS || sim_cuCtxCreate_v2(&p.context, 0, 0) != CUDA_SUCCESS) _exit(3);
  if (sim_cuModuleLoadData(&p.module, kTestImage) != CUDA_SUCCESS || sim_cuStreamCreate(&p.stream, 0) != CUDA_SUCCESS)
    _exit(4);
  CUfunction f = nullptr;
  if (sim_cuModuleGetFunction(&f, p.module, "short") != CUDA_SUCCESS) _exit(5);
  for (;;) {
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    uint64_t argument = 0;
    void* params[] = {&argument};
    sim_cuMemAlloc_v2(&memory, 32 << 20);
    sim_cuEventCreate(&event, 0);
    for (int i = 0; i < 20; ++i) sim_cuLaunchKernel(f, 64, 1, 1, 64, 1, 1, 0, p.stream, params, nullptr);
    sim_cuEventRecord(event, p.stream);
    sim_cuEventQuery(event);
    sim_cuEventDestroy_v2(event);
    sim_cuMemFree_v2(memory);
  }
}

TEST(SimRobustness, KillsAtRandomLeaveTheCardWhole) {
  TestCards cards("A100-40GB", 1, 0);
  cards.set(Knob::teardown_delay_ns, 5000000);
  std::mt19937_64 random(11);
  // On a machine with little time to spare children are killed before they have begun: then some live longer.
  const auto done = [&] { return cards.open()->header().commands_done; };
  for (int round = 0; round < 40 || (round < 100 && done() <= 100); ++round) {
    pid_t children[2];
    for (pid_t& c : children) c = start_hammer(cards.folder());
    sleep_us((round < 40 ? 3000 : 60000) + static_cast<long>(random() % 15000));
    for (const pid_t c : children) {
      kill(c, SIGKILL);
      int status = 0;
      waitpid(c, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    }
  }
  auto card = cards.open();
  for (int i = 0; i < 100 && card->header().used_bytes != 0; ++i) {
    sleep_us(2000);
    Card::Guard guard(*card);
    advance(*card, card->card_time(monotonic()));
    card->reap();
  }
  Card::Guard guard(*card);
  const CardHeader& h = card->header();
  EXPECT_EQ(h.used_bytes, 0u);
  EXPECT_EQ(h.tables.processes.live, 0u);
  EXPECT_EQ(h.tables.contexts.live, 0u);
  EXPECT_EQ(h.tables.streams.live, 0u);
  EXPECT_EQ(h.tables.commands.live, 0u);
  EXPECT_EQ(h.tables.blocks.live, 0u);
  EXPECT_EQ(h.tables.events.live, 0u);
  EXPECT_EQ(h.active_contexts, kNone);
  EXPECT_GT(h.commands_done, 100u);
  RecordProperty("repairs", static_cast<int>(h.repairs));
}

// Dying inside a transaction: the lock is taken over and the transaction undone.
TEST(SimRobustness, AnOwnerThatDiesWithTheLockIsUndone) {
  TestCards cards("A100-40GB", 1, 0);
  auto card = cards.open();
  {
    Card::Guard guard(*card);
    EXPECT_NE(card->attach_process(77, false, "before"), kNone);
  }
  const pid_t child = fork();
  if (child == 0) {
    auto own = cards.open();
    own->lock();
    const Index p = own->attach_process(1, false, "half");
    make_context(*own, p, 0);
    own->allocate_block(p, kNone, 1 << 30, BlockKind::kDevice);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_NE(card->file().lock, 0u);
  const uint64_t before = monotonic();
  Card::Guard guard(*card);
  EXPECT_LT(monotonic() - before, 2'000'000'000u);  // a busy machine; a lock that is not taken over waits for ever
  EXPECT_EQ(card->header().used_bytes, 0u);
  EXPECT_EQ(card->header().tables.processes.live, 1u);
  EXPECT_EQ(card->header().tables.contexts.live, 0u);
  EXPECT_EQ(card->header().repairs, 1u);
}

TEST(SimRobustness, MemoryOfTheDeadStaysForTheTeardownDelay) {
  TestCards cards;
  cards.set(Knob::teardown_delay_ns, 200000000);
  FibreHost host(free_costs(), 3);
  Process victim(host, cards.folder(), 50, true, "victim"), witness(host, cards.folder(), 51, true, "witness");
  host.start(victim, [] {
    Program p;
    p.begin();
    CUdeviceptr memory = 0;
    ASSERT_CUDA(sim_cuMemAlloc_v2(&memory, size_t{30} << 30));
    for (int i = 0; i < 100; ++i) ASSERT_CUDA(p.launch("long", p.stream));
  });
  host.run(2000000000);
  victim.kill();
  host.drop_process(victim);
  size_t at_once = 0, later = 0;
  host.start(witness, [&] {
    Program p;
    p.begin();
    size_t total = 0;
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&at_once, &total));
    // The engine is free at once, the memory is not.
    const uint64_t before = host.now_ns();
    ASSERT_CUDA(p.launch("short", p.stream));
    ASSERT_CUDA(sim_cuStreamSynchronize(p.stream));
    EXPECT_LT(host.now_ns() - before, 1000000u);
    host.wait_until(host.now_ns() + 210000000, WaitMode::kSpin);
    ASSERT_CUDA(sim_cuMemGetInfo_v2(&later, &total));
  });
  host.run();
  EXPECT_EQ(later - at_once, (size_t{30} << 30) + (size_t{406} << 20) + (2 << 20));
}

TEST(SimRobustness, AForkedChildIsNotInitialised) {
  TestCards cards("A100-40GB", 1, 0);
  const pid_t program = fork();
  if (program == 0) {
    setenv("SLUICE_SIM_DIR", cards.folder().c_str(), 1);
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    if (sim_cuInit(0) != CUDA_SUCCESS || sim_cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) _exit(1);
    if (sim_cuMemAlloc_v2(&memory, 64 << 20) != CUDA_SUCCESS) _exit(2);
    const pid_t child = fork();
    if (child == 0) {
      const bool refused =
          sim_cuMemAlloc_v2(&memory, 1) == CUDA_ERROR_NOT_INITIALIZED && sim_cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
      if (!refused) _exit(9);
      // Outlives its parent: must not keep the parent's record alive.
      sleep_us(700000);
      _exit(0);
    }
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(program, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  cards.set(Knob::teardown_delay_ns, 1000000);
  auto card = cards.open();
  bool freed = false;
  for (int i = 0; i < 100 && !freed; ++i) {
    sleep_us(3000);
    Card::Guard guard(*card);
    card->reap();
    advance(*card, card->card_time(monotonic()));
    freed = card->header().used_bytes == 0;
  }
  EXPECT_TRUE(freed) << "the sleeping child keeps the dead parent's memory";
}

}  // namespace
}  // namespace sluice::sim
