// Requests from text to numbers: every rule with its message, as tables.
#include "core/request.h"

#include <gtest/gtest.h>

#include "core/place.h"
#include "core/units.h"

namespace sluice::core {
namespace {

TEST(Units, AllUnitsTogetherAreTheWholeCard) {
  EXPECT_EQ(card_units(32510, 1024), 31);
  EXPECT_EQ(container_limit_mib(32510, 10, 31), 10487);
  EXPECT_EQ(container_limit_mib(32510, 31, 31), 32510);
  for (int64_t card : {16280, 15109, 16160, 32510, 22731, 81559, 143771})
    for (int64_t unit : {1, 128, 256, 1024}) {
      int64_t units = card_units(card, unit), sum = 0;
      for (int64_t left = units; left > 0; left -= std::min<int64_t>(left, 3))
        sum += container_limit_mib(card, std::min<int64_t>(left, 3), units);
      EXPECT_LE(sum, card);
      EXPECT_GT(sum, card - units);
    }
  EXPECT_EQ(card_units(0, 1024), 0);
  EXPECT_EQ(container_limit_mib(1000, 5, 0), 0);
}

struct BadCase {
  const char* memory;
  const char* core;
  const char* count;
  const char* message;
};
std::optional<std::string> text(const char* value) {
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

TEST(Request, WrongOnesNameRuleNeedAndHave) {
  const BadCase cases[] = {
      {"10", "33", nullptr,
       "aliyun.com/gpu-core.percentage: needs a multiple of 5, at least 5, have 33; the next one up is 35"},
      {"10", "7", nullptr,
       "aliyun.com/gpu-core.percentage: needs a multiple of 5, at least 5, have 7; the next one up is 10"},
      {"10", "30.5", nullptr,
       "aliyun.com/gpu-core.percentage: needs a whole number of percent, a multiple of 5 and at least 5, have '30.5'"},
      {"10G", "30", nullptr, "aliyun.com/gpu-mem: needs a whole number of memory units without a suffix, have '10G'"},
      {"-1", nullptr, nullptr, "aliyun.com/gpu-mem: needs a whole number of memory units without a suffix, have '-1'"},
      {"", nullptr, nullptr, "aliyun.com/gpu-mem: needs a whole number of memory units without a suffix, have ''"},
      {"99999999999999999999", nullptr, nullptr,
       "aliyun.com/gpu-mem: needs a whole number of memory units without a suffix, have '99999999999999999999'"},
      {"2000000000", nullptr, nullptr, "aliyun.com/gpu-mem: needs at most 1073741824, have 2000000000"},
      {nullptr, "30", nullptr,
       "aliyun.com/gpu-core.percentage: needs aliyun.com/gpu-mem beside it, have none; add the memory that the "
       "container may use"},
      {nullptr, nullptr, nullptr, "aliyun.com/gpu-mem: needs at least 1 unit, have nothing"},
      {"0", nullptr, nullptr, "aliyun.com/gpu-mem: needs at least 1 unit, have '0'"},
      {"10", "105", nullptr, "aliyun.com/gpu-core.percentage: needs at most 100 on each of 1 card(s), have 105"},
      {"10", "30", "3", "aliyun.com/gpu-mem: needs to divide evenly over 3 cards (aliyun.com/gpu-count), have 10"},
      {"10", "15", "2",
       "aliyun.com/gpu-core.percentage: needs a multiple of 5 for each of 2 cards, that is a multiple of 10, have 15"},
      {"10", "30", "0", "label aliyun.com/gpu-count: needs a whole number from 1 to 32, have '0'"},
      {"10", "30", "two", "label aliyun.com/gpu-count: needs a whole number from 1 to 32, have 'two'"},
      {"10", "30", "33", "label aliyun.com/gpu-count: needs a whole number from 1 to 32, have '33'"},
  };
  for (const BadCase& c : cases) {
    Result<Request> request = parse_request(text(c.memory), text(c.core), text(c.count));
    ASSERT_FALSE(request.ok()) << c.message;
    EXPECT_EQ(request.error().message, c.message);
    EXPECT_EQ(request.error().code, ErrorCode::kInvalid);
  }
}

TEST(Request, RightOnes) {
  Result<Request> request = parse_request("10", "30");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->kind, Kind::kMemoryCore);
  EXPECT_EQ(request->cards, 1);
  EXPECT_EQ(request->units, 10);
  EXPECT_EQ(request->core_milli, 300);
  request = parse_request("12", "120", "4", {"A10"});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->cards, 4);
  EXPECT_EQ(request->units, 3);
  EXPECT_EQ(request->core_milli, 300);
  EXPECT_EQ(request->models, std::vector<std::string>{"A10"});
  request = parse_request("8", std::nullopt);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->kind, Kind::kMemory);
  EXPECT_EQ(request->core_milli, 0);
}

TEST(Request, PodsCountAsKubernetesCounts) {
  using Role = ContainerRole;
  PodText pod;
  pod.containers = {{"warm", Role::kInit, "12", "20", {}}, {"side", Role::kSidecar, "2", "10", {}},
                    {"late", Role::kInit, "9", "60", {}},  {"a", Role::kMain, "4", "20", {}},
                    {"b", Role::kMain, "3", "25", {}},     {"plain", Role::kMain, {}, {}, {}}};
  Result<PodRequest> parsed = parse_pod(pod);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  // Moments: warm 12/20; side 2/10; side + late 11/70; side + a + b 9/55.
  EXPECT_EQ(parsed->total.units, 12);
  EXPECT_EQ(parsed->total.core_milli, 700);
  EXPECT_EQ(parsed->shares.size(), 5u);

  pod.containers = {{"a", Role::kMain, "4", "20", {}}, {"b", Role::kMain, "3", {}, {}}};
  parsed = parse_pod(pod);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().message,
            "containers: needs the same kinds of card resource in all containers that ask, have memory and compute in "
            "container 'a' and memory only in container 'b'");

  pod.containers = {{"a", Role::kMain, "4", "60", {}}, {"b", Role::kMain, "3", "60", {}}};
  parsed = parse_pod(pod);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().message,
            "aliyun.com/gpu-core.percentage: needs at most 100 on each of 1 card(s) over all containers, have 120");

  pod.containers = {{"a", Role::kMain, {}, {}, "2"}};
  parsed = parse_pod(pod);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->total.kind, Kind::kWhole);
  EXPECT_EQ(parsed->total.cards, 2);

  pod.containers = {{"a", Role::kMain, "4", {}, "2"}};
  EXPECT_FALSE(parse_pod(pod).ok());
  pod.containers = {{"a", Role::kMain, {}, {}, {}}};
  parsed = parse_pod(pod);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->total.kind, Kind::kNone);
}

TEST(Place, StandAloneOnLocalCards) {
  Node node;
  node.name = "here";
  node.cards = {make_card(0, "GPU-a", "V100", 32510), make_card(1, "GPU-b", "V100", 32510)};
  Request request = *parse_request("10", "30");
  Result<Placed> placed = place({&node, 1}, request);
  ASSERT_TRUE(placed.ok());
  ASSERT_EQ(placed->placement.shares.size(), 1u);
  EXPECT_EQ(placed->placement.shares[0], (Share{0, 10, 10487, 300}));
  ASSERT_TRUE(take(node, placed->placement).ok());
  EXPECT_EQ(place({&node, 1}, request)->placement.shares[0].card_index, 0);  // binpack
  EXPECT_EQ(place({&node, 1}, request, {PolicyName::kSpread})->placement.shares[0].card_index, 1);
  Result<Placed> refused = place({&node, 1}, *parse_request("62", "100", "2"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "card memory: needs 31 GiB on each of 2 cards, most free on 2 cards 21 GiB");
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  refused = place({&node, 1}, *parse_request("40", "30"));
  EXPECT_EQ(refused.error().message, "card size: needs 40 GiB on one card, largest has 31 GiB");
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  refused = place({&node, 1}, *parse_request("4", std::nullopt));
  EXPECT_EQ(refused.error().message, "node mode: needs a node for memory only, mode core_mem has memory and compute");
}

}  // namespace
}  // namespace sluice::core
