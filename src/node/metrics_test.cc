#include "node/metrics.h"

#include <gtest/gtest.h>

#include <set>

#include "node/enforcement.h"
#include "node/snapshot_testing.h"
#include "page/grant.h"

namespace sluice::node {
namespace {

using testing::container_of;
using testing::example_snapshot;
using testing::grant_of;

void expect_line(const std::string& text, const std::string& line) {
  EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << "\nis not in\n" << text;
}

TEST(NodeMetrics, TheExampleReadsAsTheDashboardsExpect) {
  const std::string text = node_metrics_text(example_snapshot());
  const std::string node = R"(Hostname="node-b",node="node-b")";
  const std::string card0 = R"(gpu="0",UUID="GPU-0",modelName="Tesla V100-SXM2-32GB",)" + node;
  const std::string tf = card0 + R"(,namespace="default",pod="tf-benchmarks",container="tf")";
  expect_line(text, "DCGM_CUSTOM_ALLOCATE_MODE{" + node + "} 2");
  expect_line(text, "DCGM_CUSTOM_DEV_FB_TOTAL{" + card0 + "} 32510");
  expect_line(text, "DCGM_CUSTOM_DEV_FB_ALLOCATED{" + card0 + "} 0.3225806451612903");  // 10 of 31 units
  expect_line(text, "sluice_card_core_allocated_percent{" + card0 + "} 30");
  expect_line(text, "DCGM_FI_DEV_FB_FREE{" + card0 + "} 31110");
  expect_line(text, "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED{" + tf + "} 0.3");
  expect_line(text, "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED{" + tf + "} 10487");
  expect_line(text, "sluice_container_utilisation_percent{" + tf + "} 29.9");
  const std::string process = tf + R"(,process_id="4711",process_name="python \"x\"",process_type="C")";
  expect_line(text, "DCGM_CUSTOM_PROCESS_SM_UTIL{" + process + "} 30.5");
  expect_line(text, "DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL{" + process + "} 4");
  expect_line(text, "DCGM_CUSTOM_PROCESS_ENCODE_UTIL{" + process + "} 5");
  expect_line(text, "DCGM_CUSTOM_PROCESS_DECODE_UTIL{" + process + "} 6");
  expect_line(text, "DCGM_CUSTOM_PROCESS_MEM_USED{" + process + "} 900");
  const std::string pair = node + R"(,namespace="default",pod="pair",container=)";
  expect_line(text, "sluice_enforced{" + pair + "\"x\"} 1");
  expect_line(text, "sluice_enforced{" + pair + "\"y\"} 0");
  expect_line(text, "sluice_not_enforced_info{" + pair + R"("y",reason="the container waits for its grant"} 1)");
  expect_line(text,
              R"(sluice_stranger_memory_used_mib{gpu="1",UUID="GPU-1",)" + node +
                  R"(,namespace="default",pod="sneaky",container="c",process_id="4712",process_name="miner"} 300)");
  expect_line(text, "sluice_agent_allocate_calls_total{" + node + "} 7");
  EXPECT_EQ(text.find("twice"), std::string::npos);
}

// Prometheus refuses a scrape in which a series stands twice, and families that are torn apart.
void expect_sound(const std::string& text) {
  std::set<std::string> series;
  std::set<std::string> families;
  std::string family;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family << " stands twice";
    } else if (!line.starts_with("#")) {
      EXPECT_EQ(line.substr(0, line.find('{')), family) << line;
      EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line << " stands twice";
    }
  }
}

TEST(NodeMetrics, NoSeriesStandsTwice) {
  NodeSnapshot snapshot = example_snapshot();
  expect_sound(node_metrics_text(snapshot));
  // A pod that is going, and its successor with the same name.
  ContainerGrant old = snapshot.containers[0];
  old.grant_id = "0";
  old.pod_uid = "uid-old";
  snapshot.containers.insert(snapshot.containers.begin(), old);
  const std::string text = node_metrics_text(snapshot);
  expect_sound(text);
  expect_line(
      text,
      R"(sluice_enforced{Hostname="node-b",node="node-b",namespace="default",pod="tf-benchmarks",container="tf"} 1)");
  expect_sound(node_metrics_text({}));
}

TEST(NodeMetrics, ModesOfAllocation) {
  NodeSnapshot snapshot;
  snapshot.node_name = "n";
  const std::string mode = R"(DCGM_CUSTOM_ALLOCATE_MODE{Hostname="n",node="n"} )";
  expect_line(node_metrics_text(snapshot), mode + "0");
  snapshot.containers = {container_of("p", "c", "1", {{0, "GPU-0", 31, 32510, 100}})};
  snapshot.containers[0].whole_cards = true;
  expect_line(node_metrics_text(snapshot), mode + "1");
  EXPECT_NE(node_metrics_text(snapshot).find("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED{gpu=\"0\""), std::string::npos);
  EXPECT_NE(node_metrics_text(snapshot).find("container=\"c\"} 0\n"), std::string::npos) << "0 = not limited";
  snapshot.containers[0].whole_cards = false;
  expect_line(node_metrics_text(snapshot), mode + "2");
}

TEST(NodeMetrics, NvidiasNamesCanBeLeftOut) {
  NodeSnapshot snapshot = example_snapshot();
  snapshot.device_series = false;
  EXPECT_EQ(node_metrics_text(snapshot).find("DCGM_FI_DEV_"), std::string::npos);
}

TEST(Enforcement, HoldsOnlyWhileEverythingIsThere) {
  const NodeSnapshot good = example_snapshot();
  const ContainerGrant& container = good.containers[0];
  EXPECT_EQ(not_in_force(container, good.node, good.strangers), "");

  ContainerGrant other = container;
  other.problem = "its driver is too old";
  EXPECT_EQ(not_in_force(other, good.node, {}), "its driver is too old");
  other = container;
  other.grant_id = "";
  EXPECT_EQ(not_in_force(other, good.node, {}), "the agent holds no grant for it");
  other = container;
  other.cards[0].core_percent = 20;
  EXPECT_EQ(not_in_force(other, good.node, {}), "its grant on card GPU-0 is another than its pod was given");
  other.cards[0] = {1, "GPU-1", 10, 10487, 30};
  EXPECT_EQ(not_in_force(other, good.node, {}), "its grant lacks card GPU-1");

  agent::ListAnswer node = good.node;
  node.cards[0].state = "lost";
  EXPECT_EQ(not_in_force(container, node, {}), "card GPU-0 is lost");
  node.cards.erase(node.cards.begin());
  EXPECT_EQ(not_in_force(container, node, {}), "card GPU-0 is not on the node");
  node = good.node;
  node.grants[0].policy = page::kPolicyNative;
  EXPECT_EQ(not_in_force(container, node, {}), "the compute policy is native: memory alone is held");
  other = container;
  other.cards[0].core_percent = 0;
  node.grants[0].cards[0].core_percent = 0;
  EXPECT_EQ(not_in_force(other, node, {}), "") << "no cap was asked for";

  Stranger stranger;
  stranger.pod_uid = container.pod_uid;
  stranger.container = "tf";
  stranger.has_grant = true;
  EXPECT_EQ(not_in_force(container, good.node, {stranger}), "a process of it uses the card past Sluice's library");
  stranger.container = "sidecar";
  EXPECT_EQ(not_in_force(container, good.node, {stranger}), "");
}

}  // namespace
}  // namespace sluice::node
