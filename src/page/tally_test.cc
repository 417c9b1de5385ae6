// Reading tallies from locks: the answer must not depend on which lock the kernel happens to name, and locks that
// others add must only ever make it larger.
#include "page/tally.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace sluice::page {
namespace {

struct Locks {
  std::vector<LockedRange> ranges;
  std::mt19937_64 random{7};
  int questions = 0;

  bool ask(uint64_t start, uint64_t end, LockedRange& found) {
    ++questions;
    std::vector<LockedRange> touching;
    for (const LockedRange& range : ranges) {
      if (range.start < end && range.end > start) touching.push_back(range);
    }
    if (touching.empty()) return false;
    found = touching[random() % touching.size()];
    return true;
  }
  std::map<uint32_t, uint64_t> read(uint32_t card) {
    std::map<uint32_t, uint64_t> units;
    each_tally(
        card, [&](uint64_t start, uint64_t end, LockedRange& found) { return ask(start, end, found); },
        [&](uint32_t slot, uint64_t n) { units[slot] = n; });
    return units;
  }
  void hold(uint32_t card, uint32_t slot, uint32_t lane, uint64_t units) {
    ranges.push_back({tally_byte(card, slot, lane), tally_byte(card, slot, lane) + units});
  }
};

TEST(Tally, IsReadWhicheverLockIsNamedFirst) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    Locks locks;
    locks.random.seed(static_cast<uint64_t>(round));
    std::map<uint32_t, uint64_t> wanted;
    for (uint32_t i = 0; i < random() % 20; ++i) {
      const auto slot = static_cast<uint32_t>(random() % kMaxProcesses);
      if (wanted.contains(slot)) continue;
      for (uint32_t lane = 0; lane < kTallyLanes; ++lane) {
        if (random() % 3 == 0) continue;
        const uint64_t units = 1 + random() % 5000;
        locks.hold(2, slot, lane, units);
        wanted[slot] += units;
      }
    }
    locks.hold(1, 255, 3, 77);  // neighbours in the space of bytes
    locks.hold(3, 0, 0, 77);
    EXPECT_EQ(locks.read(2), wanted);
  }
}

TEST(Tally, LocksOfOthersOnlyAdd) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    Locks locks;
    const uint64_t honest = 100;
    locks.hold(0, 9, 0, honest);
    for (int i = 0; i < 30; ++i) {  // beyond the honest lock: what it has nobody else can lock
      const uint64_t from = tally_byte(0, 9, 0) + honest + random() % (3 * kTallyLaneUnits);
      locks.ranges.push_back({from, from + 1 + random() % 9});
    }
    EXPECT_GE(locks.read(0)[9], honest);
  }
}

TEST(Tally, OneLockOverEverythingIsBounded) {
  Locks locks;
  locks.ranges.push_back({0, ~0ull});
  EXPECT_EQ(locks.read(0).size(), kMaxProcesses);
  EXPECT_LT(locks.questions, 4000);
}

}  // namespace
}  // namespace sluice::page
