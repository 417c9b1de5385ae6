// Reading claims from locks: whichever lock the kernel names first, each name once, with the most that anybody says of
// it; and whoever locks what no library does makes the figure larger or the card full, never smaller.
#include "page/share.h"

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

  void claim(uint32_t card, uint64_t name, uint64_t units) {
    const uint64_t start = share_byte(card, ShareSide::kClaim, name);
    ranges.push_back({start, start + units, 0});
  }
  // The kernel keeps the locks of an owner sorted, and the owners in some order; here: any lock at all.
  bool read(uint32_t card, std::map<uint64_t, uint64_t>& units) {
    return each_claim(
        card,
        [&](uint64_t start, uint64_t end, LockedRange& found) {
          ++questions;
          std::vector<LockedRange> touching;
          for (const LockedRange& range : ranges) {
            if (range.start < end && range.end > start) touching.push_back(range);
          }
          if (touching.empty()) return false;
          found = touching[random() % touching.size()];
          return true;
        },
        [&](uint64_t name, uint64_t n) { units[name] += n; });
  }
};

TEST(Share, ClaimsAreReadWhicheverLockIsNamedFirst) {
  std::mt19937_64 random(3);
  for (uint64_t round = 0; round < 200; ++round) {
    Locks locks;
    locks.random.seed(round);
    std::map<uint64_t, uint64_t> wanted;
    for (uint64_t i = 0; i < random() % 40; ++i) {
      const uint64_t name = random() & ((1ull << kShareNameBits) - 1);
      for (uint64_t holder = 0; holder <= random() % 3; ++holder) {
        const uint64_t units = 1 + random() % 5000;
        locks.claim(2, name, units);
        wanted[name] = std::max(wanted[name], units);
      }
    }
    locks.claim(1, ~0ull, 77);  // neighbours in the space of bytes
    locks.claim(3, 0, 77);
    std::map<uint64_t, uint64_t> read;
    EXPECT_TRUE(locks.read(2, read));
    EXPECT_EQ(read, wanted) << "round " << round;
    EXPECT_LE(locks.questions, static_cast<int>(4 * locks.ranges.size() + 2));
  }
}

TEST(Share, NamesSideBySideStayApart) {
  Locks locks;
  locks.claim(0, 41, share_units(~0ull));
  locks.claim(0, 42, share_units(3));
  locks.claim(0, 43, share_units(3 * kShareUnitBytes));
  std::map<uint64_t, uint64_t> read;
  EXPECT_TRUE(locks.read(0, read));
  EXPECT_EQ(read, (std::map<uint64_t, uint64_t>{{41, kShareNameUnits - 1}, {42, 1}, {43, 3}}));
}

TEST(Share, TooManyClaimsFillTheCardAndCostBoundedTime) {
  Locks locks;
  locks.ranges.push_back({share_byte(0, ShareSide::kClaim, 0), share_end(0, ShareSide::kClaim), 0});
  std::map<uint64_t, uint64_t> read;
  EXPECT_FALSE(locks.read(0, read));
  EXPECT_LE(locks.questions, static_cast<int>(2 * kMostClaims + 4));
}

}  // namespace
}  // namespace sluice::page
