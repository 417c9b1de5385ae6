// The rules of placement, seeded: never over a card's capacity, release restores exactly, order of equal operations
// does not matter, a refusal's reason is true, and the remembered answer is the one computed afresh.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "core/cluster.h"
#include "core/default_policy.h"
#include "core/feasible.h"
#include "core/place.h"
#include "core/scorer.h"
#include "core/units.h"
#include "core/workload.h"

namespace sluice::core {
namespace {

constexpr PolicyName kAllPolicies[] = {PolicyName::kDefault, PolicyName::kBinpack, PolicyName::kSpread,
                                       PolicyName::kFragmentation, PolicyName::kBestFit};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  std::mt19937 engine_;
};

Node random_node(Random& random, int number) {
  static const std::pair<const char*, int64_t> kModels[] = {{"T4", 15109}, {"V100", 32510}, {"A10", 22731}};
  Node node;
  node.name = "node-" + std::to_string(number);
  const int64_t mode = random.below(10);
  node.mode = mode == 0   ? NodeMode::kDefault
              : mode == 1 ? NodeMode::kMemory
              : mode == 2 ? NodeMode::kShare
              : mode == 3 ? NodeMode::kNothing
                          : NodeMode::kCoreMemory;
  node.mixed = random.one_in(3);
  node.max_pods_per_card = random.one_in(3) ? 2 : 20;
  node.card_order = random.one_in(4) ? CardOrder::kSpread : CardOrder::kByPolicy;
  node.cpu_milli = node.free_cpu_milli = random.one_in(5) ? kUnlimited : 8000 * (1 + random.below(8));
  node.memory_mib = node.free_memory_mib = random.one_in(5) ? kUnlimited : 65536;
  const auto& [model, mib] = kModels[random.below(3)];
  for (int64_t i = 0, count = random.below(9); i < count; ++i) {
    node.cards.push_back(make_card(static_cast<int32_t>(10 + i), "GPU-" + std::to_string(i), model, mib));
    node.cards.back().healthy = !random.one_in(12);
  }
  return node;
}

Request random_request(Random& random) {
  Request request;
  const int64_t kind = random.below(8);
  request.kind = kind == 0 ? Kind::kNone : kind == 1 ? Kind::kWhole : kind == 2 ? Kind::kMemory : Kind::kMemoryCore;
  if (request.kind != Kind::kNone) request.cards = random.one_in(4) ? static_cast<int32_t>(1 + random.below(8)) : 1;
  if (request.kind == Kind::kMemory || request.kind == Kind::kMemoryCore)
    request.units = 1 + random.below(random.one_in(6) ? 40 : 14);
  if (request.kind == Kind::kMemoryCore) request.core_milli = static_cast<int32_t>(50 * (1 + random.below(20)));
  if (request.cards > 0 && random.one_in(5)) request.models = {"T4", "V100"};
  if (random.one_in(2)) request.cpu_milli = 1000 * random.below(16);
  if (random.one_in(3)) request.memory_mib = 1024 * random.below(32);
  return request;
}

// What the node holds, added up from what was put there: independent of the free numbers inside.
void expect_within_capacity(const Node& node, const std::vector<Placement>& there) {
  int64_t cpu = 0, memory = 0;
  for (const Card& card : node.cards) {
    int64_t units = 0, core = 0, mib = 0;
    int32_t pods = 0;
    for (const Placement& placement : there)
      for (const Share& share : placement.shares)
        if (share.card_index == card.index) {
          units += share.units;
          core += share.core_milli;
          mib += share.memory_mib;
          ++pods;
        }
    ASSERT_LE(units, card.units);
    ASSERT_LE(core, 1000);
    ASSERT_LE(mib, card.memory_mib);
    if (node.max_pods_per_card > 0) {
      ASSERT_LE(pods, node.max_pods_per_card);
    }
    ASSERT_EQ(card.free_units, card.units - units);
    ASSERT_EQ(card.free_core_milli, 1000 - core);
    ASSERT_EQ(card.pods, pods);
  }
  for (const Placement& placement : there) {
    cpu += placement.cpu_milli;
    memory += placement.memory_mib;
  }
  ASSERT_LE(cpu, node.cpu_milli);
  ASSERT_LE(memory, node.memory_mib);
}

Workload random_workload(Random& random) {
  std::vector<Request> seen;
  for (int i = 0; i < 200; ++i) seen.push_back(random_request(random));
  return learn_workload(seen);
}

std::unique_ptr<Scorer> scorer_for(PolicyName name) {
  Random random(99);
  return make_scorer(Policy{name}, random_workload(random));
}

// A model of the whole: a cluster under random arrivals, departures, node changes; after each step the sums hold, the
// remembered answer equals a fresh one, and what is refused is refused on every node for a reason that is true.
class RandomCluster : public testing::TestWithParam<PolicyName> {};
INSTANTIATE_TEST_SUITE_P(Policies, RandomCluster, testing::ValuesIn(kAllPolicies),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST_P(RandomCluster, KeepsItsPromises) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    Random random(seed);
    Cluster cluster(scorer_for(GetParam()));
    std::map<NodeId, Node> pristine;
    std::map<NodeId, std::vector<Placement>> there;
    for (int i = 0; i < 12; ++i) {
      Node node = random_node(random, i);
      NodeId id = *cluster.add(node, static_cast<uint32_t>(random.below(1000)));
      pristine[id] = std::move(node);
    }
    std::vector<Request> shapes;
    for (int i = 0; i < 10; ++i) shapes.push_back(random_request(random));
    for (int step = 0; step < 500; ++step) {
      const Request& request = shapes[static_cast<size_t>(random.below(10))];
      if (random.one_in(3) && !there.empty()) {  // a departure
        auto& [id, placements] = *std::next(there.begin(), random.below(static_cast<int64_t>(there.size())));
        if (placements.empty()) continue;
        const size_t which = static_cast<size_t>(random.below(static_cast<int64_t>(placements.size())));
        ASSERT_TRUE(cluster.release(id, placements[which]).ok());
        placements.erase(placements.begin() + static_cast<std::ptrdiff_t>(which));
        continue;
      }
      std::optional<Decision> decision = cluster.decide(request);
      // Afresh: a cluster that remembers nothing.
      Cluster fresh(scorer_for(GetParam()));
      std::vector<int64_t> fresh_keys;
      for (const auto& [id, unused] : pristine) (void)*fresh.add(cluster.node(id), 0);
      for (const auto& [id, unused] : pristine) {
        std::optional<Decision> on = fresh.decide_on(id, request);
        const int64_t key = cluster.keys(request)[id];
        ASSERT_EQ(on.has_value(), key != Cluster::kRefused);
        ASSERT_EQ(on.has_value(), !refusal(cluster.node(id), request).has_value());
        if (on) {
          ASSERT_EQ(on->score, Cluster::score_of(key));
        }
      }
      ASSERT_EQ(decision.has_value(), std::any_of(pristine.begin(), pristine.end(), [&](const auto& entry) {
                  return !refusal(cluster.node(entry.first), request);
                }));
      if (!decision) continue;
      ASSERT_EQ(decision->placement.shares.size(), static_cast<size_t>(request.cards));
      ASSERT_TRUE(cluster.take(decision->node, decision->placement).ok());
      there[decision->node].push_back(decision->placement);
      expect_within_capacity(cluster.node(decision->node), there[decision->node]);
    }
    // Everything leaves, in random order: each node is as it was before anything came.
    for (auto& [id, placements] : there) {
      while (!placements.empty()) {
        const size_t which = static_cast<size_t>(random.below(static_cast<int64_t>(placements.size())));
        ASSERT_TRUE(cluster.release(id, placements[which]).ok());
        placements.erase(placements.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    for (const auto& [id, node] : pristine) ASSERT_EQ(cluster.node(id), node);
  }
}

// place() and Cluster are two ways to the same answer.
TEST(Placement, SmallAndLargeWayAgree) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const Policy policy{random.one_in(2) ? PolicyName::kSpread : PolicyName::kBinpack};
    Cluster cluster(make_scorer(policy));
    std::vector<Node> nodes;
    for (int i = 0; i < 5; ++i) {
      nodes.push_back(random_node(random, i));
      (void)*cluster.add(nodes.back(), static_cast<uint32_t>(i));
    }
    const Request request = random_request(random);
    Result<Placed> placed = place(nodes, request, policy);
    std::optional<Decision> decision = cluster.decide(request);
    ASSERT_EQ(placed.ok(), decision.has_value());
    if (!placed) {
      EXPECT_EQ(placed.error().message, cluster.explain(request).text());
      EXPECT_FALSE(placed.error().message.empty());
      continue;
    }
    EXPECT_EQ(placed->node, decision->node);
    EXPECT_EQ(placed->placement, decision->placement);
  }
}

// What a refusal says is so: by brute force over the node's cards, in other words than the code's.
TEST(Placement, RefusalsAreTrue) {
  Random random(11);
  std::map<Rule, int> seen;
  for (int round = 0; round < 20000; ++round) {
    Node node = random_node(random, 0);
    for (int i = 0; i < 12; ++i) {
      const Request filler = random_request(random);
      if (!refusal(node, filler)) {
        std::vector<int32_t> cards = fitting_cards(node, filler);
        cards.resize(static_cast<size_t>(filler.cards));
        ASSERT_TRUE(take(node, placement_on(node, filler, cards)).ok());
      }
    }
    const Request request = random_request(random);
    const std::optional<Refusal> reason = refusal(node, request);
    // Ground truth: can enough cards each take their part?
    int32_t able = 0;
    std::vector<int64_t> memory, core;
    for (const Card& card : node.cards) {
      const bool allowed =
          request.models.empty() || std::count(request.models.begin(), request.models.end(), card.model);
      const bool room = node.max_pods_per_card == 0 || card.pods < node.max_pods_per_card;
      const int64_t units = request.kind == Kind::kWhole ? card.units : request.units;
      if (!allowed || !card.healthy || !room || card.units < units) continue;
      memory.push_back(card.free_units);
      core.push_back(card.free_core_milli / 10);
      able += request.kind == Kind::kWhole ? card.pods == 0
                                           : card.free_units >= units && card.free_core_milli >= request.core_milli;
    }
    std::sort(memory.rbegin(), memory.rend());
    std::sort(core.rbegin(), core.rend());
    const bool served =
        request.kind == Kind::kNone || (node.mode == NodeMode::kDefault && request.kind == Kind::kWhole) ||
        (node.mode == NodeMode::kCoreMemory &&
         (request.kind == Kind::kMemoryCore || (node.mixed && request.kind == Kind::kMemory))) ||
        ((node.mode == NodeMode::kMemory || node.mode == NodeMode::kShare) && request.kind == Kind::kMemory);
    const bool fits = served && able >= request.cards && request.cpu_milli <= node.free_cpu_milli &&
                      request.memory_mib <= node.free_memory_mib;
    ASSERT_EQ(fits, !reason.has_value());
    if (!reason) continue;
    ++seen[reason->rule];
    const size_t k = static_cast<size_t>(request.cards);
    if (reason->rule != Rule::kMode) {
      ASSERT_LT(reason->have, reason->need) << to_text(*reason);
    }
    switch (reason->rule) {
      case Rule::kMode:
        ASSERT_FALSE(served);
        break;
      case Rule::kCardMemory:
        ASSERT_EQ(reason->need, request.units);
        ASSERT_EQ(reason->have, memory[k - 1]);
        break;
      case Rule::kCardCore:
        ASSERT_EQ(reason->need, request.core_milli / 10);
        ASSERT_EQ(reason->have, core[k - 1]);
        break;
      case Rule::kCardTogether:
        ASSERT_EQ(reason->have, able);
        break;
      case Rule::kWholeCards:
        ASSERT_EQ(reason->have, able);
        break;
      case Rule::kCardCount:
        ASSERT_EQ(reason->have, static_cast<int64_t>(node.cards.size()));
        break;
      case Rule::kCpu:
        ASSERT_EQ(reason->have, node.free_cpu_milli);
        break;
      case Rule::kMainMemory:
        ASSERT_EQ(reason->have, node.free_memory_mib);
        break;
      default:
        break;
    }
    // "Never" means: not even with the node empty.
    Node empty = node;
    for (Card& card : empty.cards) {
      card.free_units = card.units;
      card.free_core_milli = 1000;
      card.pods = 0;
      card.healthy = true;
    }
    empty.free_cpu_milli = empty.cpu_milli;
    empty.free_memory_mib = empty.memory_mib;
    if (reason->never()) {
      ASSERT_TRUE(refusal(empty, request).has_value()) << to_text(*reason);
    }
  }
  for (Rule rule :
       {Rule::kMode, Rule::kCardCount, Rule::kModel, Rule::kCardSize, Rule::kCpu, Rule::kMainMemory, Rule::kCardHealth,
        Rule::kCardPods, Rule::kCardMemory, Rule::kCardCore, Rule::kCardTogether, Rule::kWholeCards})
    EXPECT_GT(seen[rule], 0) << to_string(rule);
}

// Commuting operations commute: shares taken in any order, nodes added in any order, cards of a refusal summary in any
// order.
TEST(Placement, OrderOfEqualOperationsDoesNotMatter) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    Node node = random_node(random, 0);
    std::vector<Placement> placements;
    Node filled = node;
    for (int i = 0; i < 10; ++i) {
      const Request request = random_request(random);
      if (refusal(filled, request)) continue;
      std::vector<int32_t> cards = fitting_cards(filled, request);
      cards.resize(static_cast<size_t>(request.cards));
      placements.push_back(placement_on(filled, request, cards));
      ASSERT_TRUE(take(filled, placements.back()).ok());
    }
    for (int order = 0; order < 5; ++order) {
      for (size_t i = placements.size(); i > 1; --i)
        std::swap(placements[i - 1], placements[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
      Node other = node;
      for (const Placement& placement : placements) ASSERT_TRUE(take(other, placement).ok());
      ASSERT_EQ(other, filled);
    }
  }
  for (PolicyName policy : kAllPolicies)
    for (uint32_t seed = 20; seed < 30; ++seed) {
      Random again(seed);
      std::vector<Node> nodes;
      for (int i = 0; i < 20; ++i) nodes.push_back(random_node(again, i));
      std::vector<size_t> order(nodes.size());
      std::iota(order.begin(), order.end(), size_t{0});
      Cluster forward(scorer_for(policy)), backward(scorer_for(policy));
      for (size_t i : order) (void)*forward.add(nodes[i], static_cast<uint32_t>(i));
      std::reverse(order.begin(), order.end());
      for (size_t i : order) (void)*backward.add(nodes[i], static_cast<uint32_t>(i));
      for (int step = 0; step < 60; ++step) {
        const Request request = random_request(again);
        std::optional<Decision> a = forward.decide(request), b = backward.decide(request);
        ASSERT_EQ(a.has_value(), b.has_value());
        ASSERT_EQ(forward.explain(request).text(), backward.explain(request).text());
        if (!a) continue;
        ASSERT_EQ(forward.node(a->node).name, backward.node(b->node).name);
        ASSERT_EQ(a->placement, b->placement);
        ASSERT_TRUE(forward.take(a->node, a->placement).ok());
        ASSERT_TRUE(backward.take(b->node, b->placement).ok());
      }
    }
}

TEST(Placement, WrongBookingsChangeNothing) {
  Node node;
  node.name = "n";
  node.cards = {make_card(0, "a", "T4", 15109), make_card(1, "b", "T4", 15109)};
  const Node before = node;
  EXPECT_FALSE(take(node, Placement{{{0, 15, 0, 100}}, 0, 0}).ok());
  EXPECT_FALSE(take(node, Placement{{{0, 1, 0, 100}, {7, 1, 0, 100}}, 0, 0}).ok());
  EXPECT_FALSE(take(node, Placement{{{0, 1, 0, 100}, {0, 1, 0, 100}}, 0, 0}).ok());
  EXPECT_FALSE(take(node, Placement{{{0, -1, 0, 100}}, 0, 0}).ok());
  EXPECT_FALSE(take(node, Placement{{{0, 1, 0, 1001}}, 0, 0}).ok());
  EXPECT_FALSE(release(node, Placement{{{0, 1, 0, 100}}, 0, 0}).ok());
  EXPECT_EQ(node, before);
}

TEST(Placement, CardOrderAndWeights) {
  Node node;
  node.name = "n";
  node.cards = {make_card(0, "a", "V", 32768), make_card(1, "b", "V", 32768), make_card(2, "c", "V", 32768)};
  // Card 0: much memory taken, little compute. Card 1: the other way round. Card 2: empty.
  ASSERT_TRUE(take(node, Placement{{{0, 20, 0, 100}}, 0, 0}).ok());
  ASSERT_TRUE(take(node, Placement{{{1, 4, 0, 700}}, 0, 0}).ok());
  const Request request = *parse_request("4", "10");
  auto card = [&](PolicyName name, double weight) {
    return place({&node, 1}, request, {name, weight})->placement.shares[0].card_index;
  };
  EXPECT_EQ(card(PolicyName::kBinpack, 1.0), 0);
  EXPECT_EQ(card(PolicyName::kBinpack, 0.0), 1);
  EXPECT_EQ(card(PolicyName::kSpread, 0.5), 2);
  node.card_order = CardOrder::kSpread;  // the node's label wins inside the node
  EXPECT_EQ(card(PolicyName::kBinpack, 0.5), 2);
  node.card_order = CardOrder::kBinpack;
  EXPECT_NE(card(PolicyName::kSpread, 0.5), 2);
}

TEST(Placement, MaxPodsPerCardAndItsReason) {
  Node node;
  node.mode = NodeMode::kMemory;
  node.max_pods_per_card = 2;
  node.cards = {make_card(0, "a", "T4", 15109)};
  const Request request = *parse_request("1", std::nullopt);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(take(node, place({&node, 1}, request)->placement).ok());
  Result<Placed> refused = place({&node, 1}, request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "pods per card: needs 1 with room for one more pod on one node, most on any node 0");
  node.max_pods_per_card = 0;  // no limit
  EXPECT_TRUE(place({&node, 1}, request).ok());
}

TEST(Placement, ReasonsOfManyNodesAreOneStableText) {
  RefusalSummary one, other;
  const Refusal a{Rule::kCardMemory, 10, 7, 1, {}, {}}, b{Rule::kCardMemory, 10, 3, 1, {}, {}},
      c{Rule::kCardCore, 30, 25, 1, {}, {}};
  for (const Refusal& refusal : {a, b, c}) one.add(refusal);
  for (const Refusal& refusal : {c, b, a}) other.add(refusal);
  EXPECT_EQ(one.text(), other.text());
  EXPECT_EQ(one.text(),
            "card compute: needs 30 % on one card, most free on any card 25 %; "
            "card memory: needs 10 GiB on one card, most free on any card 7 GiB");
}

TEST(Cluster, BoundsAndIds) {
  Cluster cluster(make_scorer({}));
  Node node;
  node.name = "many";
  for (int i = 0; i <= kMaxCardsPerNode; ++i) node.cards.push_back(make_card(i, "u", "T4", 15109));
  EXPECT_FALSE(cluster.add(node, 0).ok());
  node.cards.resize(2);
  const NodeId first = *cluster.add(node, 0);
  const Request request = *parse_request("2", "10");
  EXPECT_EQ(cluster.decide(request)->node, first);
  cluster.remove(first);
  EXPECT_FALSE(cluster.decide(request).has_value());
  EXPECT_FALSE(cluster.take(first, {}).ok());
  EXPECT_EQ(*cluster.add(node, 0), first);  // ids are used again
  EXPECT_TRUE(cluster.decide(request).has_value());
  node.cards[0].healthy = node.cards[1].healthy = false;
  ASSERT_TRUE(cluster.update(first, node).ok());
  EXPECT_FALSE(cluster.decide(request).has_value());
  EXPECT_EQ(cluster.explain(request).text(), "card health: needs 1 healthy on one node, most on any node 0");
}

}  // namespace
}  // namespace sluice::core
