#include "node/checkpoint.h"

#include <gtest/gtest.h>

namespace sluice::node {
namespace {

// As a kubelet 1.36 wrote it for two pods (answers shortened).
constexpr char kWritten[] =
    R"({"Data":{"PodDeviceEntries":[{"PodUID":"8a1c51d6-2a3e-4c7e-9d5b-2b0d3f6f7f10","ContainerName":"first",)"
    R"("ResourceName":"aliyun.com/gpu-mem","DeviceIDs":{"-1":["m7","m10","m2"]},"AllocResp":"QiAKHnNs"},)"
    R"({"PodUID":"f1b7","ContainerName":"c","ResourceName":"aliyun.com/gpu-core.percentage",)"
    R"("DeviceIDs":{"0":["c4"],"1":["c1"]},"AllocResp":""}],)"
    R"("RegisteredDevices":{"aliyun.com/gpu-mem":["m0"],"nvidia.com/gpu":null}},"Checksum":2218381205})";

TEST(Checkpoint, IsReadAsKubeletsWriteIt) {
  Result<std::vector<CheckpointEntry>> entries = parse_checkpoint(kWritten);
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(
      (*entries)[0],
      (CheckpointEntry{"8a1c51d6-2a3e-4c7e-9d5b-2b0d3f6f7f10", "first", "aliyun.com/gpu-mem", {"m10", "m2", "m7"}}));
  EXPECT_EQ((*entries)[1].ids, (std::vector<std::string>{"c1", "c4"}));
}

TEST(Checkpoint, OldLayoutAndNoPods) {
  Result<std::vector<CheckpointEntry>> entries = parse_checkpoint(
      R"({"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":["b","a"]}]}})");
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  EXPECT_EQ(entries->front().ids, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(parse_checkpoint(R"({"Data":{"PodDeviceEntries":null},"Checksum":1})")->empty());
}

TEST(Checkpoint, WhatIsNotUnderstoodIsAnError) {
  const std::string whole = kWritten;
  for (size_t cut = 0; cut < whole.size(); cut += 7) EXPECT_FALSE(parse_checkpoint(whole.substr(0, cut)).ok()) << cut;
  for (const char* text :
       {"[]", "{}", R"({"Data":1})", R"({"Data":{"PodDeviceEntries":{}}})", R"({"Data":{"PodDeviceEntries":[1]}})",
        R"({"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r"}]}})",
        R"({"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r",)"
        R"("DeviceIDs":{"-1":[3]}}]}})"})
    EXPECT_FALSE(parse_checkpoint(text).ok()) << text;
}

}  // namespace
}  // namespace sluice::node
