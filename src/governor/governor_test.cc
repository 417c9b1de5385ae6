#include "governor/governor.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace sluice::governor {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 5'000 * kMs;

std::unique_ptr<page::UsageCard> fresh(uint32_t permille) {
  std::unique_ptr<page::UsageCard> card = std::make_unique<page::UsageCard>();
  set_quota(*card, permille, kStart);
  return card;
}

Limits alone(uint32_t permille) {
  Limits limits;
  limits.permille = permille;
  limits.fresh = true;
  return limits;
}

TEST(Account, CreditGrowsWithQuotaAndFallsByBusyTime) {
  std::unique_ptr<page::UsageCard> card = fresh(300);
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart), static_cast<int64_t>(kOpenNs));
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart + 10 * kMs), static_cast<int64_t>(kOpenNs + 3 * kMs));
  ASSERT_TRUE(settle_account(*card, load_credit(card->account), kStart + 10 * kMs, 4 * kMs, kNoFloorNs));
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart + 10 * kMs), static_cast<int64_t>(kOpenNs - 1 * kMs));
  EXPECT_EQ(card->account.busy_total_ns.load(), 4 * kMs);
}

TEST(Account, ALostRaceIsNoticed) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  const Credit seen = load_credit(card->account);
  ASSERT_TRUE(settle_account(*card, seen, kStart + kMs, 100'000, kNoFloorNs));
  EXPECT_FALSE(settle_account(*card, seen, kStart + kMs, 100'000, kNoFloorNs));
  EXPECT_EQ(card->account.busy_total_ns.load(), 100'000u);
}

TEST(Account, AChangeOfQuotaKeepsTheCredit) {
  std::unique_ptr<page::UsageCard> card = fresh(300);
  const int64_t before = credit_ns(load_credit(card->account), kStart + 20 * kMs);
  set_quota(*card, 700, kStart + 20 * kMs);
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart + 20 * kMs), before);
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart + 30 * kMs), before + static_cast<int64_t>(7 * kMs));
}

TEST(Account, IdleTimeEarnsNoMoreThanTheBurst) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  clamp_idle(*card, kStart + 10'000 * kMs);
  EXPECT_EQ(credit_ns(load_credit(card->account), kStart + 10'000 * kMs), static_cast<int64_t>(kBurstNs));
}

TEST(Account, TheLastSecondIsRemembered) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  uint64_t now = kStart;
  for (int i = 0; i < 3000; ++i) {
    now += kMs;
    ASSERT_TRUE(settle_account(*card, load_credit(card->account), now, 400'000, kNoFloorNs));
  }
  EXPECT_NEAR(static_cast<double>(busy_last_second(*card, now)), 400e6, 1e6);
}

// A pause that ends in the clamp moves the settled time as well: the last second must not be read from bins that were
// written a round of the ring before.
TEST(Account, TheLastSecondIsRememberedAcrossClampedPauses) {
  std::unique_ptr<page::UsageCard> card = fresh(950);
  uint64_t now = kStart;
  for (int step = 0; step < 40; ++step) {
    clamp_idle(*card, now + 70 * kMs);
    now += 70 * kMs;
    ASSERT_TRUE(settle_account(*card, load_credit(card->account), now + 30 * kMs, 30 * kMs, kNoFloorNs));
    now += 30 * kMs;
    if (step < 12) continue;
    EXPECT_NEAR(static_cast<double>(busy_last_second(*card, now)), 300e6, 31e6) << "after " << step << " steps";
  }
}

TEST(Account, ManyThreadsSettleExactly) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  std::atomic<uint64_t> clock{kStart};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        for (;;) {
          const Credit seen = load_credit(card->account);
          const uint64_t to = settled_time(seen, kStart) + 1000;
          if (settle_account(*card, seen, to, 500, kNoFloorNs)) break;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // 20,000 times 1 us at a quota of a half, of which a half was busy: the credit is what it was.
  const uint64_t end = kStart + 20'000 * 1000;
  EXPECT_EQ(card->account.busy_total_ns.load(), 20'000u * 500);
  EXPECT_EQ(credit_ns(load_credit(card->account), end), static_cast<int64_t>(kOpenNs));
}

TEST(Governor, OpensAtThreeMillisecondsAndClosesAtZero) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  const Ask ask{100'000, true, false};
  EXPECT_TRUE(step(kStart, *card, alone(500), {}, ask).admit);
  ASSERT_TRUE(settle_account(*card, load_credit(card->account), kStart + kMs, 4 * kMs, kNoFloorNs));
  EXPECT_FALSE(step(kStart + kMs, *card, alone(500), {}, ask).admit);
  EXPECT_FALSE(step(kStart + 4 * kMs, *card, alone(500), {}, ask).admit);
  const Decision later = step(kStart + 4 * kMs, *card, alone(500), {}, ask);
  EXPECT_EQ(later.blocked, page::kBlockedByCredit);
  EXPECT_TRUE(step(kStart + 8 * kMs, *card, alone(500), {}, ask).admit);
}

TEST(Governor, WhatIsInFlightIsBounded) {
  std::unique_ptr<page::UsageCard> card = fresh(900);
  clamp_idle(*card, kStart + 1000 * kMs);
  const uint64_t now = kStart + 1000 * kMs;
  InFlight flight;
  flight.units = 3;
  flight.outstanding_ns = 950'000;
  flight.oldest_overdue_ns = now + 20 * kMs;
  EXPECT_FALSE(step(now, *card, alone(900), flight, {100'000, true, false}).admit);
  EXPECT_TRUE(step(now, *card, alone(900), flight, {50'000, true, false}).admit);
  // Of unknown cost: alone only.
  EXPECT_FALSE(step(now, *card, alone(900), flight, {kUnknownNs, false, false}).admit);
  flight.units = 1;
  flight.outstanding_ns = 10 * kMs;
  EXPECT_TRUE(step(now, *card, alone(900), flight, {10 * kMs, true, false}).admit);
}

// Units just over the bound went one at a time without a cap, as if the bound were credit: the card idled after each.
TEST(Governor, WithoutACapLongUnitsGoTwoAtATime) {
  std::unique_ptr<page::UsageCard> card = fresh(0);
  InFlight flight;
  flight.units = 1;
  flight.outstanding_ns = 12 * kMs / 10;
  flight.oldest_overdue_ns = kStart + 20 * kMs;
  EXPECT_TRUE(step(kStart, *card, alone(0), flight, {12 * kMs / 10, true, false}).admit);
  flight.units = 2;
  flight.outstanding_ns = 24 * kMs / 10;
  EXPECT_FALSE(step(kStart, *card, alone(0), flight, {12 * kMs / 10, true, false}).admit);
}

// Where threads wake late, more goes into flight.
TEST(Governor, TheBoundCanBeWidened) {
  std::unique_ptr<page::UsageCard> card = fresh(0);
  InFlight flight;
  flight.units = 3;
  flight.outstanding_ns = 3 * kMs;
  flight.oldest_overdue_ns = kStart + 20 * kMs;
  Limits limits = alone(0);
  EXPECT_FALSE(step(kStart, *card, limits, flight, {kMs, true, false}).admit);
  limits.in_flight_ns = 4 * kMs;
  EXPECT_TRUE(step(kStart, *card, limits, flight, {kMs, true, false}).admit);
}

// What ran under a larger share must not silence the container for most of a second when the share is lowered.
TEST(Governor, ALoweredShareDoesNotSilence) {
  std::unique_ptr<page::UsageCard> card = fresh(600);
  uint64_t now = kStart;
  for (int i = 0; i < 1500; ++i) {
    now += kMs;
    ASSERT_TRUE(settle_account(*card, load_credit(card->account), now, 600'000, kNoFloorNs));
  }
  set_quota(*card, 200, now);
  const uint64_t later = now + 20 * kMs;
  EXPECT_TRUE(step(later, *card, alone(200), {}, {100'000, true, false}).admit);
}

// A card whose program lives on its credit closes when its sibling has; one that has plenty does not care.
TEST(Governor, CardsOfOneContainerCloseTogether) {
  std::unique_ptr<page::UsageCard> card = fresh(400);
  Limits limits = alone(400);
  EXPECT_TRUE(step(kStart, *card, limits, {}, {100'000, true, false}).admit);
  limits.siblings_ready = false;
  EXPECT_FALSE(step(kStart + kMs, *card, limits, {}, {100'000, true, false}).admit);
  limits.siblings_ready = true;
  EXPECT_TRUE(step(kStart + 60 * kMs, *card, limits, {}, {100'000, true, false}).admit);
  limits.siblings_ready = false;
  EXPECT_TRUE(step(kStart + 60 * kMs, *card, limits, {}, {100'000, true, false}).admit);
}

// 50 ms kernels at 5 %: one that runs as long as it always does never opens the gate.
TEST(Governor, ALongKernelThatIsNotOverdueLetsNothingPast) {
  for (const uint64_t kernel : {25 * kMs, 50 * kMs, 100 * kMs}) {
    std::unique_ptr<page::UsageCard> card = fresh(50);
    InFlight flight;
    flight.units = 1;
    flight.outstanding_ns = kernel;
    flight.oldest_overdue_ns = overdue_after(kStart, kernel, true);
    for (uint64_t now = kStart; now < kStart + kernel; now += kMs) {
      EXPECT_FALSE(step(now, *card, alone(50), flight, {kernel, true, false}).admit) << kernel;
    }
  }
}

TEST(Governor, PastAnOverdueUnitOneByOneAndEverMoreSlowly) {
  std::unique_ptr<page::UsageCard> card = fresh(50);
  InFlight flight;
  flight.units = 1;
  flight.outstanding_ns = 100 * kMs;
  flight.oldest_overdue_ns = kStart + 20 * kMs;
  std::vector<uint64_t> passed;
  for (uint64_t now = kStart; now < kStart + 1000 * kMs; now += kMs) {
    if (step(now, *card, alone(50), flight, {kMs, true, false}).admit) passed.push_back((now - kStart) / kMs);
  }
  EXPECT_EQ(passed, (std::vector<uint64_t>{20, 40, 80, 160, 320, 640}));
}

// Kernels of two streams that wait for each other: the one in flight uses up the bound and never ends, and the one that
// it waits for would stand at the gate.
TEST(Governor, AStreamWithNothingInFlightGoesPastOneThatIsStuck) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  InFlight flight;
  flight.units = 4;
  flight.outstanding_ns = kMs;
  flight.dirty = 1;
  flight.low_water_ns = kStart;
  flight.oldest_overdue_ns = kStart + 20 * kMs;
  const uint64_t stuck_ns = kStart + 2 * kMs + kStuckNs;
  EXPECT_FALSE(step(stuck_ns - 1, *card, alone(500), flight, {100'000, true, false}).admit);
  EXPECT_EQ(card->account.passed_ns.load(), 0u);
  // Behind the stuck one, or of unknown length: no.
  EXPECT_FALSE(step(stuck_ns, *card, alone(500), flight, {100'000, true, true}).admit);
  EXPECT_FALSE(step(stuck_ns, *card, alone(500), flight, {kUnknownNs, false, false}).admit);
  const Decision decision = step(stuck_ns, *card, alone(500), flight, {100'000, true, false});
  EXPECT_TRUE(decision.admit);
  EXPECT_EQ(decision.allowance_ns, 100'000u);  // one unit and no more
  EXPECT_EQ(card->account.passed_ns.load(), stuck_ns);
  // Processes run in time slices: with more streams at work it takes longer until one counts as stuck.
  flight.dirty = 8;
  EXPECT_FALSE(step(stuck_ns, *card, alone(500), flight, {100'000, true, false}).admit);
  // And never without the credit for it.
  flight.dirty = 1;
  ASSERT_TRUE(settle_account(*card, load_credit(card->account), kStart + kMs, 4 * kMs, kNoFloorNs));
  EXPECT_FALSE(step(stuck_ns, *card, alone(500), flight, {100'000, true, false}).admit);
}

TEST(Governor, InATurnOnlyWhatFits) {
  std::unique_ptr<page::UsageCard> card = fresh(500);
  Limits limits = alone(500);
  limits.turns = true;
  limits.gate = page::kGateTurns;
  EXPECT_EQ(step(kStart, *card, limits, {}, {100'000, true, false}).blocked, page::kBlockedByTurn);
  limits.gate |= page::kGateOpen;
  limits.turn_end_ns = kStart + 6 * kMs;
  EXPECT_TRUE(step(kStart, *card, limits, {}, {100'000, true, false}).admit);
  EXPECT_TRUE(step(kStart, *card, limits, {}, {50 * kMs, true, false}).admit) << "long units at a turn's beginning";
  EXPECT_EQ(step(kStart + 5 * kMs, *card, limits, {}, {50 * kMs, true, false}).blocked, page::kBlockedByTurn);
  EXPECT_EQ(step(kStart + 5'950'000, *card, limits, {}, {100'000, true, false}).blocked, page::kBlockedByTurn);
}

TEST(Limits, AStaleHeartbeatEndsTurns) {
  std::unique_ptr<page::GrantCard> grant = std::make_unique<page::GrantCard>();
  grant->gate.store(page::kGateTurns);
  grant->core_permille.store(300);
  grant->heartbeat_ns.store(kStart);
  EXPECT_TRUE(read_limits(*grant, kStart + 400 * kMs).turns);
  EXPECT_FALSE(read_limits(*grant, kStart + 501 * kMs).turns);
  EXPECT_EQ(read_limits(*grant, kStart + 501 * kMs).permille, 300u);
}

}  // namespace
}  // namespace sluice::governor
