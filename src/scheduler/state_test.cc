#include "scheduler/state.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "scheduler/extender.h"
#include "scheduler/objects_for_tests.h"

namespace sluice::scheduler {
namespace {

class StateTest : public testing::Test {
 protected:
  StateTest() : state_({}, *kube::Verifier::from_pem({signer_.public_pem()})) {}

  // Binds as the scheduler does: plan, then the watch brings the bound pod with its record.
  void bind(PodSpec spec, const std::string& node_name) {
    state_.pod_changed(pod(spec));
    Result<BindPlan> plan = state_.plan_bind("uid-" + spec.name, node_name);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    kube::Allocation allocation = kube::make_allocation(plan->request, plan->node, plan->placement);
    spec.annotations =
        kube::to_annotations(allocation, plan->node, plan->container_names, "uid-" + spec.name, signer_, 1);
    spec.node = node_name;
    state_.bind_finished("uid-" + spec.name);
    state_.pod_changed(pod(spec));
    bound_[spec.name] = spec;
  }
  std::string free_of(const std::string& name) {
    json::Value all = state_.describe();
    std::string out;
    for (const json::Value& one : all.at("nodes").get_array()) {
      if (one.at("name").get_string() != name.c_str()) continue;
      for (const json::Value& card : one.at("cards").get_array()) {
        out += fmt::format("{}/{} ", card.at("free_units").to_number<int>(),
                           card.at("free_core_percent").to_number<int>());
      }
    }
    return out;
  }

  kube::Signer signer_ = kube::Signer::generate();
  State state_;
  std::map<std::string, PodSpec> bound_;
};

TEST_F(StateTest, FiltersAndNamesRuleNeedHave) {
  state_.replace_nodes({node("a"), node("b", 1, "cgpu"), node("c", 1, "default")});
  state_.replace_pods({});
  EXPECT_TRUE(state_.ready());
  FilterAnswer answer = state_.filter(decoded({.name = "p"}), {"a", "b", "c"});
  EXPECT_EQ(answer.nodes, std::vector<std::string_view>{"a"});
  EXPECT_TRUE(answer.failed.empty());

  answer = state_.filter(decoded({.name = "p", .memory = "40"}), {"a", "b"});
  EXPECT_TRUE(answer.nodes.empty());
  ASSERT_EQ(answer.unresolvable.size(), 2u);
  EXPECT_EQ(answer.unresolvable[0].second, "card size: needs 40 GiB on one card, largest has 31 GiB");

  answer = state_.filter(decoded({.name = "p", .core = "33"}), {"a"});
  EXPECT_NE(answer.unresolvable[0].second.find("multiple of 5"), std::string::npos) << answer.unresolvable[0].second;
  answer = state_.filter(decoded({.name = "p"}), {"zz"});
  ASSERT_EQ(answer.failed.size(), 1u);
}

TEST_F(StateTest, HaveIsTheBestOverAllNodesSoThatTextsAreEqual) {
  state_.replace_nodes({node("a"), node("b")});
  state_.replace_pods({});
  bind({.name = "x", .memory = "24"}, "a");
  bind({.name = "y", .memory = "28"}, "b");
  FilterAnswer answer = state_.filter(decoded({.name = "p"}), {"a", "b"});
  ASSERT_EQ(answer.unresolvable.size(), 2u);
  EXPECT_EQ(answer.unresolvable[0].second, "card memory: needs 10 GiB on one card, most free on any card 7 GiB");
  EXPECT_EQ(answer.unresolvable[1].second, answer.unresolvable[0].second);
}

// A small pod on the half-full card would spoil it for the usual pod, which takes half a card; the empty card stays
// good for one. That is known once enough pods were seen; binpack never looks.
TEST(StatePolicy, TheDefaultLearnsWhatUsuallyArrives) {
  for (core::PolicyName policy : {core::PolicyName::kDefault, core::PolicyName::kBinpack}) {
    kube::Signer signer = kube::Signer::generate();
    StateSettings settings;
    settings.policy.name = policy;
    State state(settings, *kube::Verifier::from_pem({signer.public_pem()}));
    state.replace_nodes({node("half", 1), node("empty", 1)});
    const PodSpec small{.name = "small", .memory = "8", .core = "25"};
    state.replace_pods({pod({.name = "there", .memory = "15", .core = "50", .node = "half", .started = true})});
    EXPECT_EQ(state.filter(decoded(small), {"half", "empty"}).nodes[0], "half");
    for (size_t i = 0; i < WorkloadLearner::kFirst; ++i)
      state.pod_changed(pod({.name = fmt::format("p{}", i), .memory = "16", .core = "50"}));
    EXPECT_EQ(state.filter(decoded(small), {"half", "empty"}).nodes[0],
              policy == core::PolicyName::kDefault ? "empty" : "half");
    EXPECT_EQ(state.filter(decoded({.name = "p0", .memory = "16", .core = "50"}), {"half", "empty"}).nodes[0], "half");
  }
}

TEST(WorkloadLearner, LearnsAgainWhenHalfOfItIsNew) {
  core::Request request;
  request.kind = core::Kind::kMemory;
  request.cards = 1;
  request.units = 8;
  WorkloadLearner learner({});
  size_t learnt = 0;
  for (size_t i = 1; i <= 10'000; ++i) {
    if (learner.saw(request) == nullptr) continue;
    ++learnt;
    EXPECT_GE(i, WorkloadLearner::kFirst);
  }
  EXPECT_GE(learnt, 6u);
  EXPECT_LE(learnt, 12u);
  core::Policy spread;
  spread.name = core::PolicyName::kSpread;
  WorkloadLearner never(spread);
  for (size_t i = 0; i < WorkloadLearner::kFirst; ++i) EXPECT_EQ(never.saw(request), nullptr);
}

TEST_F(StateTest, HoldsFromPlanUntilGone) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  state_.pod_changed(pod({.name = "p"}));
  ASSERT_TRUE(state_.plan_bind("uid-p", "a").ok());
  EXPECT_EQ(free_of("a"), "21/70 ");
  EXPECT_EQ(state_.plan_bind("uid-p", "a").error().code, ErrorCode::kExists);  // one bind per pod at a time
  state_.bind_refused("uid-p");
  EXPECT_EQ(free_of("a"), "31/100 ");
  bind({.name = "p"}, "a");
  EXPECT_EQ(free_of("a"), "21/70 ");
  PodSpec done = bound_["p"];
  done.phase = "Succeeded";
  state_.pod_changed(pod(done));
  EXPECT_EQ(free_of("a"), "31/100 ");
}

// The card count is a label, which people change while the pod waits: filter and bind mean the same pod.
TEST_F(StateTest, APendingPodAsksForWhatItsLabelSaysNow) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({pod({.name = "p"}), pod({.name = "odd", .card_count = "3"})});
  state_.pod_changed(pod({.name = "p", .core = "30", .card_count = "2"}));
  Result<BindPlan> plan = state_.plan_bind("uid-p", "a");
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->placement.shares.size(), 2u);
  EXPECT_EQ(free_of("a"), "26/85 26/85 ");
  EXPECT_EQ(state_.plan_bind("uid-odd", "a").error().code, ErrorCode::kInvalid);
  state_.pod_changed(pod({.name = "odd"}));
  EXPECT_TRUE(state_.plan_bind("uid-odd", "a").ok());
  // Even while its Binding is on its way, and to something that is no request: sums are still told.
  state_.pod_changed(pod({.name = "odd", .card_count = "3"}));
  EXPECT_TRUE(state_.explain("d", "odd").ok());
  state_.pod_changed(pod({.name = "q", .memory = "1", .core = "5"}));
  EXPECT_TRUE(state_.explain("d", "q").ok());
}

// Whoever may edit a pod's labels must not make the scheduler forget the cards that its record names, whether the label
// was changed under its eyes or before it came.
TEST_F(StateTest, AnAuthenticRecordCountsWhateverTheLabelsSay) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  bind({.name = "p"}, "a");
  const std::string held = free_of("a");
  PodSpec edited = bound_["p"];
  edited.card_count = "3";
  state_.pod_changed(pod(edited));
  EXPECT_EQ(free_of("a"), held);
  State after_restart({}, *kube::Verifier::from_pem({signer_.public_pem()}));
  after_restart.replace_nodes({node("a", 2)});
  after_restart.replace_pods({pod(edited)});
  EXPECT_EQ(json::to_string(after_restart.describe().at("nodes").at(0).at("cards")),
            json::to_string(state_.describe().at("nodes").at(0).at("cards")));
  after_restart.pod_changed(pod({.name = "q", .memory = "31", .core = "5"}));
  EXPECT_TRUE(after_restart.explain("d", "q").ok());
}

TEST_F(StateTest, AnAssumptionOutlivesSilenceAndRelistsDropPhantoms) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({pod({.name = "p"}), pod({.name = "q"})});
  ASSERT_TRUE(state_.plan_bind("uid-p", "a").ok());
  state_.bind_finished("uid-p");  // time-out: nobody knows
  EXPECT_EQ(free_of("a"), "21/70 ");
  state_.replace_pods({pod({.name = "p"})});
  EXPECT_EQ(free_of("a"), "21/70 ");
  state_.replace_pods({});
  EXPECT_EQ(free_of("a"), "31/100 ");
}

TEST_F(StateTest, AForgedRecordFreesNothingAndGivesNothing) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  bind({.name = "p"}, "a");
  std::string before = free_of("a");
  PodSpec edited = bound_["p"];
  edited.annotations["sluice.dev/allocation"] = R"({"version":1,"cards":[],"containers":{}})";
  state_.pod_changed(pod(edited));
  EXPECT_EQ(free_of("a"), "21/70 21/70 ") << before;  // worst case: on every card
  EXPECT_EQ(state_.counts().untrusted_records, 1u);
  state_.pod_changed(pod(bound_["p"]));
  EXPECT_EQ(free_of("a"), before);
  state_.pod_changed(pod({.name = "free-rider", .memory = "31", .core = "100", .node = "a"}));  // spec.nodeName
  EXPECT_EQ(free_of("a"), "0/0 0/0 ");
}

TEST_F(StateTest, APodBoundWithoutUsIsGivenACard) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  bind({.name = "x", .memory = "15", .core = "20"}, "a");
  state_.pod_changed(
      pod({.name = "first", .memory = "20", .core = "20", .node = "a", .created = "2026-01-01T00:00:00Z"}));
  state_.pod_changed(
      pod({.name = "second", .memory = "12", .core = "20", .node = "a", .created = "2026-01-02T00:00:00Z"}));
  // Each is counted on every card, yet neither holds one: the other does not stand in its way.
  std::optional<State::Orphan> orphan = state_.next_orphan(0);
  ASSERT_TRUE(orphan && orphan->plan);
  EXPECT_EQ(orphan->pod.name, "first");
  ASSERT_EQ(orphan->plan->placement.shares.size(), 1u);
  EXPECT_EQ(orphan->plan->placement.shares[0].card_index, 1);
  // While its PATCH is on its way it is counted on both cards, so the second one finds none.
  orphan = state_.next_orphan(0);
  ASSERT_TRUE(orphan);
  EXPECT_FALSE(orphan->plan);
  EXPECT_EQ(orphan->pod.name, "second");
  EXPECT_NE(orphan->reason.find("card memory: needs 12 GiB"), std::string::npos) << orphan->reason;
  EXPECT_FALSE(state_.next_orphan(0));
  // The watch brings the record: now the second one fits beside x.
  PodSpec first{.name = "first", .memory = "20", .core = "20", .node = "a"};
  kube::Allocation record;
  record.cards = {{1, "GPU-1", 20, 200}};
  record.containers["c"] = record.cards;
  core::Node described = kube::decode_node(node("a", 2), {})->node;
  first.annotations = kube::to_annotations(record, described, {"c"}, "uid-first", signer_, 1);
  state_.pod_changed(pod(first));
  state_.adoption_ended("uid-first", 0);
  orphan = state_.next_orphan(0);
  ASSERT_TRUE(orphan && orphan->plan) << orphan->reason;
  EXPECT_EQ(orphan->pod.name, "second");
  // Not believed any more: counted everywhere, but never given another card.
  first.annotations.erase("sluice.dev/allocation");
  state_.pod_changed(pod(first));
  EXPECT_EQ(state_.counts().untrusted_records, 2u);
  state_.adoption_ended("uid-second", 0);
  while ((orphan = state_.next_orphan(1))) EXPECT_NE(orphan->pod.name, "first");
}

TEST_F(StateTest, AnswersThatComeAfterTheEndOfAPodBringItNotBack) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({pod({.name = "p", .node = "a", .resource_version = "1"})});
  kube::Pod late = decoded({.name = "p", .node = "a", .resource_version = "2"});
  state_.pod_deleted("uid-p");
  state_.learn_pod(late);
  state_.introduce_pod(late);
  state_.pod_was_changed(late, "1");
  EXPECT_EQ(state_.counts().pods, 0u);
  EXPECT_EQ(free_of("a"), "31/100 ");
  // Nor do they undo what the watch has brought since.
  bind({.name = "q"}, "a");
  state_.pod_was_changed(decoded({.name = "q", .node = "a", .resource_version = "8"}), "7");
  EXPECT_EQ(state_.counts().untrusted_records, 0u);
  state_.introduce_pod(decoded({.name = "new", .node = "a"}));
  EXPECT_EQ(state_.counts().pods, 2u);
}

TEST_F(StateTest, WhatRunsWithoutARecordIsCountedAndLeftAlone) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({pod({.name = "runs", .node = "a", .phase = "Running", .started = true})});
  EXPECT_FALSE(state_.next_orphan(0));
  EXPECT_EQ(free_of("a"), "21/70 21/70 ");
}

TEST_F(StateTest, OrphansSayOnceWhyTheyWaitAndAreLookedAtAfterEveryChange) {
  state_.replace_nodes({node("a", 1)});
  state_.replace_pods({pod({.name = "odd", .core = "33", .node = "a"})});
  bind({.name = "x", .memory = "25"}, "a");
  state_.pod_changed(pod({.name = "p", .node = "a"}));
  std::set<std::string> reasons;
  while (std::optional<State::Orphan> orphan = state_.next_orphan(0)) reasons.insert(orphan->reason);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_NE(reasons.rbegin()->find("have 33"), std::string::npos) << *reasons.rbegin();
  EXPECT_EQ(*reasons.begin(), "card memory: needs 10 GiB on one card, most free on any card 6 GiB");
  json::Object said = *state_.explain("d", "p");
  EXPECT_EQ(said["state"].get_string(), "bound without Sluice and waiting for a card");
  state_.pod_changed(pod({.name = "other", .memory = "2", .core = "5"}));  // changes nothing on the node
  EXPECT_FALSE(state_.next_orphan(0));
  // Another reason soon after is told later, and only if it still holds.
  state_.pod_changed(pod({.name = "y", .memory = "3", .core = "5", .node = "a", .started = true}));
  EXPECT_FALSE(state_.next_orphan(5'000));
  std::optional<State::Orphan> orphan = state_.next_orphan(10'000);
  ASSERT_TRUE(orphan);
  EXPECT_EQ(orphan->reason, "card memory: needs 10 GiB on one card, most free on any card 3 GiB");
  EXPECT_FALSE(state_.next_orphan(30'000));
  // A card is given at once.
  state_.pod_deleted("uid-x");
  orphan = state_.next_orphan(30'001);
  ASSERT_TRUE(orphan && orphan->plan);
  EXPECT_EQ(orphan->pod.name, "p");
}

TEST_F(StateTest, NominatedPodsAreCounted) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({pod({.name = "high", .memory = "25", .priority = 10, .nominated = "a"})});
  EXPECT_TRUE(state_.filter(decoded({.name = "low"}), {"a"}).nodes.empty());
  EXPECT_EQ(state_.filter(decoded({.name = "higher", .priority = 11}), {"a"}).nodes.size(), 1u);
  EXPECT_EQ(
      state_.filter(decoded({.name = "high", .memory = "25", .priority = 10, .nominated = "a"}), {"a"}).nodes.size(),
      1u);
}

TEST_F(StateTest, TheNominatedNodeStaysResolvable) {
  state_.replace_nodes({node("a"), node("b")});
  state_.replace_pods({});
  bind({.name = "x", .memory = "30"}, "a");
  bind({.name = "y", .memory = "30"}, "b");
  FilterAnswer answer = state_.filter(decoded({.name = "p", .nominated = "a"}), {"a", "b"});
  ASSERT_EQ(answer.failed.size(), 1u);
  EXPECT_EQ(answer.failed[0].first, "a");
  ASSERT_EQ(answer.unresolvable.size(), 1u);
}

TEST_F(StateTest, WakesRefusedPodsWhenTheyFit) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  bind({.name = "x", .memory = "30"}, "a");
  state_.pod_changed(pod({.name = "p"}));
  EXPECT_TRUE(state_.filter(decoded({.name = "p"}), {"a"}).nodes.empty());
  EXPECT_TRUE(state_.pods_to_wake(0).empty());
  state_.pod_deleted("uid-x");
  ASSERT_EQ(state_.pods_to_wake(0).size(), 1u);
  EXPECT_TRUE(state_.pods_to_wake(500).empty());
  EXPECT_EQ(state_.pods_to_wake(1'000).size(), 1u);  // nothing changed: ever more rarely
  EXPECT_TRUE(state_.pods_to_wake(2'500).empty());
  state_.filter(decoded({.name = "p"}), {"a"});
  EXPECT_TRUE(state_.pods_to_wake(100'000).empty());  // accepted: no longer refused
}

TEST_F(StateTest, WakesWhomAnotherLeaderRefused) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({pod({.name = "never-asked"}), pod({.name = "refused", .unschedulable = true}),
                       pod({.name = "too-large", .memory = "40", .unschedulable = true}),
                       pod({.name = "no-card", .memory = "", .core = "", .unschedulable = true})});
  int wakes = 0;
  for (int64_t now_ms = 0; now_ms < 600'000; now_ms += 100) {
    for (const State::Waiting& pod : state_.pods_to_wake(now_ms)) {
      EXPECT_EQ(pod.name, "refused");
      EXPECT_TRUE(wakes > 0 || now_ms == 0) << now_ms;
      ++wakes;
    }
  }
  EXPECT_EQ(wakes, 3);  // it may be kept by something that is not a card
}

// Pods that something else keeps are woken again and again in a busy cluster; the rest must get their turn all the
// same.
TEST_F(StateTest, WakesTheOneThatIsDueLongestFirst) {
  constexpr int kPods = 60;
  constexpr size_t kPerCall = 5;
  state_.replace_nodes({node("a")});
  json::Array pods;
  for (int i = 0; i < kPods; ++i) {
    pods.push_back(pod({.name = fmt::format("p{:02}", i), .memory = "1", .core = "5"}));
  }
  state_.replace_pods(pods);
  bind({.name = "x", .memory = "31", .core = "5"}, "a");
  for (int i = 0; i < kPods; ++i) {
    state_.filter(decoded({.name = fmt::format("p{:02}", i), .memory = "1", .core = "5"}), {"a"});
  }
  state_.pod_deleted("uid-x");
  std::set<std::string> woken;
  for (int64_t now_ms = 0; now_ms < 3'000; now_ms += 100) {
    bind({.name = "y", .memory = "1", .core = "5"}, "a");  // the cluster changes all the time
    for (const State::Waiting& one : state_.pods_to_wake(now_ms, kPerCall)) woken.insert(one.name);
    state_.pod_deleted("uid-y");
  }
  EXPECT_EQ(woken.size(), size_t{kPods});
}

// kube-scheduler shows a part of a large cluster at a time: a pod that fits in another part is woken at once until all
// parts have been asked about, and ever more rarely after that.
TEST_F(StateTest, WakesAtOnceUntilEveryPartOfTheClusterWasAskedAbout) {
  json::Array nodes;
  for (int i = 0; i < 10; ++i) nodes.push_back(node(fmt::format("n{}", i)));
  state_.replace_nodes(nodes);
  state_.replace_pods({pod({.name = "x", .memory = "30", .node = "n0"}), pod({.name = "p"})});
  EXPECT_TRUE(state_.filter(decoded({.name = "p"}), {"n0"}).nodes.empty());
  int64_t now_ms = 0;
  for (int wake = 0; wake < 11; ++wake, now_ms += 100) {
    EXPECT_EQ(state_.pods_to_wake(now_ms).size(), 1u) << wake;
    state_.filter(decoded({.name = "p"}), {"n0"});
  }
  EXPECT_EQ(state_.pods_to_wake(now_ms).size(), 1u);
  EXPECT_TRUE(state_.pods_to_wake(now_ms + 900).empty());
  EXPECT_EQ(state_.pods_to_wake(now_ms + 1'000).size(), 1u);
  EXPECT_TRUE(state_.pods_to_wake(now_ms + 2'900).empty());
}

// A pod bound by name asks for two cards of a node with one: kube-scheduler counts both, no card does.
TEST_F(StateTest, WhereTheNodesSumIsShortNothingFits) {
  json::Value small = node("a");
  small.as_object()["status"] = json::Object{
      {"allocatable", json::Object{{"aliyun.com/gpu-mem", "31"}, {"aliyun.com/gpu-core.percentage", "100"}}}};
  json::Value two_cards = pod({.name = "by-name", .memory = "40", .core = "20", .node = "a"});
  two_cards.as_object()["metadata"].as_object()["labels"] = json::Object{{"aliyun.com/gpu-count", "2"}};
  state_.replace_nodes({small});
  state_.replace_pods({two_cards, pod({.name = "p", .memory = "40"}), pod({.name = "q", .memory = "8", .core = "5"})});
  state_.filter(decoded({.name = "q", .memory = "40", .core = "5"}), {"a"});  // refused: it waits
  EXPECT_TRUE(state_.pods_to_wake(1'000).empty());
  Result<json::Object> said = state_.explain("d", "q");
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(json::to_string(said->at("reason")),
            "\"aliyun.com/gpu-mem of the node: needs 8, the pods bound there ask for 40 of 31 together\"");
  EXPECT_TRUE(state_.unreached_pods(1).empty());
  std::vector<State::Unreached> told = state_.unreached_pods(5'000);
  ASSERT_EQ(told.size(), 1u);  // q was refused by us; p is kube-scheduler's
  EXPECT_EQ(told[0].pod.name, "p");
  state_.pod_deleted("uid-by-name");
  EXPECT_EQ(state_.pods_to_wake(2'000).size(), 1u);
}

TEST_F(StateTest, UnreachedPodsAreLookedAtInTurn) {
  state_.replace_nodes({node("a")});
  json::Array pods;
  for (int i = 0; i < 25; ++i) pods.push_back(pod({.name = fmt::format("p{}", i), .memory = "40"}));
  state_.replace_pods(pods);
  EXPECT_TRUE(state_.unreached_pods(1).empty());
  size_t told = 0;
  for (int call = 0; call < 3; ++call) {
    size_t now = state_.unreached_pods(5'000).size();
    EXPECT_LE(now, 10u);
    told += now;
  }
  EXPECT_EQ(told, 25u);
  EXPECT_TRUE(state_.unreached_pods(6'000).empty());
  EXPECT_EQ(state_.counts().waiting_by_rule["card-size"], 25u);
}

TEST_F(StateTest, AQuestionAboutAPodMakesNoPod) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  bind({.name = "x", .memory = "30"}, "a");
  EXPECT_TRUE(state_.filter(decoded({.name = "gone"}), {"a"}).nodes.empty());  // its deletion came first
  EXPECT_EQ(state_.counts().pods, 1u);
  EXPECT_TRUE(state_.counts().waiting_by_rule.empty());
  EXPECT_TRUE(state_.filter(decoded({.name = "new"}), {"a"}).nodes.empty());  // the watch is behind
  state_.pod_changed(pod({.name = "new"}));
  EXPECT_EQ(state_.counts().waiting_by_rule.size(), 1u);
  state_.pod_deleted("uid-x");
  EXPECT_EQ(state_.pods_to_wake(0).size(), 1u);
}

TEST_F(StateTest, PreemptionMovesVictimsOntoOneCard) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  for (const char* name : {"a1", "a2", "a3"}) bind({.name = name, .memory = "10", .core = "30"}, "a");
  for (const char* name : {"b1", "b2", "b3"}) bind({.name = name, .memory = "10", .core = "30", .priority = 1}, "a");
  PodSpec asker{.name = "high", .memory = "20", .core = "50", .priority = 5};
  // Sums would take one pod of each card; one card must be freed.
  auto victims = state_.preempt(decoded(asker), {{"a", {{"uid-a1", "uid-b1"}, 0}}});
  ASSERT_EQ(victims.size(), 1u);
  const std::vector<std::string>& uids = victims["a"].uids;
  ASSERT_EQ(uids.size(), 2u);
  EXPECT_EQ(uids[0].substr(0, 5), "uid-a");
  EXPECT_EQ(uids[1].substr(0, 5), "uid-a");
  EXPECT_TRUE(state_.preempt(decoded({.name = "low", .memory = "20", .core = "50"}), {{"a", {{"uid-a1"}, 0}}}).empty());
}

TEST_F(StateTest, PreemptionSparesDisruptionBudgetsAndCountsWhatItBreaks) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  for (const char* name : {"a1", "a2", "b1", "b2"}) bind({.name = name, .memory = "15", .core = "45"}, "a");
  auto budget = [](const char* name, const json::Object& selector, int allowed) {
    return json::Object{{"metadata", json::Object{{"name", name}, {"namespace", "d"}}},
                        {"spec", json::Object{{"selector", selector}}},
                        {"status", json::Object{{"disruptionsAllowed", allowed}}}};
  };
  state_.replace_budgets({budget("all", {}, 1)});  // an empty selector selects everything
  auto victims =
      state_.preempt(decoded({.name = "high", .memory = "30", .core = "50", .priority = 5}), {{"a", {{"uid-a1"}, 0}}});
  EXPECT_EQ(victims["a"].uids.size(), 2u);
  EXPECT_EQ(victims["a"].disruption_violations, 1);
  state_.budget_deleted("d", "all");
  victims =
      state_.preempt(decoded({.name = "high", .memory = "30", .core = "50", .priority = 5}), {{"a", {{"uid-a1"}, 9}}});
  EXPECT_EQ(victims["a"].disruption_violations, 0);
}

// The budget's pods are the least important by age and name, and still one of them stays.
TEST_F(StateTest, PreemptionPrefersAPodWithoutBudgetToOneTooManyOfIt) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  for (const char* name : {"p1", "p2", "p3"}) bind({.name = name, .memory = "10", .core = "30"}, "a");
  for (const char* free : {"p1", "p2", "p3"}) {
    for (auto& [name, spec] : bound_) {
      json::Value bound = pod(spec);
      bound.at("metadata").get_object()["labels"] = json::Object{{"app", name == free ? "plain" : "inference"}};
      state_.pod_changed(bound);
    }
    state_.replace_budgets({json::Object{
        {"metadata", json::Object{{"name", "b"}, {"namespace", "d"}}},
        {"spec", json::Object{{"selector", json::Object{{"matchLabels", json::Object{{"app", "inference"}}}}}}},
        {"status", json::Object{{"disruptionsAllowed", 1}}}}});
    auto victims =
        state_.preempt(decoded({.name = "high", .memory = "20", .core = "60", .priority = 5}), {{"a", {}}})["a"];
    ASSERT_EQ(victims.uids.size(), 2u);
    EXPECT_EQ(std::count(victims.uids.begin(), victims.uids.end(), std::string("uid-") + free), 1) << free;
    EXPECT_EQ(victims.disruption_violations, 0) << free;
  }
}

// kube-scheduler evicts victims one after another; asked again in between, the answer stays with those that remain.
TEST_F(StateTest, PreemptionStaysWithItsVictims) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  for (const char* name : {"p1", "p2", "p3"}) bind({.name = name, .memory = "10", .core = "30"}, "a");
  PodSpec asker{.name = "high", .memory = "20", .core = "60", .priority = 5};
  state_.pod_changed(pod(asker));
  std::vector<std::string> first = state_.preempt(decoded(asker), {{"a", {}}})["a"].uids;
  ASSERT_EQ(first.size(), 2u);
  for (size_t gone : {0u, 1u}) {
    State other({}, *kube::Verifier::from_pem({signer_.public_pem()}));
    other.replace_nodes({node("a")});
    json::Array pods{pod(asker)};
    for (const auto& [name, spec] : bound_) pods.push_back(pod(spec));
    other.replace_pods(pods);
    ASSERT_EQ(other.preempt(decoded(asker), {{"a", {}}})["a"].uids, first);
    other.pod_deleted(first[gone]);
    // The most important that is left would be given back now, whoever it is.
    EXPECT_EQ(other.preempt(decoded(asker), {{"a", {}}})["a"].uids, std::vector<std::string>{first[1 - gone]});
  }
}

TEST(DisruptionBudget, SelectsAsKubernetesDoes) {
  kube::Pod pod;
  pod.name_space = "d";
  pod.labels = {{"app", "x"}, {"tier", "1"}};
  struct Case {
    const char* selector;
    bool expected;
  };
  for (const Case& one : {Case{R"({"matchLabels":{"app":"x"}})", true}, Case{R"({"matchLabels":{"app":"y"}})", false},
                          Case{R"({"matchExpressions":[{"key":"tier","operator":"In","values":["1","2"]}]})", true},
                          Case{R"({"matchExpressions":[{"key":"tier","operator":"NotIn","values":["1"]}]})", false},
                          Case{R"({"matchExpressions":[{"key":"zone","operator":"NotIn","values":["1"]}]})", true},
                          Case{R"({"matchExpressions":[{"key":"zone","operator":"Exists"}]})", false},
                          Case{R"({"matchExpressions":[{"key":"zone","operator":"DoesNotExist"}]})", true},
                          Case{R"({})", true}, Case{R"(null)", false}}) {
    Result<DisruptionBudget> budget = decode_budget(*json::parse(
        fmt::format(R"({{"metadata":{{"name":"b","namespace":"d"}},"spec":{{"selector":{}}}}})", one.selector)));
    ASSERT_TRUE(budget.ok()) << budget.error().message;
    EXPECT_EQ(budget->selects(pod), one.expected) << one.selector;
  }
  EXPECT_FALSE(
      decode_budget(
          *json::parse(
              R"({"metadata":{"name":"b"},"spec":{"selector":{"matchExpressions":[{"key":"k","operator":"Near"}]}}})"))
          .ok());
}

TEST_F(StateTest, AnyOrderOfEventsEndsInTheSameState) {
  state_.replace_nodes({node("a", 2)});
  state_.replace_pods({});
  for (const char* name : {"p", "q", "r"}) bind({.name = name, .memory = "9", .core = "20"}, "a");
  std::string expected = free_of("a");
  std::vector<json::Value> events{node("a", 2)};
  for (const auto& [name, spec] : bound_) events.push_back(pod(spec));
  std::sort(events.begin(), events.end(),
            [](const auto& x, const auto& y) { return json::to_string(x) < json::to_string(y); });
  for (int round = 0; round < 24; ++round) {
    State fresh({}, *kube::Verifier::from_pem({signer_.public_pem()}));
    std::vector<size_t> order{0, 1, 2, 3};
    for (int i = 0; i < round; ++i) std::next_permutation(order.begin(), order.end());
    for (size_t i : order) {
      if (events[i].at("metadata").get_object().contains("uid"))
        fresh.pod_changed(events[i]);
      else
        fresh.node_changed(events[i]);
    }
    json::Value described = fresh.describe();
    std::string found;
    for (const json::Value& card : described.at("nodes").at(0).at("cards").get_array()) {
      found +=
          fmt::format("{}/{} ", card.at("free_units").to_number<int>(), card.at("free_core_percent").to_number<int>());
    }
    EXPECT_EQ(found, expected) << round;
  }
}

TEST_F(StateTest, ExplainSaysWhatWouldHelp) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  bind({.name = "x", .memory = "30"}, "a");
  state_.pod_changed(pod({.name = "p", .priority = 3}));
  Result<json::Object> said = state_.explain("d", "p");
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(json::to_string(said->at("nodes").at(0).at("would_fit_without")), R"(["d/x"])");
  EXPECT_EQ(state_.explain("d", "nobody").error().code, ErrorCode::kNotFound);
}

TEST_F(StateTest, TheWireIsGoJson) {
  state_.replace_nodes({node("a")});
  state_.replace_pods({});
  BindRequest seen;
  Extender extender(state_, {}, [&seen](const BindRequest& request) {
    seen = request;
    return std::string("no luck");
  });
  json::Object args{{"pod", pod({.name = "p"})}, {"nodenames", json::Array{"a", "b"}}};
  EXPECT_EQ(extender.filter(json::to_string(args)).body,
            R"({"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"","NodeNames":["a"],"Nodes":null})");
  EXPECT_EQ(extender.prioritize(json::to_string(args)).body, R"([{"Host":"b","Score":0},{"Host":"a","Score":1}])");
  EXPECT_EQ(extender.bind(R"({"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"a"})").body,
            R"({"Error":"no luck"})");
  EXPECT_EQ(seen.node, "a");
  json::Object full{{"Pod", pod({.name = "p"})}, {"Nodes", json::Object{{"items", json::Array{node("a")}}}}};
  EXPECT_NE(extender.filter(json::to_string(full)).body.find(R"("Nodes":{"items":[{"metadata")"), std::string::npos);
  for (const char* body :
       {"", "[]", "{}", R"({"Pod":7})", R"({"Pod":{},"NodeNames":7})", R"({"Pod":{},"NodeNames":[7]})"}) {
    EXPECT_EQ(extender.filter(body).status, 400) << body;
    EXPECT_EQ(extender.prioritize(body).status, 400) << body;
    EXPECT_EQ(extender.preempt(body).status, 400) << body;
    EXPECT_EQ(extender.bind(body).status, 400) << body;
  }
}

}  // namespace
}  // namespace sluice::scheduler
