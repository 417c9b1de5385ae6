#include "scheduler/webhook.h"

#include <gtest/gtest.h>

#include "scheduler/objects_for_tests.h"

namespace sluice::scheduler {
namespace {

json::Value template_of(const PodSpec& spec) {
  json::Value whole = pod(spec);
  return json::Object{{"metadata", json::Object{}}, {"spec", whole.at("spec")}};
}

// An object of the kind whose pods ask for what `spec` says.
json::Value workload(const std::string& kind, const PodSpec& spec) {
  if (kind == "Pod") return pod(spec);
  json::Value inner = json::Object{{"template", template_of(spec)}};
  if (kind == "CronJob") inner = json::Object{{"jobTemplate", json::Object{{"spec", inner}}}};
  return json::Object{{"metadata", json::Object{}}, {"spec", inner}};
}

std::string review(const std::string& kind, const json::Value& object) {
  return json::to_string(json::Object{
      {"apiVersion", "admission.k8s.io/v1"},
      {"kind", "AdmissionReview"},
      {"request",
       json::Object{{"uid", "u-1"}, {"kind", json::Object{{"group", ""}, {"kind", kind}}}, {"object", object}}}});
}

class WebhookTest : public testing::Test {
 protected:
  json::Object ask(const std::string& kind, const PodSpec& spec, const WebhookSettings& settings = {}) {
    ServerResponse response = Webhook(state_, settings).review(review(kind, workload(kind, spec)));
    EXPECT_EQ(response.status, 200) << response.body;
    json::Value body = *json::parse(response.body);
    EXPECT_EQ(body.at("response").at("uid").get_string(), "u-1");
    return body.at("response").get_object();
  }
  State state_{{}, std::nullopt};
};

TEST_F(WebhookTest, WarnsForEveryKindThatHoldsAPod) {
  for (const char* kind : {"Pod", "Job", "CronJob", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"}) {
    json::Object wrong = ask(kind, {.name = "p", .core = "33"});
    EXPECT_TRUE(wrong.at("allowed").get_bool()) << kind;
    ASSERT_TRUE(wrong.contains("warnings")) << kind;
    std::string text(wrong.at("warnings").at(0).get_string());
    EXPECT_NE(text.find("multiple of 5"), std::string::npos) << text;
    EXPECT_FALSE(ask(kind, {.name = "p"}).contains("warnings")) << kind;
  }
  EXPECT_FALSE(ask("ConfigMap", {.name = "p", .core = "33"}).contains("warnings"));
}

TEST_F(WebhookTest, KnowsTheClustersCards) {
  EXPECT_FALSE(ask("Pod", {.name = "p", .memory = "40"}).contains("warnings"));  // no node yet: nothing is concluded
  state_.replace_nodes({node("a")});
  std::string text(ask("Pod", {.name = "p", .memory = "40"}).at("warnings").at(0).get_string());
  EXPECT_NE(text.find("card size: needs 40 GiB"), std::string::npos) << text;
}

TEST_F(WebhookTest, RefusesWhenSetAndChangesNothingThen) {
  json::Object refused =
      ask("Pod", {.name = "p", .core = "33"}, {.refuse = true, .scheduler_name = "sluice", .toleration_key = ""});
  EXPECT_FALSE(refused.at("allowed").get_bool());
  EXPECT_EQ(refused.at("status").at("code").to_number<int>(), 422);
  EXPECT_FALSE(refused.contains("patch"));
  EXPECT_TRUE(
      ask("Pod", {.name = "p"}, {.refuse = true, .scheduler_name = "", .toleration_key = ""}).at("allowed").get_bool());
}

TEST_F(WebhookTest, ChangesPodsThatAskAndNothingElse) {
  WebhookSettings settings{.refuse = false, .scheduler_name = "sluice", .toleration_key = "sluice.dev/shared"};
  json::Object changed = ask("Pod", {.name = "p"}, settings);
  EXPECT_EQ(changed.at("patchType").get_string(), "JSONPatch");
  EXPECT_FALSE(ask("Job", {.name = "p"}, settings).contains("patch"));
  EXPECT_FALSE(ask("Pod", {.name = "p", .memory = "", .core = ""}, settings).contains("patch"));
}

TEST_F(WebhookTest, BodiesThatAreNoReviewAreRefusedWithASentence) {
  Webhook webhook(state_, {});
  for (const char* body :
       {"", "not JSON", "[]", "7", "{}", R"({"request":7})", R"({"request":{}})",
        R"({"request":{"uid":7,"kind":{"kind":"Pod"}}})", R"({"request":{"uid":"u","kind":"Pod"}})"}) {
    ServerResponse response = webhook.review(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_NE(response.body.find("admission review"), std::string::npos) << response.body;
  }
  // Objects of the wrong shape: the API server itself refuses them later; allowed, with a warning where one can be
  // said.
  for (const char* object :
       {"null", "7", "{}", R"({"spec":7})", R"({"spec":{"containers":7}})", R"({"spec":{"containers":[7]}})",
        R"({"spec":{"containers":[{"resources":{"limits":7}}]}})"}) {
    ServerResponse response = webhook.review(review("Pod", *json::parse(object)));
    EXPECT_EQ(response.status, 200) << object;
    EXPECT_TRUE(json::parse(response.body)->at("response").at("allowed").get_bool()) << object;
  }
}

}  // namespace
}  // namespace sluice::scheduler
