#include "agent/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "agent/test_support.h"

namespace sluice::agent {
namespace {

using test::eventually;
using test::FakeCards;
using test::FakeProgram;
using test::kMib;
using test::TemporaryDirectory;

const Peer kSelf{::getpid(), static_cast<int64_t>(::geteuid())};

GrantRequest share(int64_t units, int64_t percent, const std::string& name = "") {
  GrantRequest request;
  request.gpu_mem_units = units;
  request.core_percent = percent;
  request.name = name;
  return request;
}

class NodeTest : public testing::Test {
 protected:
  NodeOptions options() {
    NodeOptions o;
    o.run_directory = directory_.path();
    o.card_lock_directory = directory_.path();
    return o;
  }
  std::unique_ptr<Node> make_node(FakeCards& cards) {
    auto node = std::make_unique<Node>(options(), cards, [] { return std::make_unique<test::SleepyHost>(); });
    Result<void> started = node->start();
    EXPECT_TRUE(started) << started.error().message;
    return node;
  }
  // One round of every watching thread.
  void watch(Node& node, FakeCards& cards) {
    node.probe(monotonic_ns());
    for (const std::string& uuid : node.card_uuids()) {
      const Node::Before before = node.before_reading(uuid);
      const uint64_t started_ns = monotonic_ns();
      Result<CardReading> reading = cards.read(uuid);
      if (reading)
        node.card_read(uuid, monotonic_ns(), started_ns, *reading, before);
      else
        node.card_failed(uuid, reading.error());
    }
  }
  struct Header {
    uint64_t magic = 0, grant_id = 0;
    std::string container;
  };
  Header header_of(const GrantAnswer& answer) {
    Header header;
    Result<std::string> bytes = read_file(answer.grant_directory + "/page");
    if (!bytes || bytes->size() < sizeof(page::GrantHeader)) return header;
    std::memcpy(&header.magic, bytes->data() + offsetof(page::GrantHeader, magic), sizeof(header.magic));
    std::memcpy(&header.grant_id, bytes->data() + offsetof(page::GrantHeader, grant_id), sizeof(header.grant_id));
    header.container = bytes->data() + offsetof(page::GrantHeader, container);
    return header;
  }
  TemporaryDirectory directory_;
};

TEST_F(NodeTest, AGrantAnswersWithEverythingAProgramNeeds) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "train"));
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_EQ(answer->cards.size(), 1u);
  EXPECT_EQ(answer->cards[0].memory_limit_mib, 10487);  // floor(32510 x 10 / 31)
  EXPECT_EQ(answer->cards[0].core_percent, 30);
  EXPECT_EQ(answer->policy, page::kPolicyFixed);
  EXPECT_TRUE(answer->isolate);
  std::map<std::string, std::string> environment(answer->environment.begin(), answer->environment.end());
  EXPECT_EQ(environment["ALIYUN_COM_GPU_MEM_DEV"], "31");
  EXPECT_EQ(environment["ALIYUN_COM_GPU_MEM_CONTAINER"], "10");
  EXPECT_EQ(environment["ALIYUN_COM_GPU_MEM_POD"], "10");
  EXPECT_EQ(environment["ALIYUN_COM_GPU_MEM_IDX"], "0");
  EXPECT_EQ(environment["NVIDIA_VISIBLE_DEVICES"], FakeCards::uuid(0));
  struct stat status{};
  ASSERT_EQ(::stat(answer->usage_file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
  EXPECT_EQ(static_cast<uint32_t>(status.st_size), page::usage_bytes(1));
  ASSERT_EQ(::stat((answer->grant_directory + "/page").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  ASSERT_EQ(::stat((answer->grant_directory + "/..").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0077, 0u) << "other users must not come near the usage file";
  const Header header = header_of(*answer);
  EXPECT_EQ(header.magic, page::kGrantMagic);
  EXPECT_EQ(header.container, "train");
  EXPECT_EQ(grant_id_text(header.grant_id), answer->id);
}

struct Refused {
  GrantRequest request;
  ErrorCode code;
  const char* text;  // part of the sentence
};

TEST_F(NodeTest, AMixedCardServesUncappedBesideCappedInEitherOrder) {
  FakeCards cards(1);
  NodeOptions mixed = options();
  mixed.mixed = true;
  Node node(mixed, cards, [] { return std::make_unique<test::SleepyHost>(); });
  ASSERT_TRUE(node.start());
  Result<GrantAnswer> uncapped = node.grant(kSelf, share(5, 0, "uncapped"));
  ASSERT_TRUE(uncapped) << uncapped.error().message;
  EXPECT_EQ(uncapped->policy, page::kPolicyFixed);  // takes turns as soon as somebody capped comes
  EXPECT_EQ(uncapped->cards[0].core_percent, 0);
  Result<GrantAnswer> capped = node.grant(kSelf, share(5, 30, "capped"));
  ASSERT_TRUE(capped) << capped.error().message;
  EXPECT_TRUE(node.grant(kSelf, share(5, 0, "second")));
  GrantRequest whole;
  whole.whole_cards = 1;
  EXPECT_FALSE(node.grant(kSelf, whole));
}

TEST_F(NodeTest, RefusalsNameRuleNeedAndHave) {
  FakeCards cards(1);
  auto node = make_node(cards);
  ASSERT_TRUE(node->grant(kSelf, share(25, 70)));
  GrantRequest whole, both = share(1, 0), other_policy = share(1, 5);
  whole.whole_cards = 1;
  both.whole_cards = 1;
  other_policy.policy = page::kPolicyBurst;
  const Refused cases[] = {
      {share(10, 20), ErrorCode::kExhausted, "needs 10 GiB on one card"},
      {share(1, 40), ErrorCode::kExhausted, "compute"},
      {share(40, 5), ErrorCode::kInvalid, "needs 40 GiB"},
      {share(1, 7), ErrorCode::kInvalid, "multiple of 5"},
      {share(0, 30), ErrorCode::kInvalid, "needs aliyun.com/gpu-mem beside it"},
      {share(0, 0), ErrorCode::kInvalid, "needs at least 1 unit, have nothing"},
      {share(2, 0), ErrorCode::kExhausted, "one kind at a time"},
      {whole, ErrorCode::kExhausted, "one kind at a time"},
      {both, ErrorCode::kInvalid, "have both"},
      {other_policy, ErrorCode::kExhausted, "is under policy fixed"},
  };
  for (const Refused& expected : cases) {
    Result<GrantAnswer> answer = node->grant(kSelf, expected.request);
    ASSERT_FALSE(answer) << expected.text;
    EXPECT_NE(answer.error().message.find(expected.text), std::string::npos) << answer.error().message;
    EXPECT_EQ(answer.error().code, expected.code) << answer.error().message;
  }
  EXPECT_EQ(node->list(kSelf).grants.size(), 1u);
}

TEST_F(NodeTest, WholeCardsAreExclusiveAndTheLastOneNeedsNoLibrary) {
  FakeCards cards(2);
  auto node = make_node(cards);
  GrantRequest whole;
  whole.whole_cards = 1;
  Result<GrantAnswer> first = node->grant(kSelf, whole);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->isolate) << "the other card must not be seen";
  EXPECT_EQ(first->cards[0].memory_limit_mib, 32510);
  Result<GrantAnswer> shared = node->grant(kSelf, share(10, 30));
  ASSERT_TRUE(shared);
  EXPECT_NE(shared->cards[0].uuid, first->cards[0].uuid);
  EXPECT_FALSE(node->grant(kSelf, whole).ok());
  ASSERT_TRUE(node->release(kSelf, first->id, false));
  ASSERT_TRUE(node->release(kSelf, shared->id, false));
  whole.whole_cards = 2;
  Result<GrantAnswer> all = node->grant(kSelf, whole);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_FALSE(all->isolate);
}

TEST_F(NodeTest, AtMostTwentyGrantsPerCard) {
  FakeCards cards(1);
  auto node = make_node(cards);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(node->grant(kSelf, share(1, 5))) << i;
  Result<GrantAnswer> more = node->grant(kSelf, share(1, 0));
  ASSERT_FALSE(more);
  Result<GrantAnswer> same = node->grant(kSelf, share(1, 5));
  ASSERT_FALSE(same);
  EXPECT_NE(same.error().message.find("pods per card"), std::string::npos) << same.error().message;
}

TEST_F(NodeTest, SharesChangeInPlaceAndMemoryNeverBelowWhatIsUsed) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "a"));
  ASSERT_TRUE(answer);
  FakeProgram program(answer->usage_file, 0, 5, 4096);
  ASSERT_TRUE(program.ready());
  SetRequest set{"a", 6, 45, std::nullopt, std::nullopt};
  Result<GrantStatus> changed = node->set(kSelf, set);
  ASSERT_TRUE(changed) << changed.error().message;
  EXPECT_EQ(changed->cards[0].memory_limit_mib, 32510 * 6 / 31);
  EXPECT_EQ(changed->cards[0].core_percent, 45);
  set.gpu_mem_units = 3;  // 3146 MiB, 4096 in use
  Result<GrantStatus> refused = node->set(kSelf, set);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("4096 MiB are in use"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(program.tell("reserve 1024"));
  EXPECT_TRUE(node->set(kSelf, set).ok()) << "what was freed counts at once";
  ASSERT_TRUE(node->grant(kSelf, share(5, 50, "b")));
  set = {"a", std::nullopt, 60, std::nullopt, std::nullopt};
  ASSERT_FALSE(node->set(kSelf, set).ok());
  EXPECT_EQ(node->list(kSelf).grants[0].cards[0].core_percent, 45) << "a refused change changes nothing";
  EXPECT_EQ(node->list(kSelf).cards[0].free_core_percent, 5);
  Result<GrantStatus> crooked = node->set(kSelf, {"a", std::nullopt, 12, std::nullopt, std::nullopt});
  ASSERT_FALSE(crooked);
  EXPECT_NE(crooked.error().message.find("multiple of 5"), std::string::npos);
}

// `sluice run` gives back when its command has ended. The card may still hold what that left, which the next one waits
// for.
TEST_F(NodeTest, AGrantGivenBackWhileTheCardHoldsItsMemoryMakesTheNextOneWait) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> first = node->grant(kSelf, share(20, 50, "a"));
  ASSERT_TRUE(first);
  FakeProgram program(first->usage_file, 0, 0, 15000);
  ASSERT_TRUE(program.ready());
  const pid_t pid = program.pid();
  cards.use(0, pid, 15000);
  watch(*node, cards);
  program.kill();
  EXPECT_TRUE(node->release(kSelf, "a", false).ok());
  std::thread freed([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cards.use(0, pid, 0);
    watch(*node, cards);
    watch(*node, cards);
  });
  Result<GrantAnswer> second = node->grant(kSelf, share(20, 50, "b"));
  freed.join();
  EXPECT_TRUE(second) << second.error().message;
}

// Killed at any step, an agent leaves what the next one either takes over or removes: no share, page or mount stays
// behind.
TEST_F(NodeTest, KilledAtEachStepItLeavesNothingThatTheNextOneDoesNotUnderstand) {
  constexpr NodePoint kPoints[] = {
#define SLUICE_NODE_POINT(name) NodePoint::name,
      SLUICE_NODE_POINTS(SLUICE_NODE_POINT)
#undef SLUICE_NODE_POINT
  };
  FakeCards cards(1);
  for (const NodePoint point : kPoints) {
    const pid_t agent = ::fork();
    if (agent == 0) {
      NodeOptions o = options();
      o.at = [point](NodePoint reached) {
        if (reached == point) ::kill(::getpid(), SIGKILL);
      };
      Node node(o, cards, [] { return std::make_unique<test::SleepyHost>(); });
      const Peer self{::getpid(), static_cast<int64_t>(::geteuid())};
      if (!node.start() || !node.grant(self, share(20, 50, "a"))) ::_exit(1);
      if (!node.set(self, {"a", 10, 30, std::nullopt, std::nullopt}) || !node.release(self, "a", false)) ::_exit(2);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(agent, &status, 0), agent);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "label " << static_cast<int>(point) << " not hit";
    auto node = make_node(cards);
    EXPECT_LE(node->list(kSelf).grants.size(), 1u);
    for (int i = 0; i < 3; ++i) watch(*node, cards);
    ListAnswer list = node->list(kSelf);
    EXPECT_TRUE(list.grants.empty()) << "label " << static_cast<int>(point);
    EXPECT_EQ(list.cards[0].free_units, 31) << "label " << static_cast<int>(point);
    EXPECT_EQ(list.cards[0].free_core_percent, 100) << "label " << static_cast<int>(point);
    for (const char* folder : {"/grants", "/records"}) {
      EXPECT_TRUE(std::filesystem::is_empty(directory_.path() + folder))
          << folder << ", label " << static_cast<int>(point);
    }
  }
}

TEST_F(NodeTest, StrangersMayNotTouchAGrant) {
  FakeCards cards(1);
  auto node = make_node(cards);
  ASSERT_TRUE(node->grant(kSelf, share(10, 30, "a")));
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to look from another user's side";
  const Peer other{::getpid(), 4242};
  EXPECT_EQ(node->set(other, {"a", 5, std::nullopt, std::nullopt, std::nullopt}).error().code, ErrorCode::kPermission);
  EXPECT_EQ(node->release(other, "a", true).error().code, ErrorCode::kPermission);
  EXPECT_EQ(node->attach(other, "a", 0).error().code, ErrorCode::kPermission);
  EXPECT_EQ(node->set_policy(other, {4, ""}).error().code, ErrorCode::kPermission);
  EXPECT_TRUE(node->list(other).events.empty());
  GrantRequest urgent = share(1, 5, "b");
  urgent.high_priority = true;
  Result<GrantAnswer> answer = node->grant(other, urgent);
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_EQ(answer->notes.size(), 1u);
  EXPECT_NE(answer->notes[0].find("--allow-priority"), std::string::npos);
  for (const GrantStatus& grant : node->list(kSelf).grants) EXPECT_FALSE(grant.high_priority);
}

TEST_F(NodeTest, AGrantEndsWithItsProcessesAndItsMemoryWithTheCard) {
  FakeCards cards(1);
  auto node = make_node(cards);
  auto runner = std::make_unique<FakeProgram>("/dev/null", 0, 0, 0);  // lives, holds nothing
  GrantRequest request = share(10, 30, "a");
  request.runner_pid = runner->pid();
  Result<GrantAnswer> answer = node->grant(kSelf, request);
  ASSERT_TRUE(answer) << answer.error().message;
  FakeProgram program(answer->usage_file, 0, 0, 2048);
  ASSERT_TRUE(program.ready());
  cards.use(0, program.pid(), 2100);
  watch(*node, cards);
  ListAnswer list = node->list(kSelf);
  ASSERT_EQ(list.grants.size(), 1u);
  EXPECT_EQ(list.grants[0].use[0].used_mib, 2100);
  EXPECT_EQ(list.grants[0].use[0].reserved_mib, 2100) << "the correction makes up what the program does not say";
  ASSERT_EQ(list.grants[0].processes.size(), 1u);
  EXPECT_EQ(list.grants[0].processes[0].pid, program.pid());

  runner->kill();
  watch(*node, cards);
  EXPECT_EQ(node->list(kSelf).grants.size(), 1u) << "a process that holds a slot keeps it";
  const pid_t pid = program.pid();
  program.kill();
  watch(*node, cards);
  list = node->list(kSelf);
  ASSERT_EQ(list.grants.size(), 1u) << "the card has not given its memory back yet";
  EXPECT_EQ(list.grants[0].use[0].reserved_mib, 2100);
  cards.use(0, pid, 0);
  watch(*node, cards);
  node->probe(monotonic_ns());
  EXPECT_TRUE(node->list(kSelf).grants.empty());
  EXPECT_EQ(node->list(kSelf).cards[0].free_units, 31);
  EXPECT_EQ(node->list(kSelf).cards[0].kind, "free");
  EXPECT_NE(::access(answer->usage_file.c_str(), F_OK), 0) << "nothing is left behind";
}

TEST_F(NodeTest, ReleaseWaitsForProgramsUnlessForcedAndThenClosesThePage) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "a"));
  ASSERT_TRUE(answer);
  FakeProgram program(answer->usage_file, 0, 0, 100);
  ASSERT_TRUE(program.ready());
  EXPECT_EQ(node->release(kSelf, "a", false).error().code, ErrorCode::kExists);
  EXPECT_EQ(header_of(*answer).magic, page::kGrantMagic);
  ASSERT_TRUE(node->release(kSelf, "a", true));
  EXPECT_EQ(header_of(*answer).magic, 0u) << "a program that starts now must fail closed";
  EXPECT_EQ(node->list(kSelf).grants.size(), 1u);
  program.kill();
  ASSERT_TRUE(eventually([&] {
    watch(*node, cards);
    return node->list(kSelf).grants.empty();
  }));
}

TEST_F(NodeTest, ANewAgentTakesOverRunningPrograms) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "a"));
  ASSERT_TRUE(answer);
  ASSERT_TRUE(node->set(kSelf, {"a", std::nullopt, 55, std::nullopt, std::nullopt}));
  ASSERT_TRUE(node->set_policy(kSelf, {page::kPolicyBurst, ""}));
  FakeProgram program(answer->usage_file, 0, 0, 1000);
  ASSERT_TRUE(program.ready());
  node.reset();
  EXPECT_EQ(header_of(*answer).magic, page::kGrantMagic) << "running programs keep their page";

  node = make_node(cards);
  ListAnswer list = node->list(kSelf);
  ASSERT_EQ(list.grants.size(), 1u);
  EXPECT_TRUE(list.grants[0].taken_over);
  EXPECT_EQ(list.grants[0].id, answer->id);
  EXPECT_EQ(list.grants[0].cards[0].core_percent, 55);
  EXPECT_EQ(list.grants[0].policy, page::kPolicyBurst);
  EXPECT_EQ(list.cards[0].free_units, 21);
  EXPECT_EQ(list.cards[0].free_core_percent, 45);
  watch(*node, cards);
  EXPECT_EQ(node->list(kSelf).grants[0].processes.size(), 1u);
}

TEST_F(NodeTest, ExchangedPagesAreNotTakenOverAndTheShareStaysTaken) {
  FakeCards cards(1);
  auto node = make_node(cards);
  auto runner = std::make_unique<FakeProgram>("/dev/null", 0, 0, 0);
  GrantRequest request = share(10, 30, "a");
  request.runner_pid = runner->pid();
  Result<GrantAnswer> answer = node->grant(kSelf, request);
  ASSERT_TRUE(answer);
  node.reset();
  const std::string page = answer->grant_directory + "/page";
  ASSERT_EQ(::rename(page.c_str(), (page + ".old").c_str()), 0);
  std::filesystem::copy_file(page + ".old", page);
  node = make_node(cards);
  ListAnswer list = node->list(kSelf);
  ASSERT_EQ(list.grants.size(), 1u);
  ASSERT_EQ(list.events.size(), 1u);
  EXPECT_NE(list.events[0].text.find("exchanged"), std::string::npos) << list.events[0].text;
  EXPECT_EQ(list.cards[0].free_units, 21);
  EXPECT_FALSE(node->set(kSelf, {"a", 5, std::nullopt, std::nullopt, std::nullopt}).ok());
  runner->kill();
  watch(*node, cards);
  EXPECT_TRUE(node->list(kSelf).grants.empty());
  ::unlink((page + ".old").c_str());
}

TEST_F(NodeTest, APageOfAnotherVersionIsNamedInOneSentence) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "a"));
  ASSERT_TRUE(answer);
  node.reset();
  const uint16_t other = 9;
  Fd fd(::open((answer->grant_directory + "/page").c_str(), O_RDWR));
  ASSERT_EQ(::pwrite(fd.get(), &other, sizeof(other), offsetof(page::GrantHeader, major)), 2);
  node = make_node(cards);
  ASSERT_EQ(node->list(kSelf).events.size(), 1u);
  EXPECT_NE(
      node->list(kSelf).events[0].text.find(fmt::format("page of layout 9.{}, this agent writes 1.x", page::kMinor)),
      std::string::npos)
      << node->list(kSelf).events[0].text;
}

TEST_F(NodeTest, AUsageFileThatATenantCutsOrFillsWithNonsenseHarmsNobody) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "bad"));
  Result<GrantAnswer> neighbour = node->grant(kSelf, share(10, 30, "good"));
  ASSERT_TRUE(answer && neighbour);
  FakeProgram bad(answer->usage_file, 0, 0, 100), good(neighbour->usage_file, 0, 0, 200);
  ASSERT_TRUE(bad.ready() && good.ready());
  ASSERT_TRUE(bad.tell("truncate"));
  watch(*node, cards);
  struct stat status{};
  ASSERT_EQ(::stat(answer->usage_file.c_str(), &status), 0);
  EXPECT_EQ(static_cast<uint32_t>(status.st_size), page::usage_bytes(1)) << "the file is put right";
  ASSERT_TRUE(bad.tell("lie"));
  for (int i = 0; i < 3; ++i) watch(*node, cards);
  ListAnswer list = node->list(kSelf);
  ASSERT_EQ(list.grants.size(), 2u);
  for (const GrantStatus& grant : list.grants) {
    if (grant.name == "good") {
      EXPECT_EQ(grant.use[0].reserved_mib, 200);
      EXPECT_EQ(grant.use[0].tampering, 0);
    } else {
      EXPECT_GE(grant.use[0].tampering, 1);
    }
    EXPECT_LE(grant.use[0].utilisation_percent, 100);
  }
  EXPECT_TRUE(ListAnswer::from_json(list.to_json()).ok()) << "nothing in it breaks the protocol";
}

// Containers have the page read-only; the agent's own user has the file.
TEST_F(NodeTest, AGrantPageThatSomebodyElseWroteIsPutRightAndReported) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(2, 30, "a"));
  ASSERT_TRUE(answer);
  node->probe(monotonic_ns());
  EXPECT_TRUE(node->list(kSelf).events.empty());
  Fd file(::open((answer->grant_directory + "/page").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  const auto at = [](size_t field) { return static_cast<off_t>(sizeof(page::GrantHeader) + field); };
  const auto word = [&](size_t field, auto value) {
    EXPECT_EQ(::pread(file.get(), &value, sizeof value, at(field)), static_cast<ssize_t>(sizeof value));
    return value;
  };
  const auto write = [&](size_t field, auto value) {
    EXPECT_EQ(::pwrite(file.get(), &value, sizeof value, at(field)), static_cast<ssize_t>(sizeof value));
  };
  // The keeper's first words.
  ASSERT_TRUE(eventually([&] { return word(offsetof(page::GrantCard, heartbeat_ns), uint64_t{0}) != 0; }));
  const auto limit = word(offsetof(page::GrantCard, memory_limit_bytes), uint64_t{0});
  const auto gate = word(offsetof(page::GrantCard, gate), uint32_t{0});
  write(offsetof(page::GrantCard, memory_limit_bytes), uint64_t{31} << 30);
  node->probe(monotonic_ns());
  EXPECT_EQ(word(offsetof(page::GrantCard, memory_limit_bytes), uint64_t{0}), limit);
  write(offsetof(page::GrantCard, core_permille), uint32_t{0});
  write(offsetof(page::GrantCard, context_estimate_bytes), uint64_t{0});
  node->probe(monotonic_ns());
  EXPECT_EQ(word(offsetof(page::GrantCard, core_permille), uint32_t{0}), 300u);
  EXPECT_GT(word(offsetof(page::GrantCard, context_estimate_bytes), uint64_t{0}), 0u);
  write(offsetof(page::GrantCard, gate), gate ^ page::kGateFree);
  node->probe(monotonic_ns());
  EXPECT_EQ(word(offsetof(page::GrantCard, gate), uint32_t{0}) & page::kGateFree, gate & page::kGateFree);
  const ListAnswer list = node->list(kSelf);
  EXPECT_GE(list.grants[0].use[0].tampering, 3);
  ASSERT_FALSE(list.events.empty());
  EXPECT_EQ(list.events[0].what, "tampering");
  EXPECT_NE(list.events[0].text.find("the memory limit was 31744 MiB and is 2097 MiB again"), std::string::npos)
      << list.events[0].text;
  // Our own changes are none of somebody else's.
  const size_t events = list.events.size();
  ASSERT_TRUE(node->set(kSelf, {"a", 3, 50, 2, true}));
  ASSERT_TRUE(node->set_policy(kSelf, {page::kPolicyWeighted, ""}));
  ASSERT_TRUE(node->grant(kSelf, share(2, 30, "b")));
  for (int i = 0; i < 3; ++i) watch(*node, cards);
  EXPECT_EQ(node->list(kSelf).events.size(), events);
}

TEST_F(NodeTest, ProcessesWithoutAGrantAreReported) {
  FakeCards cards(1);
  auto node = make_node(cards);
  FakeProgram stranger("/dev/null", 0, 0, 0);
  cards.use(0, stranger.pid(), 512);
  watch(*node, cards);
  EXPECT_TRUE(node->list(kSelf).cards[0].strangers.empty()) << "one reading may be a process just starting";
  watch(*node, cards);
  ListAnswer list = node->list(kSelf);
  ASSERT_EQ(list.cards[0].strangers.size(), 1u);
  EXPECT_EQ(list.cards[0].strangers[0].pid, stranger.pid());
  EXPECT_EQ(list.cards[0].strangers[0].used_mib, 512);
  ASSERT_EQ(list.events.size(), 1u);
  EXPECT_EQ(list.events[0].what, "stranger");
}

// A card lists a program a little longer than the kernel does; once that was an event about "process N ()".
TEST_F(NodeTest, ProgramsThatHaveEndedAreNoStrangers) {
  FakeCards cards(1);
  auto node = make_node(cards);
  FakeProgram reaped("/dev/null", 0, 0, 0);
  const pid_t gone = reaped.pid();
  reaped.kill();
  cards.use(0, gone, 512);
  const pid_t zombie = ::fork();
  if (zombie == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(zombie), &ended, WEXITED | WNOWAIT), 0);
  cards.use(0, zombie, 512);
  for (int i = 0; i < 5; ++i) watch(*node, cards);
  EXPECT_TRUE(node->list(kSelf).cards[0].strangers.empty());
  EXPECT_TRUE(node->list(kSelf).events.empty());
  ::waitpid(zombie, nullptr, 0);
}

TEST_F(NodeTest, APageThatSaysLessThanTheCardIsReported) {
  FakeCards cards(1);
  auto node = make_node(cards);
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30, "quiet"));
  ASSERT_TRUE(answer);
  FakeProgram program(answer->usage_file, 0, 0, 0);
  ASSERT_TRUE(program.ready());
  cards.use(0, program.pid(), 3000);
  cards.set_utilisation(95);
  for (int i = 0; i < 8; ++i) watch(*node, cards);
  int memory = 0, busy = 0;
  for (const Event& event : node->list(kSelf).events) {
    memory += event.text.find("its page says 0 MiB") != std::string::npos;
    busy += event.text.find("95 % busy by its own word") != std::string::npos;
  }
  EXPECT_EQ(memory, 1);
  EXPECT_EQ(busy, 1);
}

TEST_F(NodeTest, ALostCardTakesNoGrantsAndComesBack) {
  FakeCards cards(2);
  auto node = make_node(cards);
  cards.set_lost(0, true);
  watch(*node, cards);
  EXPECT_TRUE(node->any_lost());
  EXPECT_EQ(node->list(kSelf).cards[0].state, "lost");
  Result<GrantAnswer> answer = node->grant(kSelf, share(10, 30));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->cards[0].index, 1);
  GrantRequest two = share(2, 20);
  two.cards = 2;
  EXPECT_FALSE(node->grant(kSelf, two).ok());
  cards.set_lost(0, false);
  node->cards_found(*cards.list());
  EXPECT_FALSE(node->any_lost());
  EXPECT_TRUE(node->grant(kSelf, two).ok());
  cards.add(7, 81920);  // a card with a UUID never seen
  EXPECT_EQ(node->cards_found(*cards.list()), std::vector<std::string>{FakeCards::uuid(7)});
  EXPECT_EQ(node->list(kSelf).cards.size(), 3u);
}

TEST_F(NodeTest, OneArbiterPerCard) {
  FakeCards cards(1);
  auto node = make_node(cards);
  TemporaryDirectory elsewhere;
  NodeOptions other = options();
  other.run_directory = elsewhere.path();
  Node second(other, cards, [] { return std::make_unique<test::SleepyHost>(); });
  Result<void> started = second.start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kExists);
  EXPECT_NE(started.error().message.find("already has an arbiter: agent with pid"), std::string::npos)
      << started.error().message;
}

TEST_F(NodeTest, AFullFileSystemIsOneSentenceAndLeavesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small file system";
  const std::string mount = "mount -t tmpfs -o size=64k,nr_inodes=32 none " + directory_.path();
  ASSERT_EQ(std::system(mount.c_str()), 0);
  {
    FakeCards cards(1);
    NodeOptions o = options();
    TemporaryDirectory locks;
    o.card_lock_directory = locks.path();
    Node node(o, cards, [] { return std::make_unique<test::SleepyHost>(); });
    ASSERT_TRUE(node.start());
    ASSERT_EQ(std::system(("head -c 1M /dev/zero > " + directory_.path() + "/filler 2>/dev/null").c_str()) != 0, true);
    Result<GrantAnswer> answer = node.grant(kSelf, share(1, 5));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::kExhausted);
    EXPECT_NE(answer.error().message.find("No space left on device"), std::string::npos) << answer.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path() + "/grants"));
    EXPECT_EQ(node.list(kSelf).cards[0].free_units, 31);
    ::unlink((directory_.path() + "/filler").c_str());
    EXPECT_TRUE(node.grant(kSelf, share(1, 5)).ok());
  }
  ASSERT_EQ(std::system(("umount -l " + directory_.path()).c_str()), 0);
}

}  // namespace
}  // namespace sluice::agent
