// The fragmentation measure and the outlook against amounts worked out by hand.
#include "core/fragmentation.h"

#include <gtest/gtest.h>

#include "core/outlook.h"
#include "core/units.h"

namespace sluice::core {
namespace {

Request share(int32_t milli, int32_t cards, int64_t cpu_milli, std::vector<std::string> models = {}) {
  Request request;
  request.cpu_milli = cpu_milli;
  request.cards = cards;
  if (cards == 0) return request;
  request.kind = Kind::kMemoryCore;
  request.units = request.core_milli = milli;
  request.models = std::move(models);
  return request;
}

Node node_with(std::vector<int32_t> free_milli, int64_t cpu_milli) {
  Node node;
  node.cpu_milli = node.free_cpu_milli = cpu_milli;
  for (size_t i = 0; i < free_milli.size(); ++i) {
    Card card;
    card.index = static_cast<int32_t>(i);
    card.model = "T4";
    card.memory_mib = 15109;
    card.units = 1000;
    card.free_units = card.free_core_milli = free_milli[i];
    card.pods = free_milli[i] < 1000;
    node.cards.push_back(card);
  }
  return node;
}

double fragments(const Workload& workload, const Node& node, double imbalance = 0) {
  Fragmentation measure(workload, imbalance);
  ModelTable models;
  const NodeView view = make_view(node, models);
  measure.begin(view, models);
  return measure.of();
}

TEST(Fragmentation, EachCaseOfTheTable) {
  // Idle: 300 + 600 + 1000 = 1900.
  const Node node = node_with({300, 600, 1000}, 8000);
  struct Case {
    Request request;
    double amount;
  };
  const Case cases[] = {
      {share(0, 0, 1000), 1900},             // asks for no card
      {share(0, 0, 9000), 1900},             // nor is there CPU
      {share(500, 1, 1000, {"A10"}), 1900},  // model not allowed
      {share(500, 1, 9000), 1900},           // CPU short
      {share(1000, 2, 1000), 1900},          // cards short
      {share(1000, 2, 9000), 1900},          // both short
      {share(500, 1, 1000), 300},            // fits: the cards it cannot use
      {share(200, 1, 1000), 0},
      {share(1000, 1, 1000), 900},
      {share(600, 2, 1000), 300},
  };
  for (const Case& c : cases) EXPECT_DOUBLE_EQ(fragments({{{c.request, 1.0}}}, node), c.amount);
  // Mixed by popularity.
  EXPECT_DOUBLE_EQ(fragments({{{share(500, 1, 1000), 0.25}, {share(1000, 2, 1000), 0.75}}}, node),
                   0.25 * 300 + 0.75 * 1900);
}

TEST(Fragmentation, AfterIsWhatTheNodeThenSays) {
  const Workload workload{{{share(500, 1, 1000), 0.5}, {share(1000, 1, 4000), 0.3}, {share(0, 0, 2000), 0.2}}};
  Node node = node_with({300, 600, 1000}, 8000);
  const Request request = share(400, 1, 2000);
  for (int32_t card : {1, 2}) {
    Fragmentation measure(workload, 0.2);
    ModelTable models;
    const NodeView view = make_view(node, models);
    measure.begin(view, models);
    const double foretold = measure.after(make_shape(request, models), 1u << card);
    Node then = node;
    ASSERT_TRUE(take(then, placement_on(then, request, {card})).ok());
    EXPECT_DOUBLE_EQ(foretold, fragments(workload, then, 0.2));
  }
}

TEST(Fragmentation, ImbalanceCountsWhatCannotBeUsedTogether) {
  Node node = node_with({1000}, 8000);
  node.cards[0].free_units = 200;  // memory nearly gone, compute not
  const Workload workload{{{share(0, 0, 1000), 1.0}}};
  EXPECT_DOUBLE_EQ(fragments(workload, node), 600);  // card-equivalents: half of 200 and half of 1000
  EXPECT_DOUBLE_EQ(fragments(workload, node, 0.5), 600 + 0.5 * 800);
}

// One class of a whole card and 4 CPU on a node of four idle cards and 8 CPU: the CPU lasts for two of them. FGD sees
// no waste at all until the CPU has gone; the outlook sees two stranded cards, and that a pod which takes CPU alone
// strands more.
TEST(Outlook, SeesCardsThatTheCpuWillNotReach) {
  const Workload workload{{{share(1000, 1, 4000), 1.0}}};
  const Node node = node_with({1000, 1000, 1000, 1000}, 8000);
  ModelTable models;
  models.count_cards(node, 1);
  const NodeView view = make_view(node, models);
  const Shape cpu_only = make_shape(share(0, 0, 2000), models);
  Outlook blind(workload, {0.0, 0.0}), far(workload, {1.0, 0.0});
  blind.begin(view, models);
  far.begin(view, models);
  EXPECT_DOUBLE_EQ(blind.growth(cpu_only, 0), 0);
  EXPECT_DOUBLE_EQ(far.growth(cpu_only, 0), 500);  // half a card's worth of CPU
  // A whole-card pod of 1 CPU uses a card that would have been stranded: waste falls from 2000 to 3000 - 7/4 x 1000.
  const Shape light = make_shape(share(1000, 1, 1000), models);
  EXPECT_DOUBLE_EQ(far.growth(light, 1), (3000 - 1750) - 2000);
}

TEST(Outlook, ScarcityIsDemandOverSupply) {
  // 8 cards of A, 2 of B. Half the demand may go anywhere, half only to B.
  ModelTable models;
  Node a = node_with(std::vector<int32_t>(8, 1000), 8000), b = node_with({1000, 1000}, 8000);
  for (Card& card : a.cards) card.model = "A";
  for (Card& card : b.cards) card.model = "B";
  models.count_cards(a, 1);
  models.count_cards(b, 1);
  Outlook outlook({{{share(1000, 1, 1000), 0.5}, {share(1000, 1, 1000, {"B"}), 0.5}}}, {});
  NodeView view = make_view(a, models);
  outlook.begin(view, models);
  EXPECT_DOUBLE_EQ(outlook.scarcity(), 0.5);
  NodeView other = make_view(b, models);
  outlook.begin(other, models);
  EXPECT_DOUBLE_EQ(outlook.scarcity(), 0.5 + 0.5 * 10 / 2);
}

TEST(Workload, PublishedRule) {
  std::vector<Request> seen;
  for (int i = 0; i < 60; ++i) seen.push_back(share(500, 1, 1000));
  for (int i = 0; i < 36; ++i) seen.push_back(share(1000, 1, 4000));
  for (int i = 0; i < 4; ++i) seen.push_back(share(0, 0, 2000));
  seen[3].memory_mib = 777;  // main memory does not make a class
  const Workload workload = learn_workload(seen);
  ASSERT_EQ(workload.classes.size(), 2u);  // 96 % are covered by two
  EXPECT_EQ(workload.classes[0].request.core_milli, 500);
  EXPECT_DOUBLE_EQ(workload.classes[0].popularity + workload.classes[1].popularity, 1.0);
  EXPECT_DOUBLE_EQ(workload.classes[0].popularity, 0.6 / 0.96);
  EXPECT_EQ(learn_workload(seen, 1.0).classes.size(), 3u);
  EXPECT_TRUE(learn_workload({}).classes.empty());
}

}  // namespace
}  // namespace sluice::core
