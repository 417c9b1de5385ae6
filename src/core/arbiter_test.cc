// The arbiter against a plain model of containers: each is a program that always (or sometimes) has kernels of one
// length to run, a credit that grows with its quota and falls by what it ran, and a gate that it obeys. Steps of 10 us.
#include "core/arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::core {
namespace {

constexpr uint64_t kStepNs = 10'000;
constexpr uint64_t kSecondNs = 1'000'000'000;

struct Program {
  uint32_t permille = 0;
  uint64_t kernel_ns = 100'000;
  uint64_t busy_from_ns = 0;    // has work from here ..
  uint64_t busy_to_ns = ~0ull;  // .. to here
  bool high_priority = false;
  bool hangs = false;  // once it runs, its kernel never ends
  bool asks_while_hung = false;
  bool lies = false;            // says it waits, never launches
  uint64_t says_unit_ns = 0;    // what it calls its longest unit; 0: the truth
  bool ignores_credit = false;  // its account is as it likes

  double credit_ns = 0;
  uint64_t running_ns = 0;  // of the present kernel that is left
  uint64_t ran_ns = 0;
  uint64_t due_ns = 0;  // of the present kernel, when it began
  bool hung = false;
};

class Model {
 public:
  explicit Model(ComputePolicy policy, std::vector<Program> programs) : programs_(std::move(programs)) {
    arbiter_.set_policy(policy);
    policy_ = policy;
    for (size_t i = 0; i < programs_.size(); ++i) {
      arbiter_.put(i, programs_[i].permille, 1, programs_[i].high_priority);
    }
    gates_.resize(programs_.size());
  }

  void run(uint64_t until_ns) {
    for (; now_ns_ < until_ns; now_ns_ += kStepNs) step();
  }

  double share(size_t i) const {
    return static_cast<double>(programs_[i].ran_ns) / static_cast<double>(now_ns_ - from_ns_);
  }
  double card_busy() const { return static_cast<double>(card_ns_) / static_cast<double>(now_ns_ - from_ns_); }
  void forget() {
    from_ns_ = now_ns_;
    card_ns_ = 0;
    for (Program& program : programs_) program.ran_ns = 0;
  }
  Arbiter& arbiter() { return arbiter_; }
  Program& program(size_t i) { return programs_[i]; }
  uint64_t now_ns() const { return now_ns_; }
  uint64_t overlap_ns() const { return overlap_ns_; }
  const GateDecision& gate(size_t i) const { return gates_[i]; }

 private:
  void step() {
    int running = 0;
    for (size_t i = 0; i < programs_.size(); ++i) {
      Program& program = programs_[i];
      const bool work = now_ns_ >= program.busy_from_ns && now_ns_ < program.busy_to_ns;
      const double quota = program.permille / 1000.0;
      program.credit_ns += quota * kStepNs;
      if (!work) program.credit_ns = std::min(program.credit_ns, 30e6);
      const GateDecision& gate = gates_[i];
      const bool open = !gate.turns || gate.open;
      const bool credit = program.permille == 0 || program.ignores_credit || program.credit_ns > 0 || gate.lent;
      const uint64_t left = gate.turns && gate.turn_end_ns > now_ns_ ? gate.turn_end_ns - now_ns_ : 0;
      const bool fits =
          !gate.turns || left >= program.kernel_ns || (program.kernel_ns > 1'000'000 && left >= 3'000'000);
      if (program.running_ns == 0 && !program.hung && work && open && credit && fits && !program.lies) {
        program.running_ns = program.kernel_ns;
        program.due_ns = now_ns_ + program.kernel_ns;
        program.hung = program.hangs;
      }
      if (program.running_ns != 0 || program.hung) {
        ++running;
        const uint64_t part = std::min(program.running_ns, kStepNs);
        program.running_ns -= part;
        program.ran_ns += program.hung ? kStepNs : part;
        program.credit_ns -= static_cast<double>(program.hung ? kStepNs : part);
        if (policy_ == ComputePolicy::kBurst) program.credit_ns = std::max(program.credit_ns, -6e6);
      }
      ContainerView view;
      view.attached = true;
      view.waiting = work && program.running_ns == 0 && !program.hung;
      view.dirty = program.running_ns != 0 || program.hung;
      if (program.running_ns != 0 && work) view.waiting = !fits || !credit || !open;
      view.dirty_processes = view.dirty ? 1 : 0;
      view.due_ns = program.due_ns;
      view.waiting = view.waiting || (program.hung && program.asks_while_hung);
      view.blocked_by_turn = view.waiting && gate.turns && gate.open && !fits;
      view.blocked_by_credit = view.waiting && !credit;
      view.resume_ns =
          credit ? 0 : now_ns_ + static_cast<uint64_t>((500'000 - program.credit_ns) / std::max(quota, 1e-3));
      view.predicted_drain_ns = now_ns_ + program.running_ns;
      view.longest_unit_ns = program.says_unit_ns != 0 ? program.says_unit_ns : program.kernel_ns;
      views_.resize(programs_.size());
      views_[i] = view;
    }
    if (running > 0) card_ns_ += kStepNs;
    if (running > 1) overlap_ns_ += kStepNs;
    gates_ = arbiter_.step(now_ns_ + kStepNs, views_).gates;
    int open = 0;
    for (const GateDecision& gate : gates_) open += gate.turns && gate.open ? 1 : 0;
    EXPECT_LE(open, 1);
  }

  std::vector<Program> programs_;
  std::vector<GateDecision> gates_;
  std::vector<ContainerView> views_;
  Arbiter arbiter_;
  ComputePolicy policy_;
  uint64_t now_ns_ = kSecondNs;
  uint64_t from_ns_ = kSecondNs;
  uint64_t card_ns_ = 0;
  uint64_t overlap_ns_ = 0;
};

Program capped(uint32_t permille, uint64_t kernel_ns = 100'000) {
  Program program;
  program.permille = permille;
  program.kernel_ns = kernel_ns;
  return program;
}

TEST(Shares, PoliciesMakeCeilings) {
  const std::vector<ShareRequest> requests = {{300, 1, false}, {0, 1, false}, {500, 2, false}};
  EXPECT_EQ(shares_of(ComputePolicy::kFair, 20, requests), (std::vector<uint32_t>{50, 50, 50}));
  EXPECT_EQ(shares_of(ComputePolicy::kPreemptive, 20, requests), (std::vector<uint32_t>{333, 333, 333}));
  EXPECT_EQ(shares_of(ComputePolicy::kWeighted, 20, requests), (std::vector<uint32_t>{250, 250, 500}));
  EXPECT_EQ(shares_of(ComputePolicy::kFixed, 20, requests), (std::vector<uint32_t>{300, 0, 500}));
  EXPECT_EQ(shares_of(ComputePolicy::kBurst, 20, requests), (std::vector<uint32_t>{300, 0, 500}));
  EXPECT_EQ(shares_of(ComputePolicy::kNative, 20, requests), (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(shares_of(ComputePolicy::kPreemptive, 20, std::vector<ShareRequest>{{0, 1, false}}),
            (std::vector<uint32_t>{0}));
  for (ComputePolicy policy : {ComputePolicy::kFair, ComputePolicy::kPreemptive, ComputePolicy::kWeighted,
                               ComputePolicy::kFixed, ComputePolicy::kBurst, ComputePolicy::kNative}) {
    std::vector<ShareRequest> one_unlimited = requests;
    one_unlimited[0].unlimited = true;
    std::vector<uint32_t> wanted = shares_of(policy, 20, requests);
    wanted[0] = 0;
    EXPECT_EQ(shares_of(policy, 20, one_unlimited), wanted);
  }
}

struct Mix {
  std::vector<uint32_t> permille;
  std::vector<uint64_t> kernel_ns;
};

TEST(Arbiter, SaturatedMixesGetTheirShares) {
  const std::vector<Mix> mixes = {
      {{300, 500}, {100'000, 100'000}},
      {{700, 300}, {100'000, 100'000}},
      {{700, 300}, {20'000, 900'000}},
      {{200, 300, 500}, {50'000, 200'000, 1'000'000}},
      {{250, 250, 250, 250}, {10'000, 70'000, 330'000, 990'000}},
  };
  for (const Mix& mix : mixes) {
    std::vector<Program> programs;
    uint32_t sum = 0;
    for (size_t i = 0; i < mix.permille.size(); ++i) {
      programs.push_back(capped(mix.permille[i], mix.kernel_ns[i]));
      sum += mix.permille[i];
    }
    Model model(ComputePolicy::kFixed, programs);
    model.run(3 * kSecondNs);
    model.forget();
    for (int second = 0; second < 3; ++second) {
      model.run(model.now_ns() + kSecondNs);
      for (size_t i = 0; i < programs.size(); ++i) {
        EXPECT_NEAR(model.share(i), mix.permille[i] / 1000.0, 0.01) << "sum " << sum << " container " << i;
      }
      if (sum == 1000) {
        EXPECT_GT(model.card_busy(), 0.985);
      }
      model.forget();
    }
    EXPECT_LT(model.overlap_ns(), 2'000'000u);
  }
}

TEST(Arbiter, AnUncappedContainerGetsWhatTheCappedLeave) {
  Model model(ComputePolicy::kFixed, {capped(300), capped(0)});
  model.run(3 * kSecondNs);
  model.forget();
  model.run(6 * kSecondNs);
  EXPECT_NEAR(model.share(0), 0.30, 0.01);
  EXPECT_GT(model.share(1), 0.68);
}

TEST(Arbiter, NoTurnsForOneAloneOrWithoutShares) {
  Model alone(ComputePolicy::kFixed, {capped(300), capped(500)});
  alone.program(1).busy_to_ns = 0;
  alone.run(2 * kSecondNs);
  EXPECT_EQ(alone.arbiter().counters(0).turns, 0u);
  Model uncapped(ComputePolicy::kFixed, {capped(0), capped(0)});
  uncapped.run(2 * kSecondNs);
  EXPECT_EQ(uncapped.arbiter().counters(0).turns, 0u);
  Model native(ComputePolicy::kNative, {capped(300), capped(500)});
  native.run(2 * kSecondNs);
  EXPECT_EQ(native.arbiter().counters(0).turns, 0u);
}

TEST(Arbiter, AHungContainerDoesNotStopTheOthers) {
  Model model(ComputePolicy::kFixed, {capped(300), capped(500)});
  model.program(1).hangs = true;
  model.program(1).busy_from_ns = 1'300'000'000;
  model.run(2 * kSecondNs);
  model.forget();
  model.run(4 * kSecondNs);
  EXPECT_NEAR(model.share(0), 0.30, 0.01);
  EXPECT_GT(model.arbiter().counters(1).overlap_ns, kSecondNs) << "what it ran beside others is on its account";
}

TEST(Arbiter, ATurnThatDoesNotGetOnEndsAtOnceAndTheOthersAreTold) {
  // It has the card until its tag is spent, tens of milliseconds, unless it is seen that its kernel should have ended.
  Model model(ComputePolicy::kFixed, {capped(300), capped(500)});
  model.program(1).hangs = true;
  model.program(1).asks_while_hung = true;
  model.program(1).busy_from_ns = 1'300'000'000;
  model.run(1'300'000'000);
  EXPECT_EQ(model.gate(0).beside, 0u);
  model.run(2 * kSecondNs);
  EXPECT_LE(model.arbiter().counters(0).longest_wait_ns, 16'000'000u);
  EXPECT_EQ(model.gate(0).beside, 1u) << "the hung kernel runs beside it";
  EXPECT_EQ(model.gate(1).beside, 0u);
}

TEST(Arbiter, ALaggardIsWaitedForOnce) {
  // Its kernel never ends and it still asks for turns: those that it gets end at their time, not 50 ms later.
  Model model(ComputePolicy::kFixed, {capped(600), capped(300)});
  model.program(1).hangs = true;
  model.program(1).asks_while_hung = true;
  model.program(1).busy_from_ns = 1'300'000'000;
  model.run(2 * kSecondNs);
  model.forget();
  model.run(5 * kSecondNs);
  EXPECT_NEAR(model.share(0), 0.60, 0.01);
  EXPECT_LE(model.arbiter().counters(1).overruns, 1u);
}

TEST(Arbiter, AFalseClaimOfWorkCostsItsAuthor) {
  Model model(ComputePolicy::kFixed, {capped(500), capped(300)});
  model.program(1).lies = true;
  model.run(2 * kSecondNs);
  model.forget();
  model.run(5 * kSecondNs);
  // The liar's turns pass idle, but it gets no more of them than its share.
  EXPECT_NEAR(model.share(0), 0.50, 0.02);
}

TEST(Arbiter, WhatNeverDrainsIsNotWaitedForAsLongAsItSays) {
  Model model(ComputePolicy::kFixed, {capped(300), capped(700)});
  Program& liar = model.program(1);
  liar.hangs = liar.asks_while_hung = true;
  liar.says_unit_ns = 10 * kSecondNs;
  liar.busy_from_ns = 1'300'000'000;
  model.run(4 * kSecondNs);
  EXPECT_GE(model.share(0), 0.29);
  EXPECT_LE(model.arbiter().counters(0).longest_wait_ns, 120'000'000u);
}

// It has shown that its kernels take three seconds, and would always find another one: for three seconds once, and from
// then on no more than its share.
TEST(Arbiter, LongUnitsAreWaitedForWithinTheirShare) {
  Model model(ComputePolicy::kFixed, {capped(300), capped(600, 3 * kSecondNs)});
  Program& liar = model.program(1);
  liar.says_unit_ns = 10 * kSecondNs;
  liar.ignores_credit = true;
  model.run(20 * kSecondNs);
  EXPECT_GE(model.arbiter().counters(1).overruns, 1u) << "nothing had to be learned";
  model.forget();
  model.run(120 * kSecondNs);
  EXPECT_GE(model.share(0), 0.28);
}

TEST(Arbiter, LongKernelsAreLearnedAndThenWaitedFor) {
  Model model(ComputePolicy::kFixed, {capped(500), capped(300, 400'000'000)});
  model.run(6 * kSecondNs);
  model.forget();
  const uint64_t overruns = model.arbiter().counters(1).overruns, overlap = model.overlap_ns();
  model.run(60 * kSecondNs);
  EXPECT_EQ(model.arbiter().counters(1).overruns, overruns);
  EXPECT_EQ(model.overlap_ns(), overlap);
  EXPECT_NEAR(model.share(0), 0.50, 0.01);
  EXPECT_NEAR(model.share(1), 0.30, 0.01);
}

TEST(Arbiter, LongKernelsBesideShortOnes) {
  Model model(ComputePolicy::kFixed, {capped(500), capped(300, 50'000'000)});
  model.run(5 * kSecondNs);
  model.forget();
  model.run(25 * kSecondNs);
  EXPECT_NEAR(model.share(0), 0.50, 0.005);
  EXPECT_NEAR(model.share(1), 0.30, 0.005);
}

TEST(Arbiter, HighPriorityRunsFirstWithinItsBudget) {
  Program server = capped(300, 200'000);
  server.high_priority = true;
  Model model(ComputePolicy::kFixed, {server, capped(700)});
  model.run(3 * kSecondNs);
  model.forget();
  model.run(6 * kSecondNs);
  EXPECT_NEAR(model.share(0), 0.30, 0.01);
  EXPECT_LT(model.arbiter().counters(0).longest_wait_ns, 3'000'000u);
}

// While a high priority is at work, and for a second after, the others keep little in flight.
TEST(Arbiter, TheOthersKeepLittleInFlightBesideAHighPriority) {
  Program server = capped(300, 200'000);
  server.high_priority = true;
  server.busy_to_ns = 3 * kSecondNs;
  Model model(ComputePolicy::kFixed, {server, capped(300), capped(300)});
  model.run(2 * kSecondNs);
  EXPECT_FALSE(model.gate(0).brief);
  EXPECT_TRUE(model.gate(1).brief && model.gate(2).brief);
  model.run(3 * kSecondNs + kSecondNs / 2);
  EXPECT_TRUE(model.gate(1).brief && model.gate(2).brief);
  model.run(5 * kSecondNs);
  EXPECT_FALSE(model.gate(1).brief || model.gate(2).brief);
}

TEST(Arbiter, HighPriorityWithoutACapLeavesTheOthersTheirShares) {
  for (const uint32_t permille : {50u, 500u, 900u}) {
    Program server = capped(0, 200'000);
    server.high_priority = true;
    Model model(ComputePolicy::kFixed, {server, capped(permille)});
    model.run(3 * kSecondNs);
    model.forget();
    model.run(8 * kSecondNs);
    EXPECT_NEAR(model.share(1), permille / 1000.0, 0.01) << permille;
  }
}

TEST(Arbiter, BurstLendsIdleTimeAndTakesItBack) {
  Model model(ComputePolicy::kBurst, {capped(300), capped(500)});
  // The second comes and goes within the window in which both count as active.
  model.program(1).busy_to_ns = 2 * kSecondNs;
  model.run(2 * kSecondNs + 20'000'000);
  model.forget();
  model.run(2 * kSecondNs + 90'000'000);
  EXPECT_GT(model.share(0), 0.9) << "idle time was not lent";
  model.program(1).busy_from_ns = model.now_ns();
  model.program(1).busy_to_ns = ~0ull;
  model.forget();
  model.run(model.now_ns() + 10'000'000);
  EXPECT_GT(model.share(1), 0.5) << "not taken back within 10 ms";
  model.run(5 * kSecondNs);
  model.forget();
  model.run(8 * kSecondNs);
  EXPECT_GT(model.share(1), 0.495);
  EXPECT_GT(model.share(0), 0.295);
  EXPECT_GT(model.card_busy(), 0.98) << "the rest was not lent";
}

TEST(Arbiter, ARemovedHolderFreesTheCardAtOnce) {
  Model model(ComputePolicy::kFixed, {capped(500), capped(300)});
  model.run(2 * kSecondNs);
  Arbiter& arbiter = model.arbiter();
  while (arbiter.holder() < 0) model.run(model.now_ns() + 10'000);
  const uint64_t held = arbiter.ids()[static_cast<size_t>(arbiter.holder())];
  arbiter.remove(held);
  std::vector<ContainerView> views(1);
  views[0].attached = views[0].waiting = true;
  const Arbiter::Outcome& outcome = arbiter.step(model.now_ns() + 1, views);
  EXPECT_TRUE(!outcome.turns || outcome.gates[0].open);
}

TEST(Arbiter, ADrainThatIsLateIsNotWaitedForInABusyLoop) {
  Arbiter arbiter;
  arbiter.put(0, 300, 1, false);
  arbiter.put(1, 300, 1, false);
  std::vector<ContainerView> views(2);
  views[0].attached = views[1].attached = true;
  views[0].waiting = views[1].waiting = true;
  uint64_t now = kSecondNs;
  arbiter.step(now, views);
  // The holder's work should have ended long ago, nothing more fits its turn, and nobody else wants the card.
  views[1].waiting = false;
  const size_t holder = 0;
  ASSERT_EQ(arbiter.holder(), static_cast<int>(holder));
  views[holder].dirty = views[holder].blocked_by_turn = true;
  int steps = 0;
  int words = 0;
  uint32_t turn = 0;
  for (const uint64_t end = now + 50'000'000; now < end; ++steps) {
    views[holder].predicted_drain_ns = now;
    const Arbiter::Outcome& outcome = arbiter.step(now, views);
    words += outcome.gates[holder].turn != turn ? 1 : 0;
    turn = outcome.gates[holder].turn;
    now = outcome.next_ns;
  }
  EXPECT_LE(steps, 1500);
  EXPECT_LE(words, 100) << "each change of the gate word wakes everybody who waits at the gate";
}

// Whatever containers report and however they come and go: at most one gate is open, time of the next step moves on,
// and nobody who waits with credit waits for ever.
TEST(Arbiter, RandomReportsNeverBreakIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Arbiter arbiter;
    arbiter.set_policy(static_cast<ComputePolicy>(random() % 5));
    uint64_t now = kSecondNs;
    uint64_t next_id = 0;
    for (int i = 0; i < 4; ++i) arbiter.put(next_id++, static_cast<uint32_t>(random() % 1000), 1, random() % 4 == 0);
    for (int i = 0; i < 20'000; ++i) {
      if (random() % 500 == 0) arbiter.put(next_id++, static_cast<uint32_t>(random() % 1000), 1, false);
      if (random() % 500 == 0 && arbiter.ids().size() > 1)
        arbiter.remove(arbiter.ids()[random() % arbiter.ids().size()]);
      std::vector<ContainerView> views(arbiter.ids().size());
      for (ContainerView& view : views) {
        view.attached = true;
        view.waiting = random() % 2 == 0;
        view.dirty = random() % 2 == 0;
        view.blocked_by_turn = random() % 3 == 0;
        view.blocked_by_credit = random() % 5 == 0;
        view.resume_ns = random() % 3 == 0 ? now + random() % 10'000'000 : 0;
        view.predicted_drain_ns = random() % 7 == 0 ? random() : now + random() % 2'000'000;
        view.longest_unit_ns = random() % 11 == 0 ? random() : random() % 100'000'000;
      }
      const Arbiter::Outcome& outcome = arbiter.step(now, views);
      ASSERT_EQ(outcome.gates.size(), views.size());
      int open = 0;
      for (const GateDecision& gate : outcome.gates) open += gate.open ? 1 : 0;
      ASSERT_LE(open, 1);
      ASSERT_GT(outcome.next_ns, now);
      now += 1 + random() % 300'000;
    }
    // All honest now, and all waiting: each gets a turn in the end, however deep in debt it was.
    std::vector<bool> served(arbiter.ids().size(), false);
    for (int i = 0; i < 20'000; ++i) {
      std::vector<ContainerView> views(arbiter.ids().size());
      for (ContainerView& view : views) view.attached = view.waiting = true;
      const Arbiter::Outcome& outcome = arbiter.step(now, views);
      for (size_t c = 0; c < views.size(); ++c) served[c] = served[c] || !outcome.turns || outcome.gates[c].open;
      now += 5'000'000;
    }
    for (size_t c = 0; c < served.size(); ++c) EXPECT_TRUE(served[c]) << "seed " << seed << " container " << c;
  }
}

}  // namespace
}  // namespace sluice::core
