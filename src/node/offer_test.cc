#include "node/offer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::node {
namespace {

int64_t healthy_count(const std::vector<bool>& plan) {
  return std::count(plan.begin(), plan.end(), true);
}

TEST(Offer, EverythingIsHealthyOnAHealthyNode) {
  EXPECT_EQ(healthy_count(plan_health({31, 0, false}, 0, {})), 31);
  EXPECT_EQ(healthy_count(plan_health({31, 0, false}, 0, {0, 5, 30})), 31);
  EXPECT_TRUE(plan_health({}, 0, {}).empty());
}

TEST(Offer, ASickCardTakesFreeIdsAway) {
  // Two cards of 31; the first is sick with 10 units held.
  std::set<int64_t> held;
  for (int64_t id = 20; id < 30; ++id) held.insert(id);
  std::vector<bool> plan = plan_health({62, 21, false}, 62, held);
  EXPECT_EQ(healthy_count(plan), 41);
  for (int64_t id : held) EXPECT_TRUE(plan[static_cast<size_t>(id)]);
}

TEST(Offer, AClosedNodeOffersWhatIsHeld) {
  std::vector<bool> plan = plan_health({31, 0, true}, 31, {3, 7});
  EXPECT_EQ(healthy_count(plan), 2);
  EXPECT_EQ(plan.size(), 31u);
}

// Whatever happens, no id vanishes, no held id is unhealthy, and never more is offered than there is.
TEST(Offer, HoldsItsPromisesInAnyOrder) {
  std::mt19937 random(7);
  auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  size_t listed = 0;
  std::set<int64_t> held;
  for (int step = 0; step < 20'000; ++step) {
    Supply supply{upto(200), 0, upto(9) == 0};
    const int64_t free = std::max<int64_t>(0, supply.capacity - static_cast<int64_t>(held.size()));
    supply.blocked = upto(free);
    std::vector<bool> plan = plan_health(supply, listed, held);
    ASSERT_GE(plan.size(), listed);
    for (int64_t id : held) ASSERT_TRUE(plan[static_cast<size_t>(id)]);
    const int64_t offered = healthy_count(plan) - static_cast<int64_t>(held.size());
    ASSERT_EQ(
        offered,
        supply.closed ? 0 : std::max<int64_t>(0, supply.capacity - supply.blocked - static_cast<int64_t>(held.size())));
    listed = plan.size();
    // The kubelet takes some that are healthy, others come back.
    for (size_t id = 0; id < plan.size(); ++id) {
      if (plan[id] && upto(20) == 0) held.insert(static_cast<int64_t>(id));
    }
    std::erase_if(held, [&](int64_t) { return upto(3) == 0; });
  }
}

TEST(Offer, IdsAreRead) {
  EXPECT_EQ(*id_number('m', "m17"), 17);
  EXPECT_EQ(*id_number('c', "c0"), 0);
  for (const char* id : {"", "m", "c17", "m-1", "m1x", "mm1", "m99999999999", "m8192", " m1"})
    EXPECT_FALSE(id_number('m', id).ok()) << id;
  EXPECT_EQ(to_devices('m', {true, false}), (std::vector<OfferedDevice>{{"m0", true}, {"m1", false}}));
}

TEST(Offer, UnitsThatAreTooFineAreRefusedWithTheSetting) {
  EXPECT_TRUE(check_unit_count(141, 8, 1024).ok());
  EXPECT_TRUE(check_unit_count(512, 16, 256).ok());
  Result<void> fine = check_unit_count(32510, 1, 1);
  ASSERT_FALSE(fine.ok());
  EXPECT_NE(fine.error().message.find("--memory-unit-mib"), std::string::npos);
  EXPECT_FALSE(check_unit_count(512, 17, 256).ok());
}

}  // namespace
}  // namespace sluice::node
