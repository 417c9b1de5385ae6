#include "node/strangers.h"

#include <gtest/gtest.h>

#include <optional>

#include "node/snapshot_testing.h"

namespace sluice::node {
namespace {

// A node with one card, two pods, and processes by pid.
struct World {
  std::vector<agent::CardStatus> cards{testing::card_of(0, 21, 70)};
  std::vector<ContainerGrant> grants{testing::container_of("granted", "c", "1", {{0, "GPU-0", 10, 10487, 30}})};
  std::vector<PodOnNode> pods{{"uid-granted", "default", "granted", {{"id-granted", "c"}}},
                              {"uid-bare", "default", "bare", {{"id-bare", "web"}}},
                              {"uid-system", "kube-system", "monitor", {{"id-system", "m"}}}};
  std::map<int64_t, ProcessSeen> processes;

  void add(int64_t pid, std::optional<CgroupOwner> owner, uint64_t start = 100) {
    processes[pid] = {pid, start, "python", std::move(owner)};
    agent::ProcessStatus entry;
    entry.pid = pid;
    entry.used_mib = 300;
    entry.granted = false;
    cards[0].strangers.push_back(entry);
  }
  StrangerInput input() {
    return {&cards, &grants, &pods, [this](int64_t pid) -> std::optional<ProcessSeen> {
              auto found = processes.find(pid);
              return found == processes.end() ? std::nullopt : std::optional(found->second);
            }};
  }
};

StrangerOptions stop_policy() {
  StrangerOptions options;
  options.policy = StrangerPolicy::kStop;
  return options;
}

TEST(Strangers, AreNamedByPodAndContainerOnce) {
  World world;
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  world.add(11, std::nullopt);
  world.add(12, CgroupOwner{"uid-gone", "id-gone"});
  StrangerWatch watch({});
  StrangerWatch::Found found = watch.look(world.input());
  ASSERT_EQ(found.present.size(), 3u);
  ASSERT_EQ(found.news.size(), 3u);
  EXPECT_EQ(found.news[0].text,
            "process 10 (python) of container 'web' of pod default/bare uses card 0 (GPU-0) without a grant");
  EXPECT_EQ(found.news[1].text, "process 11 (python) outside of any pod uses card 0 (GPU-0) without a grant");
  EXPECT_EQ(found.news[2].text, "process 12 (python) of a pod with UID uid-gone uses card 0 (GPU-0) without a grant");
  EXPECT_EQ(found.present[0].used_mib, 300);
  found = watch.look(world.input());
  EXPECT_EQ(found.present.size(), 3u);
  EXPECT_TRUE(found.news.empty());
  // The same pid, another process.
  world.processes[10].start_ticks = 200;
  EXPECT_EQ(watch.look(world.input()).news.size(), 1u);
}

TEST(Strangers, WhoHasEndedIsNone) {
  World world;
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  world.processes.clear();  // the card lists it a while longer
  StrangerWatch::Found found = StrangerWatch(stop_policy()).look(world.input());
  EXPECT_TRUE(found.present.empty());
  EXPECT_TRUE(found.news.empty());
}

TEST(Strangers, PastTheLibraryOfTheirOwnGrant) {
  World world;
  world.add(10, CgroupOwner{"uid-granted", "id-granted"});
  StrangerWatch watch({});
  StrangerWatch::Found found = watch.look(world.input());
  ASSERT_EQ(found.present.size(), 1u);
  EXPECT_TRUE(found.present[0].has_grant);
  EXPECT_EQ(found.news[0].text,
            "process 10 (python) of container 'c' of pod default/granted uses card 0 (GPU-0) past "
            "Sluice's library: its limits do not hold");
  // A whole card is used as its owner likes.
  world.grants[0].whole_cards = true;
  EXPECT_TRUE(watch.look(world.input()).present.empty());
  // A grant on another card is none on this one.
  world.grants[0].cards[0].uuid = "GPU-1";
  found = watch.look(world.input());
  ASSERT_EQ(found.present.size(), 1u);
  EXPECT_FALSE(found.present[0].has_grant);
}

TEST(Strangers, StaticPodsAreKnownByTheirContainer) {
  World world;
  world.add(10, CgroupOwner{"2d3b1f0c9e8a7d6c5b4a39281706f5e4", "id-bare"});
  StrangerWatch::Found found = StrangerWatch({}).look(world.input());
  EXPECT_EQ(found.present[0].pod, "bare");
  EXPECT_EQ(found.present[0].pod_uid, "uid-bare");
}

TEST(Strangers, ReportStopsNobody) {
  World world;
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  StrangerWatch watch({});
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(watch.look(world.input()).to_stop.empty());
}

TEST(Strangers, StopTakesPodsThatStayAndNobodyElse) {
  World world;
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  world.add(11, std::nullopt);                              // an administrator's
  world.add(12, CgroupOwner{"uid-system", "id-system"});    // of an exempt namespace
  world.add(13, CgroupOwner{"uid-gone", "id-gone"});        // of a pod that is not known here
  world.add(14, CgroupOwner{"uid-granted", "id-granted"});  // past its library
  StrangerWatch watch(stop_policy());
  EXPECT_TRUE(watch.look(world.input()).to_stop.empty()) << "it may just be starting";
  StrangerWatch::Found found = watch.look(world.input());
  ASSERT_EQ(found.to_stop.size(), 2u);
  EXPECT_EQ(found.to_stop[0].pid, 10);
  EXPECT_EQ(found.to_stop[1].pid, 14);
  ASSERT_EQ(found.news.size(), 2u);
  EXPECT_EQ(found.news[0].kind, StrangerNews::Kind::kStopped);
  EXPECT_TRUE(found.news[0].text.ends_with("without a grant; it is stopped"));
  // One that survives is tried again, and said to stay once.
  int stays = 0;
  for (int i = 0; i < 30; ++i) {
    found = watch.look(world.input());
    EXPECT_EQ(found.to_stop.size(), 2u);
    for (const StrangerNews& news : found.news) stays += news.kind == StrangerNews::Kind::kStays ? 1 : 0;
  }
  EXPECT_EQ(stays, 2);
  // Gone and come back: another look from the start.
  world.cards[0].strangers.clear();
  watch.look(world.input());
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  EXPECT_TRUE(watch.look(world.input()).to_stop.empty());
}

TEST(Strangers, OneProcessOnTwoCardsIsToldForEach) {
  World world;
  world.add(10, CgroupOwner{"uid-bare", "id-bare"});
  world.cards.push_back(world.cards[0]);
  world.cards[1].index = 1;
  world.cards[1].uuid = "GPU-1";
  world.cards[1].strangers.push_back(world.cards[1].strangers[0]);  // listed twice by a careless caller
  StrangerWatch::Found found = StrangerWatch({}).look(world.input());
  EXPECT_EQ(found.present.size(), 2u);
  EXPECT_EQ(found.news.size(), 2u);
}

}  // namespace
}  // namespace sluice::node
