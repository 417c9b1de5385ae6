// What the API server answers to a Binding, or does not, against what stays reserved.
#include "scheduler/binder.h"

#include <gtest/gtest.h>

#include "kube/scripted_server.h"
#include "scheduler/objects_for_tests.h"

namespace sluice::scheduler {
namespace {

using kube::ScriptedAnswer;
using kube::ScriptedServer;
using std::chrono::milliseconds;

constexpr const char* kFree = "31/100";
constexpr const char* kTaken = "21/70";

class BinderTest : public testing::Test {
 protected:
  BinderTest() : state_({}, *kube::Verifier::from_pem({signer_.public_pem()})) {
    state_.replace_nodes({node("a"), node("b")});
    state_.replace_pods({pod({.name = "p"})});
  }
  void play(std::vector<ScriptedAnswer> script, milliseconds doubt = milliseconds(10'000)) {
    server_ = std::make_unique<ScriptedServer>(std::move(script));
    kube::Endpoint endpoint;
    endpoint.server = server_->url();
    binder_ = std::make_unique<Binder>(
        state_, endpoint, signer_, [this] { return leading_; }, BinderTimes{milliseconds(200), doubt});
  }
  std::string bind(const std::string& uid = "uid-p") { return binder_->bind({uid, "d", "p", "a"}); }
  // Free units and compute of node a's card.
  std::string free_of_a() {
    json::Value all = state_.describe();
    const json::Value& card = all.at("nodes").at(0).at("cards").at(0);
    return fmt::format("{}/{}", card.at("free_units").to_number<int>(), card.at("free_core_percent").to_number<int>());
  }
  bool comes_to(const std::string& expected) {
    for (int i = 0; i < 500 && free_of_a() != expected; ++i) std::this_thread::sleep_for(milliseconds(10));
    return free_of_a() == expected;
  }

  kube::Signer signer_ = kube::Signer::generate();
  State state_;
  bool leading_ = true;
  std::unique_ptr<ScriptedServer> server_;
  std::unique_ptr<Binder> binder_;
};

std::string seen(PodSpec spec) {
  return json::to_string(pod(spec));
}

TEST_F(BinderTest, OneBindingCarriesNodeUidAndRecord) {
  play({{201, "{}"}});
  EXPECT_EQ(bind(), "");
  EXPECT_EQ(binder_->bound(), 1u);
  EXPECT_EQ(free_of_a(), kTaken);
  std::vector<std::string> requests = server_->requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_TRUE(requests[0].starts_with("POST /api/v1/namespaces/d/pods/p/binding ")) << requests[0];
  Result<json::Value> body = json::parse(requests[0].substr(requests[0].find("\r\n\r\n") + 4));
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(body->at("metadata").at("uid").get_string(), "uid-p");
  EXPECT_EQ(body->at("target").at("name").get_string(), "a");
  std::map<std::string, std::string> annotations;
  for (const auto& one : body->at("metadata").at("annotations").get_object())
    annotations[one.key()] = one.value().get_string();
  Result<kube::Allocation> record =
      kube::read_allocation(annotations, "uid-p", "a", *kube::Verifier::from_pem({signer_.public_pem()}));
  ASSERT_TRUE(record.ok()) << record.error().message;
  EXPECT_EQ(record->cards.at(0).units, 10);
}

TEST_F(BinderTest, NoAnswerKeepsTheAssumption) {
  play({{.status = 201, .body = "{}", .delay_ms = 400}});
  EXPECT_NE(bind().find("no definite answer"), std::string::npos);
  EXPECT_EQ(free_of_a(), kTaken);
  EXPECT_EQ(binder_->unknown(), 1u);
}

TEST_F(BinderTest, ACutAnswerAndAServerErrorAreNoAnswer) {
  play({{.status = 201, .body = "{}", .cut = true}});
  EXPECT_NE(bind().find("no definite answer"), std::string::npos);
  EXPECT_EQ(free_of_a(), kTaken);
  binder_.reset();
  play({{500, R"({"message":"etcd is away"})"}});
  state_.bind_refused("uid-p");
  EXPECT_NE(bind().find("etcd is away"), std::string::npos);
  EXPECT_EQ(free_of_a(), kTaken);
}

TEST_F(BinderTest, ADoubtIsSettledByLookingLater) {
  play({{500, ""}, {503, ""}, {200, seen({.name = "p"})}}, milliseconds(50));
  EXPECT_NE(bind(), "");
  EXPECT_EQ(free_of_a(), kTaken);
  EXPECT_TRUE(comes_to(kFree));  // it is not bound and no Binding is on its way any more
  EXPECT_EQ(server_->requests().size(), 3u);
}

TEST_F(BinderTest, ADoubtMayEndWithABoundPod) {
  play({{500, ""}, {200, seen({.name = "p", .node = "a"})}}, milliseconds(50));
  EXPECT_NE(bind(), "");
  ASSERT_TRUE(server_->wait_for_requests(2));
  // Bound, and without a readable record it counts at its worst case, which on a one-card node is its request.
  EXPECT_TRUE(comes_to(kTaken));
}

TEST_F(BinderTest, AConflictIsDecidedByLooking) {
  struct Case {
    const char* name;
    ScriptedAnswer look;
    bool success;
    const char* free;
  };
  for (const Case& one :
       {Case{"bound here", {200, seen({.name = "p", .node = "a"})}, true, kTaken},
        Case{"bound elsewhere", {200, seen({.name = "p", .node = "b"})}, false, kFree},
        Case{"not bound", {200, seen({.name = "p"})}, false, kFree}, Case{"gone", {404, ""}, false, kFree},
        Case{"cannot look", {500, ""}, false, kTaken}, Case{"not a pod", {200, "[]"}, false, kTaken}}) {
    state_.replace_pods({});
    state_.replace_pods({pod({.name = "p"})});
    ASSERT_EQ(free_of_a(), kFree) << one.name;
    play({{409, R"({"message":"conflict"})"}, one.look, one.look});
    EXPECT_EQ(bind() == "", one.success) << one.name;
    EXPECT_EQ(free_of_a(), one.free) << one.name;
    EXPECT_EQ(binder_->conflicts(), 1u) << one.name;
    binder_.reset();
  }
}

TEST_F(BinderTest, APodThatHasChangedIsBoundAndOneThatHasEndedIsNot) {
  state_.replace_pods({pod({.name = "p", .resource_version = "7"})});
  play({{409, "{}"}, {200, seen({.name = "p", .resource_version = "8"})}, {201, "{}"}});
  EXPECT_EQ(bind(), "");
  EXPECT_NE(server_->requests().at(0).find(R"("resourceVersion":"7")"), std::string::npos);
  EXPECT_NE(server_->requests().at(2).find(R"("resourceVersion":"8")"), std::string::npos);
  EXPECT_EQ(free_of_a(), kTaken);
  binder_.reset();
  state_.replace_pods({});
  state_.replace_pods({pod({.name = "p", .resource_version = "8"})});
  std::string ended = seen({.name = "p", .phase = "Failed", .resource_version = "9"});
  play({{409, R"({"message":"the object has been modified"})"}, {200, ended}, {200, ended}});
  EXPECT_NE(bind().find("modified"), std::string::npos);
  EXPECT_EQ(free_of_a(), kFree);
  EXPECT_EQ(server_->requests().size(), 3u);
}

TEST_F(BinderTest, APodMadeAnewUnderItsNameIsAnother) {
  json::Value other = pod({.name = "p", .node = "a"});
  other.at("metadata").at("uid") = "uid-other";
  play({{409, ""}, {200, json::to_string(other)}, {200, json::to_string(other)}});
  EXPECT_NE(bind(), "");
  EXPECT_EQ(free_of_a(), kFree);
}

TEST_F(BinderTest, ADefiniteRefusalDropsTheAssumption) {
  for (int status : {400, 403, 404, 422}) {
    play({{status, R"({"message":"pods \"p\" not found"})"}});
    EXPECT_NE(bind().find("not found"), std::string::npos) << status;
    EXPECT_EQ(free_of_a(), kFree) << status;
    EXPECT_EQ(binder_->unknown(), 0u);
    binder_.reset();
  }
}

TEST_F(BinderTest, AFollowerSendsNothing) {
  leading_ = false;
  play({});
  EXPECT_NE(bind().find("does not lead"), std::string::npos);
  EXPECT_EQ(free_of_a(), kFree);
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(BinderTest, APodThatTheWatchHasNotBroughtIsFetched) {
  play({{200, seen({.name = "new"})}, {201, "{}"}});
  EXPECT_EQ(binder_->bind({"uid-new", "d", "new", "a"}), "");
  EXPECT_EQ(free_of_a(), kTaken);
  EXPECT_TRUE(server_->requests().at(0).starts_with("GET "));
}

TEST_F(BinderTest, ARepeatedCallForABoundPodIsASuccess) {
  play({{201, "{}"}, {200, seen({.name = "p", .node = "a"})}});
  EXPECT_EQ(bind(), "");
  state_.pod_changed(pod({.name = "p", .node = "a"}));
  EXPECT_EQ(bind(), "");
  EXPECT_EQ(binder_->bound(), 1u);
}

TEST_F(BinderTest, NoRoomIsSaidWithoutAskingTheServer) {
  state_.replace_pods({pod({.name = "p"}), pod({.name = "x", .memory = "25", .node = "a"})});
  play({});
  EXPECT_EQ(bind(), "card memory: needs 10 GiB on one card, most free on any card 6 GiB");
  EXPECT_EQ(binder_->conflicts(), 1u);
  EXPECT_TRUE(server_->requests().empty());
}

}  // namespace
}  // namespace sluice::scheduler
