// Pods bound without us: what is sent for them, and what the API server's answer changes.
#include "scheduler/adopter.h"

#include <gtest/gtest.h>

#include "kube/scripted_server.h"
#include "scheduler/objects_for_tests.h"

namespace sluice::scheduler {
namespace {

using kube::ScriptedAnswer;
using kube::ScriptedServer;
using std::chrono::milliseconds;

class AdopterTest : public testing::Test {
 protected:
  AdopterTest() : state_({}, *kube::Verifier::from_pem({signer_.public_pem()})) {
    state_.replace_nodes({node("a", 2)});
    state_.replace_pods({pod(orphan_)});
  }
  void play(std::vector<ScriptedAnswer> script) {
    server_ = std::make_unique<ScriptedServer>(std::move(script));
    kube::Endpoint endpoint;
    endpoint.server = server_->url();
    adopter_ = std::make_unique<Adopter>(
        state_, endpoint, signer_, "test", [this] { return leading_.load(); },
        AdopterTimes{milliseconds(5), milliseconds(200), milliseconds(20)});
  }
  // The pod as the API server shows it once it has the record that request number `n` carried.
  PodSpec patched(size_t n) {
    PodSpec out = orphan_;
    json::Value body = body_of(n);
    for (const auto& one : body.at("metadata").at("annotations").get_object())
      out.annotations[one.key()] = one.value().get_string();
    return out;
  }
  json::Value body_of(size_t n) {
    std::string text = server_->requests().at(n);
    return *json::parse(text.substr(text.find("\r\n\r\n") + 4));
  }
  // The answer to an adoption as it would be, with a record made here: one of equal content.
  std::string answer_with_record() {
    core::Node node = kube::decode_node(scheduler::node("a", 2), {})->node;
    kube::Allocation allocation;
    allocation.cards = {{0, "GPU-0", 10, 300}};
    allocation.containers["c"] = allocation.cards;
    PodSpec bound = orphan_;
    bound.annotations = kube::to_annotations(allocation, node, {"c"}, "uid-p", signer_, 1);
    return json::to_string(pod(bound));
  }
  std::string free_of_a() {
    json::Value all = state_.describe();
    std::string out;
    for (const json::Value& card : all.at("nodes").at(0).at("cards").get_array())
      out += fmt::format("{} ", card.at("free_units").to_number<int>());
    return out;
  }
  bool comes_to(const std::string& expected) {
    for (int i = 0; i < 500 && free_of_a() != expected; ++i) std::this_thread::sleep_for(milliseconds(10));
    return free_of_a() == expected;
  }

  PodSpec orphan_{.name = "p", .node = "a", .resource_version = "41"};
  kube::Signer signer_ = kube::Signer::generate();
  State state_;
  std::atomic<bool> leading_{true};
  std::unique_ptr<ScriptedServer> server_;
  std::unique_ptr<Adopter> adopter_;
};

TEST_F(AdopterTest, TheRecordIsPatchedOntoExactlyThePodThatWasLookedAt) {
  EXPECT_EQ(free_of_a(), "21 21 ");  // worst case
  play({{200, answer_with_record()}, {201, "{}"}});
  ASSERT_TRUE(server_->wait_for_requests(2));
  std::string patch = server_->requests()[0];
  EXPECT_TRUE(patch.starts_with("PATCH /api/v1/namespaces/d/pods/p?")) << patch;
  EXPECT_NE(patch.find("application/merge-patch+json"), std::string::npos);
  json::Value body = body_of(0);
  EXPECT_EQ(body.at("metadata").at("uid").get_string(), "uid-p");
  EXPECT_EQ(body.at("metadata").at("resourceVersion").get_string(), "41");
  Result<kube::Allocation> record =
      kube::read_allocation(patched(0).annotations, "uid-p", "a", *kube::Verifier::from_pem({signer_.public_pem()}));
  ASSERT_TRUE(record.ok()) << record.error().message;
  EXPECT_EQ(record->cards.at(0).units, 10);
  EXPECT_TRUE(comes_to("21 31 ")) << free_of_a();
  EXPECT_NE(server_->requests()[1].find("given card 0 of node a"), std::string::npos);  // the event
  EXPECT_EQ(adopter_->adopted(), 1u);
}

TEST_F(AdopterTest, APodThatChangedMeanwhileIsLookedAtAgain) {
  PodSpec changed = orphan_;
  changed.resource_version = "42";
  play({{409, R"({"message":"the object has been modified"})"},
        {200, json::to_string(pod(changed))},
        {200, answer_with_record()},
        {201, "{}"}});
  ASSERT_TRUE(server_->wait_for_requests(4));
  EXPECT_EQ(body_of(2).at("metadata").at("resourceVersion").get_string(), "42");
  EXPECT_TRUE(comes_to("21 31 "));
}

TEST_F(AdopterTest, WithoutAnAnswerTheSamePatchIsSentAgainAndTheWorstCaseStays) {
  play({{.status = 200, .body = "{}", .delay_ms = 400}, {500, "no"}, {200, answer_with_record()}, {201, "{}"}});
  ASSERT_TRUE(server_->wait_for_requests(2));
  EXPECT_EQ(free_of_a(), "21 21 ");
  ASSERT_TRUE(server_->wait_for_requests(3));
  EXPECT_EQ(body_of(0), body_of(2));
  EXPECT_TRUE(comes_to("21 31 "));
}

TEST_F(AdopterTest, AFollowerSendsNothing) {
  leading_ = false;
  play({});
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(server_->requests().empty());
}

TEST_F(AdopterTest, WhoFitsNowhereGetsOneEvent) {
  state_.pod_changed(pod({.name = "big", .memory = "30", .node = "a"}));
  state_.pod_changed(pod({.name = "p", .phase = "Succeeded"}));
  state_.pod_changed(pod({.name = "bigger", .memory = "40", .node = "a"}));
  play({{409, "{}"}, {404, "{}"}, {201, "{}"}});  // big's PATCH and GET fail, then the event
  ASSERT_TRUE(server_->wait_for_requests(3));
  std::string all;
  for (const std::string& request : server_->requests()) all += request;
  EXPECT_NE(all.find("bound to node a without the Sluice scheduler"), std::string::npos);
  EXPECT_NE(all.find("card size: needs 40 GiB"), std::string::npos);
}

}  // namespace
}  // namespace sluice::scheduler
