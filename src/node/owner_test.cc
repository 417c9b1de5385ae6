#include "node/owner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "node/slots.h"

namespace sluice::node {
namespace {

json::Object container(const std::string& name, int units, bool sidecar = false) {
  json::Object out{{"name", name}};
  if (units > 0)
    out["resources"] = json::Object{{"limits", json::Object{{core::kResourceMemory, std::to_string(units)}}}};
  if (sidecar) out["restartPolicy"] = "Always";
  return out;
}

LocalPodPtr pod(const std::string& name, json::Array containers, json::Array init = {}, const std::string& created = "",
                json::Object status = {}) {
  json::Object object{
      {"metadata",
       json::Object{{"name", name}, {"namespace", "team"}, {"uid", "uid-" + name}, {"creationTimestamp", created}}},
      {"spec", json::Object{{"containers", std::move(containers)}, {"initContainers", std::move(init)}}},
      {"status", std::move(status)}};
  Result<LocalPod> decoded = decode_local_pod(object);
  EXPECT_TRUE(decoded.ok()) << (decoded.ok() ? "" : decoded.error().message);
  return std::make_shared<const LocalPod>(std::move(*decoded));
}

std::vector<std::string> ids(int first, int count) {
  std::vector<std::string> out;
  for (int i = first; i < first + count; ++i) out.push_back(fmt::format("m{}", i));
  std::sort(out.begin(), out.end());
  return out;
}

RecordedPod record(const LocalPodPtr& of, std::vector<std::pair<std::string, std::vector<std::string>>> held) {
  RecordedPod out{of->pod.name_space, of->pod.name, {}};
  for (auto& [name, list] : held) out.containers.push_back({name, {{core::kResourceMemory, list}}});
  return out;
}

std::string name_of(const Owner& owner, size_t i = 0) {
  return owner.pod->request.shares[owner.containers[i]].name;
}

// The label may be edited while a container of the pod waits for its start.
TEST(LocalPods, ANewerCopyCountsWhileItAsksTheSame) {
  LocalPods pods;
  auto put = [&pods](const std::string& count, const std::string& phase) {
    pods.changed(json::Object{{"metadata", json::Object{{"name", "a"},
                                                        {"namespace", "team"},
                                                        {"uid", "uid-a"},
                                                        {"labels", json::Object{{"aliyun.com/gpu-count", count}}}}},
                              {"spec", json::Object{{"containers", json::Array{container("x", 4)}}}},
                              {"status", json::Object{{"phase", phase}}}});
    return pods.find("uid-a");
  };
  LocalPodPtr first = put("2", "Pending");
  ASSERT_EQ(first->request.shares.size(), 1u);
  EXPECT_EQ(pods.newest(first), first);
  LocalPodPtr second = put("2", "Running");
  ASSERT_NE(second, first);
  EXPECT_EQ(pods.newest(first), second);
  for (const char* count : {"x", "3", "1"}) {
    LocalPodPtr newer = put(count, "Running");
    ASSERT_NE(newer, second);
    EXPECT_EQ(pods.newest(second), newer) << count;
    EXPECT_EQ(newer->ids_wanted(newer->request.shares[0], core::kResourceMemory), 4) << count;
  }
}

// On how many cards a request lies is the allocation's to say: what a container holds is what its limits say, whatever
// the label is.
TEST(LocalPods, TheCountLabelChangesNothingOfWhatContainersHold) {
  for (const auto& [units, percent] : std::map<int, int>{{10, 30}, {93, 300}, {31, 100}, {7, 5}, {64, 3200}}) {
    for (const char* count : {"", "1", "2", "3", "7", "nonsense"}) {
      json::Object limits{{core::kResourceMemory, std::to_string(units)},
                          {core::kResourceCore, std::to_string(percent)}};
      json::Object labels;
      if (*count != '\0') labels["aliyun.com/gpu-count"] = count;
      Result<LocalPod> pod = decode_local_pod(json::Object{
          {"metadata", json::Object{{"name", "a"}, {"namespace", "team"}, {"uid", "uid-a"}, {"labels", labels}}},
          {"spec", json::Object{{"containers", json::Array{json::Object{
                                                   {"name", "x"}, {"resources", json::Object{{"limits", limits}}}}}}}},
          {"status", json::Object{}}});
      ASSERT_TRUE(pod.ok()) << pod.error().message;
      EXPECT_EQ(pod->request_problem, "") << units << " " << percent << " " << count;
      EXPECT_EQ(pod->kind(), PodKind::kMemoryCore);
      ASSERT_EQ(pod->request.shares.size(), 1u);
      EXPECT_EQ(pod->ids_wanted(pod->request.shares[0], core::kResourceMemory), units);
      EXPECT_EQ(pod->ids_wanted(pod->request.shares[0], core::kResourceCore), percent);
    }
  }
}

TEST(FindOwner, ByTheRecord) {
  LocalPodPtr a = pod("a", {container("x", 10), container("y", 10)}), b = pod("b", {container("x", 10)});
  std::vector<OwnerCandidate> all{{a, record(a, {{"x", ids(0, 10)}, {"y", ids(10, 10)}})},
                                  {b, record(b, {{"x", ids(20, 10)}})}};
  Result<Owner> owner = find_owner({core::kResourceMemory, ids(10, 10)}, all);
  ASSERT_TRUE(owner.ok()) << owner.error().message;
  EXPECT_EQ(owner->pod, a);
  EXPECT_EQ(name_of(*owner), "y");
  EXPECT_EQ(find_owner({core::kResourceMemory, ids(20, 10)}, all)->pod, b);
  EXPECT_EQ(find_owner({core::kResourceMemory, ids(30, 10)}, all).error().code, ErrorCode::kNotFound);
}

TEST(FindOwner, IdsOfTwoPodsAreAnError) {
  LocalPodPtr a = pod("a", {container("x", 4)}), b = pod("b", {container("x", 4)});
  for (const std::vector<std::string>& second : {ids(0, 4), ids(3, 4)}) {
    Result<Owner> owner = find_owner({core::kResourceMemory, ids(0, 4)},
                                     {{a, record(a, {{"x", ids(0, 4)}})}, {b, record(b, {{"x", second}})}});
    ASSERT_FALSE(owner.ok());
    EXPECT_EQ(owner.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(owner.error().message.find("team/a"), std::string::npos);
    EXPECT_NE(owner.error().message.find("team/b"), std::string::npos);
  }
}

TEST(FindOwner, ARecordThatContradictsTheManifest) {
  LocalPodPtr a = pod("a", {container("x", 5)});
  Result<Owner> owner = find_owner({core::kResourceMemory, ids(0, 4)}, {{a, record(a, {{"x", ids(0, 4)}})}});
  EXPECT_EQ(owner.error().code, ErrorCode::kUnavailable);
  LocalPodPtr wrong = pod(
      "b",
      {container("x", 5),
       json::Object{{"name", "z"}, {"resources", json::Object{{"limits", json::Object{{core::kResourceCore, "7"}}}}}}});
  owner = find_owner({core::kResourceMemory, ids(0, 5)}, {{wrong, record(wrong, {{"x", ids(0, 5)}})}});
  EXPECT_EQ(owner.error().code, ErrorCode::kInvalid);
}

TEST(FindOwner, InitContainersAreKnownByWhoUsesTheirIdsAgain) {
  // The same number: both stand for the ids.
  LocalPodPtr same = pod("same", {container("main", 8)}, {container("init", 8)});
  Result<Owner> owner = find_owner({core::kResourceMemory, ids(0, 8)}, {{same, record(same, {{"main", ids(0, 8)}})}});
  ASSERT_TRUE(owner.ok());
  ASSERT_EQ(owner->containers.size(), 2u);
  EXPECT_EQ(name_of(*owner, 0), "init");
  EXPECT_EQ(name_of(*owner, 1), "main");
  EXPECT_EQ(starting_now(*owner), 0u);
  // A larger init container: its ids overlap with those of the main one.
  LocalPodPtr larger = pod("larger", {container("main", 3)}, {container("init", 8)});
  owner = find_owner({core::kResourceMemory, ids(0, 8)}, {{larger, record(larger, {{"main", ids(2, 3)}})}});
  ASSERT_TRUE(owner.ok());
  ASSERT_EQ(owner->containers.size(), 1u);
  EXPECT_EQ(name_of(*owner), "init");
  // A sidecar stands in the record of newer kubelets and keeps its ids.
  LocalPodPtr side = pod("side", {container("main", 8)}, {container("proxy", 8, true)});
  owner = find_owner({core::kResourceMemory, ids(0, 8)},
                     {{side, record(side, {{"proxy", ids(0, 8)}, {"main", ids(8, 8)}})}});
  ASSERT_TRUE(owner.ok());
  ASSERT_EQ(owner->containers.size(), 1u);
  EXPECT_EQ(name_of(*owner), "proxy");
}

TEST(FindOwner, AnInitContainerOfTheSameSizeWithOtherIdsIsNoCandidate) {
  // init 3 (m0-2); a uses those again, b gets three others.
  LocalPodPtr p = pod("p", {container("a", 3), container("b", 3)}, {container("init", 3)});
  RecordedPod held = record(p, {{"a", ids(0, 3)}, {"b", ids(3, 3)}});
  SlotTable table;
  uint64_t sequence = 0;
  auto add = [&](const std::vector<std::string>& list) {
    Slot slot;
    slot.id = slot.sequence = ++sequence;
    slot.resource = core::kResourceMemory;
    slot.ids = list;
    ASSERT_TRUE(table.add(slot).ok());
  };
  add(ids(3, 3));  // of a pod that was turned away
  add(ids(0, 3));
  add(ids(0, 3));
  add(ids(3, 3));
  for (const auto& [list, wanted] : {std::pair{ids(3, 3), std::vector<size_t>{2}}, {ids(0, 3), {0, 1}}}) {
    OwnerQuestion question{core::kResourceMemory, list};
    Result<Owner> owner = find_owner(question, {{p, held}});
    ASSERT_TRUE(owner.ok());
    EXPECT_EQ(owner->containers.size(), 2u);  // by size alone
    EXPECT_EQ(narrow(question, *owner, held, table.in_order(core::kResourceMemory)).containers, wanted);
    EXPECT_EQ(narrow(question, *owner, std::nullopt, {}).containers, owner->containers);
  }
}

TEST(FindOwner, TheStatusSaysWhichOfTwoStarts) {
  json::Object ended{{"initContainerStatuses",
                      json::Array{json::Object{
                          {"name", "init"}, {"state", json::Object{{"terminated", json::Object{{"exitCode", 0}}}}}}}}};
  json::Object failed{{"initContainerStatuses",
                       json::Array{json::Object{
                           {"name", "init"}, {"state", json::Object{{"terminated", json::Object{{"exitCode", 1}}}}}}}}};
  for (const auto& [status, wanted] : {std::pair{ended, size_t{1}}, std::pair{failed, size_t{0}}}) {
    LocalPodPtr a = pod("a", {container("main", 8)}, {container("init", 8)}, "", status);
    Result<Owner> owner = find_owner({core::kResourceMemory, ids(0, 8)}, {{a, record(a, {{"main", ids(0, 8)}})}});
    ASSERT_TRUE(owner.ok());
    EXPECT_EQ(starting_now(*owner), wanted);
  }
}

TEST(FindOwner, InitContainersAloneAreFoundInTheCheckpoint) {
  LocalPodPtr young = pod("young", {container("main", 0)}, {container("init", 4)}, "2026-01-02T00:00:00Z");
  LocalPodPtr old = pod("old", {container("main", 0)}, {container("init", 4)}, "2026-01-01T00:00:00Z");
  const std::vector<OwnerCandidate> both{{young, {}}, {old, {}}};
  const OwnerQuestion question{core::kResourceMemory, ids(0, 4)};
  EXPECT_EQ(find_owner(question, both).error().code, ErrorCode::kNotFound);
  const std::vector<CheckpointEntry> entries{{"uid-old", "init", core::kResourceMemory, ids(4, 4)},
                                             {"uid-young", "init", core::kResourceCore, ids(0, 4)},
                                             {"uid-young", "init", core::kResourceMemory, ids(0, 4)}};
  Result<Owner> owner = find_in_checkpoint(question, both, entries);
  ASSERT_TRUE(owner.ok()) << owner.error().message;
  EXPECT_EQ(owner->pod, young);
  EXPECT_TRUE(owner->sure);
  EXPECT_EQ(find_in_checkpoint(question, both, {}).error().code, ErrorCode::kNotFound);
  // The pod is not in the watch yet, whoever else would fit: waited for.
  EXPECT_EQ(find_in_checkpoint(question, {{old, {}}}, entries).error().code, ErrorCode::kUnavailable);
  std::vector<CheckpointEntry> twice = entries;
  twice[0].ids = ids(0, 4);
  EXPECT_EQ(find_in_checkpoint(question, both, twice).error().code, ErrorCode::kUnavailable);
}

TEST(FindOwner, WithoutACheckpointByElimination) {
  LocalPodPtr one = pod("one", {container("main", 0)}, {container("init", 4)});
  LocalPodPtr two = pod("two", {container("main", 0)}, {container("init", 4)});
  LocalPodPtr other = pod("other", {container("main", 0)}, {container("init", 5)});
  const OwnerQuestion question{core::kResourceMemory, ids(0, 4)};
  Result<Owner> owner = find_by_request(question, {{one, {}}, {other, {}}}, {});
  ASSERT_TRUE(owner.ok()) << owner.error().message;
  EXPECT_EQ(owner->pod, one);
  EXPECT_FALSE(owner->sure);
  EXPECT_EQ(find_by_request(question, {{one, {}}, {two, {}}}, {}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(find_by_request(question, {{other, {}}}, {}).error().code, ErrorCode::kNotFound);
  // The whole record shows the ids at a pod that the watch does not have.
  RecordedPod unseen{"team", "unseen", {{"main", {{core::kResourceMemory, ids(2, 6)}}}}};
  EXPECT_EQ(find_by_request(question, {{one, {}}}, {unseen}).error().code, ErrorCode::kUnavailable);
}

TEST(FindOwner, ANameThatAnotherPodHasNowIsNoOwner) {
  LocalPodPtr before = pod("web-0", {container("main", 4)}, {container("init", 4)});
  const OwnerQuestion question{core::kResourceMemory, ids(0, 4)};
  Result<Owner> owner = find_owner(question, {{before, record(before, {{"main", ids(0, 4)}})}});
  ASSERT_TRUE(owner.ok());
  EXPECT_EQ(owner->containers.size(), 2u);
  EXPECT_EQ(confirm_owner(question, *owner, {{"uid-web-0-new", "main", core::kResourceMemory, ids(0, 4)}}).error().code,
            ErrorCode::kUnavailable);
  Result<Owner> same = confirm_owner(question, *owner, {{"uid-web-0", "main", core::kResourceMemory, ids(0, 4)}});
  ASSERT_TRUE(same.ok());
  ASSERT_EQ(same->containers.size(), 1u);
  EXPECT_EQ(name_of(*same), "main");
  EXPECT_EQ(confirm_owner(question, *owner, {})->containers, owner->containers);
}

// A node as kubelets run it, with a watch that lags: pods of random shapes come and go, names are used again, some are
// not in the watch yet, some records have not been asked for. Whatever is missing, the answer is the right pod or none.
TEST(FindOwner, NeverAnotherPodWhateverIsMissing) {
  std::mt19937_64 random(20'261'130);
  auto draw = [&](int most) { return static_cast<int>(random() % static_cast<uint64_t>(most)); };
  struct Alive {
    LocalPodPtr pod;
    RecordedPod record;
    bool seen, asked;
    std::string uid;
  };
  int right = 0, none = 0, unsure = 0;
  for (int world = 0; world < 400; ++world) {
    std::vector<Alive> alive;
    std::vector<CheckpointEntry> checkpoint;
    int next_id = 0;
    const int count = 1 + draw(5);
    for (int i = 0; i < count; ++i) {
      const int main_units = draw(4), init_units = main_units == 0 ? 1 + draw(3) : draw(4);
      json::Array init;
      if (init_units > 0) init.push_back(container("init", init_units));
      LocalPodPtr made = pod(fmt::format("p{}", i), {container("main", main_units)}, init);
      const int first = next_id;
      next_id += std::max(main_units, init_units);
      Alive one{made, {made->pod.name_space, made->pod.name, {}}, draw(3) > 0, draw(3) > 0, made->pod.uid};
      if (main_units > 0) one.record = record(made, {{"main", ids(first, main_units)}});
      if (draw(8) == 0) one.uid += "-new";  // the watch has the pod that had this name before
      if (main_units > 0) checkpoint.push_back({one.uid, "main", core::kResourceMemory, ids(first, main_units)});
      if (init_units > 0) checkpoint.push_back({one.uid, "init", core::kResourceMemory, ids(first, init_units)});
      alive.push_back(std::move(one));
    }
    std::vector<OwnerCandidate> candidates;
    std::vector<RecordedPod> everybody;
    for (const Alive& one : alive) {
      if (one.seen) candidates.push_back({one.pod, one.asked ? std::optional(one.record) : std::nullopt});
      everybody.push_back(one.record);
    }
    for (const CheckpointEntry& entry : checkpoint) {
      const OwnerQuestion question{entry.resource, entry.ids};
      Result<Owner> owner = find_owner(question, candidates);
      if (owner) owner = confirm_owner(question, std::move(*owner), checkpoint);
      if (!owner && owner.error().code == ErrorCode::kNotFound)
        owner = find_in_checkpoint(question, candidates, checkpoint);
      none += owner ? 0 : 1;
      if (owner) {
        ASSERT_EQ(owner->pod->pod.uid, entry.pod_uid) << "world " << world;
        const auto& shares = owner->pod->request.shares;
        ASSERT_TRUE(std::any_of(owner->containers.begin(), owner->containers.end(),
                                [&](size_t at) { return shares[at].name == entry.container; }));
        ++right;
      }
      // No checkpoint: a container of the record is never taken for an init container of somebody else.
      Result<Owner> late = find_by_request(question, candidates, everybody);
      if (late) {
        EXPECT_EQ(entry.container, "init");
        EXPECT_FALSE(late->sure);
        ++unsure;
      }
    }
  }
  EXPECT_GT(right, 400);
  EXPECT_GT(none, 100);
  EXPECT_GT(unsure, 10);
}

TEST(FindOwner, RecordsAreCompleteWhenEveryMainContainerIsThere) {
  LocalPodPtr a = pod("a", {container("x", 1), container("y", 2), container("plain", 0)}, {container("init", 1)});
  EXPECT_FALSE(record_complete(*a, record(a, {}), core::kResourceMemory));
  EXPECT_FALSE(record_complete(*a, record(a, {{"x", ids(0, 1)}}), core::kResourceMemory));
  EXPECT_TRUE(record_complete(*a, record(a, {{"x", ids(0, 1)}, {"y", ids(1, 2)}}), core::kResourceMemory));
}

TEST(LocalPod, WishesComeFromTheSpecAlone) {
  json::Object asks = container("x", 4);
  asks["env"] = json::Array{json::Object{{"name", "ALIYUN_COM_GPU_SCHD_WEIGHT"}, {"value", "7"}},
                            json::Object{{"name", "ALIYUN_COM_GPU_HIGH_PRIO"}, {"value", "1"}}};
  json::Object wrong = container("y", 4);
  wrong["env"] = json::Array{json::Object{{"name", "ALIYUN_COM_GPU_SCHD_WEIGHT"}, {"value", "lots"}}};
  LocalPodPtr a = pod("a", {asks, wrong});
  EXPECT_EQ(a->wishes.at("x").weight, 7);
  EXPECT_TRUE(a->wishes.at("x").high_priority);
  EXPECT_FALSE(a->wishes.contains("y"));
}

TEST(LocalPod, ARuntimeThatDoesNotFindTheSpecIsSeen) {
  auto waiting = [](const char* message) {
    return json::Object{
        {"containerStatuses",
         json::Array{
             json::Object{{"name", "x"}, {"state", json::Object{{"waiting", json::Object{{"message", message}}}}}}}}};
  };
  LocalPodPtr refused =
      pod("a", {container("x", 4)}, {}, "",
          waiting("failed to create containerd container: CDI device injection failed: unresolvable CDI "
                  "devices sluice.dev/grant=g0123456789abcdef"));
  EXPECT_TRUE(refused->states.at("x").cdi_refused);
  LocalPodPtr other = pod("b", {container("x", 4)}, {}, "", waiting("unresolvable CDI devices nvidia.com/gpu=all"));
  EXPECT_FALSE(other->states.at("x").cdi_refused);
}

TEST(Slots, SurviveTheDisk) {
  Slot slot;
  slot.id = 0x0123456789abcdef;
  slot.sequence = 9;
  slot.resource = core::kResourceMemory;
  slot.ids = ids(0, 12);
  slot.made_unix = 1'700'000'000;
  slot.owner = {"uid-a", "team", "a", "x"};
  slot.grant = 0x0123456789abcdef;
  slot.libraries = "/var/lib/sluice/lib/1";
  slot.allocation = R"({"version":1})";
  slot.sure = false;
  Result<Slot> back = Slot::from_json(slot.to_json());
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, slot);
  json::Object wrong = slot.to_json();
  wrong["id"] = "zz";
  EXPECT_FALSE(Slot::from_json(wrong).ok());
}

TEST(Slots, AreFoundByIdsAndPodOldestFirst) {
  SlotTable table;
  auto add = [&](uint64_t id, uint64_t sequence, const std::string& owner) {
    Slot slot{id, sequence, core::kResourceMemory, ids(0, 3), 0, {}, 0, {}, "", true};
    slot.owner.pod_uid = owner;
    ASSERT_TRUE(table.add(slot).ok());
  };
  add(5, 1, "uid-b");
  add(4, 2, "");
  add(3, 3, "uid-a");
  add(2, 4, "");
  EXPECT_EQ(table.with_ids(core::kResourceMemory, ids(0, 3), "uid-a"), (std::vector<uint64_t>{4, 3, 2}));
  EXPECT_TRUE(table.with_ids(core::kResourceCore, ids(0, 3), "uid-a").empty());
  EXPECT_EQ(table.next_sequence(), 5u);
  // Another's that was found by elimination: given to who is sure.
  table.find(5)->sure = false;
  EXPECT_EQ(table.with_ids(core::kResourceMemory, ids(0, 3), "uid-a"), (std::vector<uint64_t>{5, 4, 3, 2}));
  EXPECT_EQ(table.with_ids(core::kResourceMemory, ids(0, 3), "uid-a", false), (std::vector<uint64_t>{4, 3, 2}));
  for (uint64_t id = 10; table.all().size() < kMaxSlots; ++id) add(id, id, "");
  EXPECT_EQ(table.add({9'999, 9'999, "", {}, 0, {}, 0, {}, "", true}).error().code, ErrorCode::kExhausted);
}

}  // namespace
}  // namespace sluice::node
