// A node with the containers, processes and strangers that tests of metrics look at: the shared pod of the manual's
// example beside a pod with two containers on two cards, one that waits for its grant, and a stranger.
#pragma once

#include "node/metrics.h"

namespace sluice::node::testing {

inline agent::CardStatus card_of(int64_t index, int64_t free_units, int64_t free_core) {
  agent::CardStatus card;
  card.index = index;
  card.uuid = "GPU-" + std::to_string(index);
  card.model = "Tesla V100-SXM2-32GB";
  card.state = "ok";
  card.kind = "memory+core";
  card.memory_mib = 32510;
  card.units = 31;
  card.free_units = free_units;
  card.free_core_percent = free_core;
  card.grants = 1;
  card.used_mib = 1400;
  card.utilisation_percent = 30;
  return card;
}

inline ContainerGrant container_of(const std::string& pod, const std::string& container, const std::string& grant,
                                   std::vector<ContainerCard> cards) {
  ContainerGrant out;
  out.name_space = "default";
  out.pod = pod;
  out.pod_uid = "uid-" + pod;
  out.container = container;
  out.container_id = "id-" + pod + "-" + container;
  out.grant_id = grant;
  out.cards = std::move(cards);
  return out;
}

inline agent::GrantStatus grant_of(const ContainerGrant& container) {
  agent::GrantStatus grant;
  grant.id = container.grant_id;
  grant.name = container.container;
  grant.pod = container.pod;
  grant.policy = 3;
  for (const ContainerCard& card : container.cards) {
    grant.cards.push_back(
        {card.index, card.uuid, "Tesla V100-SXM2-32GB", 32510, 31, card.units, card.memory_mib, card.core_percent, ""});
    grant.use.push_back({card.index, 1000, 1100, 29.9, 2, 1, 0});
  }
  return grant;
}

inline NodeSnapshot example_snapshot() {
  NodeSnapshot out;
  out.node_name = "node-b";
  out.mode = "core_mem";
  out.node.agent_version = "0.1.0";
  out.node.driver_version = "550.54.15";
  out.node.cards = {card_of(0, 21, 70), card_of(1, 20, 80)};
  out.containers = {container_of("tf-benchmarks", "tf", "00112233445566ff", {{0, "GPU-0", 10, 10487, 30}}),
                    container_of("pair", "x", "00112233445566fe", {{1, "GPU-1", 8, 8389, 20}}),
                    container_of("pair", "y", "", {{1, "GPU-1", 3, 3146, 0}})};
  out.containers[2].problem = "the container waits for its grant";
  out.node.grants = {grant_of(out.containers[0]), grant_of(out.containers[1])};
  out.node.grants[0].processes = {{4711, 0, "python \"x\"", 900, 800, 30.5, 12345, 1.5, true, 4, 5, 6},
                                  {4711, 0, "twice", 1, 1, 1, 1, 1, true}};
  Stranger stranger;
  stranger.process.pid = 4712;
  stranger.process.command = "miner";
  stranger.card_index = 1;
  stranger.card_uuid = "GPU-1";
  stranger.used_mib = 300;
  stranger.name_space = "default";
  stranger.pod = "sneaky";
  stranger.container = "c";
  out.strangers = {stranger};
  out.figures = {{"sluice_agent_allocate_calls_total", "Allocate calls answered.", true, 7}};
  return out;
}

}  // namespace sluice::node::testing
