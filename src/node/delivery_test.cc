#include "node/delivery.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "node/node_report.h"

namespace sluice::node {
namespace {

Driver real_driver() {
  Driver driver;
  driver.cuda = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15";
  driver.nvml = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15";
  driver.controls = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  return driver;
}

Delivery filled() {
  Delivery delivery;
  delivery.slot = "0123456789abcdef";
  delivery.grant_directory = "/run/sluice/grants/0123456789abcdef/grant";
  delivery.usage_file = "/run/sluice/grants/0123456789abcdef/usage.d/usage";
  delivery.libraries = "/var/lib/sluice/lib/1";
  delivery.cards = {{0, "GPU-a", 31, 10, "/dev/nvidia0"}, {2, "GPU-c", 31, 10, "/dev/nvidia2"}};
  delivery.pod_units = 20;
  return delivery;
}

std::string host_of(const ContainerEdits& edits, const std::string& path) {
  for (const DriverMount& mount : edits.mounts) {
    if (mount.container_path == path) return mount.host_path;
  }
  return "";
}

TEST(Delivery, AFilledSlot) {
  ContainerEdits edits = plan_edits(filled(), real_driver());
  EXPECT_EQ(edits.environment["NVIDIA_VISIBLE_DEVICES"], "GPU-a,GPU-c");
  EXPECT_EQ(edits.environment["ALIYUN_COM_GPU_MEM_IDX"], "0,2");
  EXPECT_EQ(edits.environment["ALIYUN_COM_GPU_MEM_POD"], "20");
  EXPECT_EQ(edits.device_nodes,
            (std::vector<std::string>{"/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"}));
  EXPECT_EQ(host_of(edits, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"), "/var/lib/sluice/lib/1/libcuda.so.1");
  EXPECT_EQ(host_of(edits, "/usr/lib/libnvidia-ml.so"), "/var/lib/sluice/lib/1/libnvidia-ml.so.1");
  EXPECT_EQ(host_of(edits, "/run/sluice/container/driver/real-cuda"), real_driver().cuda);
}

TEST(Delivery, AnEmptySlotNamesNoCard) {
  Delivery delivery = filled();
  delivery.cards.clear();
  ContainerEdits edits = plan_edits(delivery, real_driver());
  EXPECT_TRUE(edits.environment.empty());
  EXPECT_TRUE(edits.device_nodes.empty());
  EXPECT_EQ(host_of(edits, "/run/sluice/container/grant"), delivery.grant_directory);
}

TEST(Delivery, WithoutTheGuestTheRealDriverStandsThere) {
  Delivery delivery = filled();
  delivery.guest = false;
  ContainerEdits edits = plan_edits(delivery, real_driver());
  EXPECT_EQ(host_of(edits, "/usr/lib64/libcuda.so.1"), real_driver().cuda);
  EXPECT_EQ(host_of(edits, "/run/sluice/container/grant"), "");
}

TEST(Delivery, SimulatedCardsHaveNoDeviceNodes) {
  Driver driver = real_driver();
  driver.simulated = true;
  driver.state_on_node = "/opt/sluice-sim/state";
  ContainerEdits edits = plan_edits(filled(), driver);
  EXPECT_TRUE(edits.device_nodes.empty());
  // The granted cards' files and no others'.
  EXPECT_EQ(host_of(edits, "/var/lib/sluice-sim/card2"), "/opt/sluice-sim/state/card2");
  EXPECT_EQ(host_of(edits, "/var/lib/sluice-sim/card0.contents"), "/opt/sluice-sim/state/card0.contents");
  EXPECT_EQ(host_of(edits, "/var/lib/sluice-sim/card1"), "");
  EXPECT_EQ(host_of(edits, "/var/lib/sluice-sim"), "");
}

TEST(Delivery, TheSpecIsWhatRuntimesRead) {
  Result<json::Value> spec = json::parse(cdi_spec("0123456789abcdef", plan_edits(filled(), real_driver())));
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->at("kind"), "sluice.dev/grant");
  const json::Value& device = spec->at("devices").at(0);
  EXPECT_EQ("sluice.dev/grant=" + std::string(device.at("name").as_string()), cdi_device("0123456789abcdef"));
  const json::Value& edits = device.at("containerEdits");
  EXPECT_EQ(edits.at("deviceNodes").at(0).at("path"), "/dev/nvidia0");
  bool writable = false;
  for (const json::Value& mount : edits.at("mounts").as_array()) {
    const bool rw = mount.at("options").at(0) == "rw";
    EXPECT_EQ(rw, mount.at("containerPath") == "/run/sluice/container/usage");
    writable = writable || rw;
  }
  EXPECT_TRUE(writable);
  EXPECT_EQ(slot_of_cdi_file(cdi_file_name("0123456789abcdef")), "0123456789abcdef");
  for (const char* name : {"nvidia.yaml", "sluice.dev-grant-.json", "sluice.dev-grant-0123456789abcdeg.json"})
    EXPECT_EQ(slot_of_cdi_file(name), "") << name;
}

TEST(Delivery, TheAnswerHoldsTheSame) {
  const ContainerEdits edits = plan_edits(filled(), real_driver());
  const ContainerAnswer answer = to_answer(edits);
  EXPECT_EQ(answer.environment, edits.environment);
  EXPECT_EQ(answer.mounts.size(), edits.mounts.size());
  EXPECT_EQ(answer.device_nodes.size(), edits.device_nodes.size());
  EXPECT_TRUE(answer.cdi_devices.empty());
}

// --- the node object

agent::CardFacts card(int index, bool usable = true, const std::string& problem = "") {
  agent::CardFacts facts;
  facts.info = {index, "GPU-" + std::to_string(index), "NVIDIA H200 (80GB)", int64_t{143771} << 20, index};
  facts.usable = usable;
  facts.problem = problem;
  facts.units = 140;
  return facts;
}

ReportInput sharing() {
  ReportInput input;
  input.mode.mode = input.mode.wanted.mode = core::NodeMode::kCoreMemory;
  input.mode.wanted.word = "core_mem";
  input.cards = {card(0), card(1)};
  input.offering = true;
  return input;
}

// What the API server makes of a strategic merge patch, as far as the agent's own patches go.
void apply(NodeFace& face, const NodePatches& patches) {
  auto maps = [](const json::Object& from, std::map<std::string, std::string>& to) {
    for (const auto& member : from) {
      if (member.value().is_null())
        to.erase(member.key());
      else
        to[member.key()] = member.value().as_string();
    }
  };
  if (patches.object) {
    const json::Object& metadata = patches.object->at("metadata").as_object();
    if (metadata.contains("labels")) maps(metadata.at("labels").as_object(), face.labels);
    if (metadata.contains("annotations")) maps(metadata.at("annotations").as_object(), face.annotations);
  }
  if (!patches.status) return;
  const json::Object& status = patches.status->at("status").as_object();
  if (status.contains("capacity")) {
    const json::Value& count = status.at("capacity").at("aliyun.com/gpu-count");
    face.card_count = count.is_null() ? std::nullopt : std::optional<int64_t>(std::stoll(count.as_string().c_str()));
  }
  if (!status.contains("conditions")) return;
  for (const json::Value& one : status.at("conditions").as_array()) {
    const std::string type(one.at("type").as_string());
    if (one.as_object().contains("$patch"))
      face.conditions.erase(type);
    else
      face.conditions[type] = {one.at("status") == "True", std::string(one.at("reason").as_string()),
                               std::string(one.at("message").as_string())};
  }
}

TEST(NodeReport, WhatWasPatchedIsNotPatchedAgain) {
  ReportInput waiting = sharing();
  waiting.mode.wanted = {core::NodeMode::kDefault, "default"};
  waiting.mode.waiting_for = {"team/a"};
  ReportInput sick = sharing();
  sick.cards[1] = card(1, false, "does not answer");
  ReportInput left;
  left.mode.mode = core::NodeMode::kDefault;
  NodeFace seen;
  for (const ReportInput& input : {sharing(), waiting, sick, sharing(), left}) {
    const NodeFace wanted = wanted_face(input);
    const NodePatches patches = plan_patches(seen, wanted, "now");
    EXPECT_TRUE(patches.object || patches.status);
    apply(seen, patches);
    EXPECT_EQ(seen, wanted);
    const NodePatches again = plan_patches(seen, wanted, "later");
    EXPECT_FALSE(again.object || again.status);
  }
  EXPECT_EQ(seen, NodeFace{});  // nothing of ours is left in another mode
}

TEST(NodeReport, TheFaceOfASharingNode) {
  const NodeFace face = wanted_face(sharing());
  EXPECT_EQ(face.annotations.at("sluice.dev/mode"), "core_mem");
  EXPECT_EQ(face.labels.at(kLabelCardName), "NVIDIA-H200--80GB");
  EXPECT_EQ(face.card_count, 2);
  Result<json::Value> cards = json::parse(face.annotations.at("sluice.dev/cards"));
  ASSERT_TRUE(cards.ok());
  EXPECT_EQ(cards->at(1).at("memory_mib"), 143771);
  EXPECT_EQ(cards->at(1).at("healthy"), true);
  ReportInput not_yet = sharing();
  not_yet.offering = false;
  EXPECT_EQ(wanted_face(not_yet).annotations.at("sluice.dev/mode"), kModeWaiting);
}

TEST(NodeReport, CardsThatCannotBeLimitedAreNotOffered) {
  ReportInput input = sharing();
  input.cards[0] = card(0, true, "is in MIG mode, where programs run on parts of it past any share");
  NodeFace face = wanted_face(input);
  EXPECT_EQ(face.conditions.at(kConditionEnforcing).reason, "MigMode");
  EXPECT_TRUE(face.conditions.at(kConditionCards).holds);
  EXPECT_EQ(json::parse(face.annotations.at("sluice.dev/cards"))->at(0).at("healthy"), false);
  input.mode.mode = input.mode.wanted.mode = core::NodeMode::kShare;  // where nothing is limited anyway
  EXPECT_EQ(json::parse(wanted_face(input).annotations.at("sluice.dev/cards"))->at(0).at("healthy"), true);
}

TEST(NodeReport, CdiNeedsNewEnoughParts) {
  EXPECT_TRUE(check_cdi("v1.36.3", "containerd://2.4.2").ok());
  EXPECT_TRUE(check_cdi("v1.29.0-eks-1", "containerd://1.7.2").ok());
  EXPECT_TRUE(check_cdi("v1.31.1", "cri-o://1.31.0").ok());
  EXPECT_TRUE(check_cdi("", "").ok());
  EXPECT_FALSE(check_cdi("v1.28.9", "containerd://2.0.0").ok());
  EXPECT_FALSE(check_cdi("v1.31.1", "containerd://1.6.20").ok());
}

}  // namespace
}  // namespace sluice::node
