#include "node/neighbours.h"

#include <gtest/gtest.h>

namespace sluice::node {
namespace {

json::Value parse(const char* text) {
  Result<json::Value> value = json::parse(text);
  EXPECT_TRUE(value.ok());
  return value.ok() ? *value : json::Value();
}

TEST(Neighbours, SlicesThatHoldOurCards) {
  const std::vector<std::string> uuids{"GPU-a", "GPU-b"};
  const json::Value by_uuid = parse(R"({"items":[
    {"metadata":{"name":"net"},"spec":{"driver":"nic.example","devices":[{"name":"n0","attributes":{"uuid":{"string":"N"}}}]}},
    {"metadata":{"name":"s1"},"spec":{"driver":"cards.example","devices":[
      {"name":"x","attributes":{"count":{"int":2}}},{"name":"y","attributes":{"cards.example/uuid":{"string":"GPU-b"}}}]}}]})");
  std::optional<Condition> claim = claim_by_slices(by_uuid, uuids);
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->reason, "CardsClaimedByDra");
  EXPECT_NE(claim->message.find("DRA driver cards.example publishes 2 devices of this node (ResourceSlice s1)"),
            std::string::npos)
      << claim->message;
  EXPECT_FALSE(claim_by_slices(by_uuid, {"GPU-c"}).has_value());
  // v1beta1 has one level more; NVIDIA's driver is known by its name, whatever it says of its devices.
  EXPECT_TRUE(claim_by_slices(parse(R"({"items":[{"spec":{"driver":"d","devices":[
    {"name":"x","basic":{"attributes":{"uuid":{"string":"GPU-a"}}}}]}}]})"),
                              uuids)
                  .has_value());
  EXPECT_TRUE(
      claim_by_slices(parse(R"({"items":[{"spec":{"driver":"gpu.nvidia.com","devices":[{"name":"x"}]}}]})"), uuids)
          .has_value());
  EXPECT_FALSE(claim_by_slices(parse(R"({"items":[{"spec":{"driver":"gpu.nvidia.com"}}]})"), uuids).has_value());
}

TEST(Neighbours, ClassesThatStandForOurNames) {
  std::optional<Condition> claim = claim_by_classes(parse(R"({"items":[{"metadata":{"name":"plain"},"spec":{}},
    {"metadata":{"name":"units"},"spec":{"extendedResourceName":"aliyun.com/gpu-mem"}}]})"));
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->reason, "NameClaimedByDra");
  EXPECT_EQ(claim->message.find("DeviceClass units stands for aliyun.com/gpu-mem"), 0u) << claim->message;
  EXPECT_FALSE(
      claim_by_classes(parse(R"({"items":[{"spec":{"extendedResourceName":"nvidia.com/gpu"}}]})")).has_value());
}

TEST(Neighbours, WhatIsNoListClaimsNothing) {
  for (const char* text :
       {"null", "[]", "{}", R"({"items":1})", R"({"items":[1,{"spec":1},{"spec":{"devices":[3]}}]})"}) {
    EXPECT_FALSE(claim_by_slices(parse(text), {"GPU-a"}).has_value()) << text;
    EXPECT_FALSE(claim_by_classes(parse(text)).has_value()) << text;
  }
}

}  // namespace
}  // namespace sluice::node
