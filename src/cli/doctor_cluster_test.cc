#include "cli/doctor_cluster.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "agent/run_directory.h"
#include "base/files.h"
#include "cli/doctor_checks.h"
#include "cli/scratch_test.h"
#include "kube/scripted_server.h"

namespace sluice::cli {
namespace {

constexpr const char* kReadyz = "/api/v1/namespaces/sluice-system/services/https:sluice-scheduler:https/proxy/readyz";
constexpr const char* kMetrics = "/api/v1/namespaces/sluice-system/services/https:sluice-scheduler:https/proxy/metrics";
constexpr const char* kLease = "/apis/coordination.k8s.io/v1/namespaces/sluice-system/leases/sluice-scheduler";
constexpr const char* kNodes = "/api/v1/nodes?limit=500";
constexpr const char* kPods = "/api/v1/pods?limit=500";
constexpr const char* kWebhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?limit=500";

constexpr const char* kCounted =
    "# TYPE x histogram\nsluice_scheduler_request_duration_seconds_count{verb=\"filter\"} 12\n"
    "sluice_scheduler_request_duration_seconds_count{verb=\"bind\"} 3\n";
constexpr const char* kNotCounted = "sluice_scheduler_request_duration_seconds_count{verb=\"filter\"} 0\n";

// A cluster of texts by path; what is not there is refused as the API server would. A lease is renewed by each look.
class ToldCluster final : public ClusterReader {
 public:
  std::map<std::string, std::string> texts;
  std::map<std::string, Error> errors;
  bool renewed = true;
  int looks = 0;

  Result<std::string> text(const std::string& path) override {
    if (auto error = errors.find(path); error != errors.end()) return error->second;
    if (path == kLease && texts.contains(path)) {
      const int number = renewed ? ++looks : 0;
      return fmt::format(
          R"({{"spec":{{"holderIdentity":"{}","leaseDurationSeconds":15,"renewTime":"2026-01-01T00:00:{:02}Z"}}}})",
          texts[path], number);
    }
    auto found = texts.find(path);
    if (found == texts.end()) return not_found("the API server says: the server could not find the requested resource");
    return found->second;
  }
};

std::string condition(const std::string& type, const std::string& status, const std::string& message = "",
                      const std::string& reason = "") {
  return fmt::format(R"({{"type":"{}","status":"{}","message":"{}","reason":"{}"}})", type, status, message, reason);
}

struct NodeText {
  std::string name = "a";
  std::string labels = R"("ack.node.gpu.schedule":"core_mem")";
  std::string mode = R"(,"sluice.dev/mode":"core_mem")";
  std::string cards = R"([{\"index\":0,\"units\":31,\"healthy\":true},{\"index\":1,\"units\":31,\"healthy\":false}])";
  std::string allocatable = R"("aliyun.com/gpu-mem":"31")";
  std::vector<std::string> conditions = {condition("Ready", "True"), condition("SluiceModeSettled", "True"),
                                         condition("SluiceCardsHealthy", "True"), condition("SluiceEnforcing", "True")};
  std::string text() const {
    std::string all;
    for (const std::string& one : conditions) all += (all.empty() ? "" : ",") + one;
    const std::string written = mode.empty() ? "" : fmt::format(R"("sluice.dev/cards":"{}"{})", cards, mode);
    return fmt::format(
        R"({{"metadata":{{"name":"{}","labels":{{{}}},"annotations":{{{}}}}},"status":{{"allocatable":{{{}}},"conditions":[{}]}}}})",
        name, labels, written, allocatable, all);
  }
};

std::string list_of(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& one : items) all += (all.empty() ? "" : ",") + one;
  return fmt::format(R"({{"metadata":{{}},"items":[{}]}})", all);
}

std::string pod(const std::string& name, const std::string& node, bool record) {
  return fmt::format(
      R"({{"metadata":{{"name":"{}","namespace":"default","uid":"u","annotations":{{{}}}}},"spec":{{"nodeName":"{}","containers":)"
      R"([{{"name":"c","resources":{{"limits":{{"aliyun.com/gpu-mem":"10"}}}}}}]}},"status":{{"phase":"Pending"}}}})",
      name, record ? R"("sluice.dev/allocation":"{}")" : "", node);
}

constexpr const char* kWebhook =
    R"({"metadata":{"name":"sluice"},"webhooks":[{"name":"webhook.sluice.dev","failurePolicy":"Ignore","clientConfig":)"
    R"({"service":{"name":"sluice-scheduler","namespace":"sluice-system"},"caBundle":"QUFB"}}]})";

ToldCluster whole_cluster() {
  ToldCluster cluster;
  cluster.texts[kNodes] = list_of({NodeText{}.text(), R"({"metadata":{"name":"plain"}})"});
  cluster.texts[kPods] = list_of({pod("runs", "a", true)});
  cluster.texts[kReadyz] = "ok";
  cluster.texts[kMetrics] = kCounted;
  cluster.texts[kLease] = "replica-1";
  cluster.texts[kWebhooks] = list_of(
      {R"({"metadata":{"name":"other"},"webhooks":[{"name":"x","clientConfig":{"url":"https://x"}}]})", kWebhook});
  return cluster;
}

std::vector<Link> ask(ToldCluster& cluster, const std::string& node = "") {
  return check_cluster(cluster, {.node = node, .lease_patience_ms = 2000, .sleep_ms = [](int) {}});
}

const Link* link_of(const std::vector<Link>& links, const std::string& name, LinkState state) {
  for (const Link& link : links) {
    if (link.name == name && link.state == state) return &link;
  }
  return nullptr;
}

// The only broken link is this one, and says so.
void expect_broken(const std::vector<Link>& links, const std::string& name, const std::string& found,
                   const std::string& mend) {
  const Link* link = link_of(links, name, LinkState::kBroken);
  ASSERT_NE(link, nullptr) << json::to_pretty_string(to_json(links));
  EXPECT_NE(link->found.find(found), std::string::npos) << link->found;
  EXPECT_NE(link->mend.find(mend), std::string::npos) << link->mend;
  EXPECT_EQ(count_broken(links), 1u) << json::to_pretty_string(to_json(links));
}

TEST(DoctorCluster, AWholeClusterHolds) {
  ToldCluster cluster = whole_cluster();
  const std::vector<Link> links = ask(cluster);
  ASSERT_EQ(links.size(), 5u) << json::to_pretty_string(to_json(links));
  for (const Link& link : links) EXPECT_EQ(link.state, LinkState::kHolds) << link.name << ": " << link.found;
  EXPECT_EQ(links[0].name, "node a");
  EXPECT_EQ(links[0].found, "mode core_mem, 31 units in allocatable");
  EXPECT_EQ(links[2].found, "held by replica-1 and renewed");
  EXPECT_EQ(links[3].found, "kube-scheduler has called filter 12 times on the replica that answered");
  EXPECT_EQ(links[4].found, "registered as sluice, failurePolicy Ignore");
}

struct NodeCase {
  const char* what;
  std::function<void(NodeText&)> change;
  const char* found;
  const char* mend;
};

TEST(DoctorCluster, EachBrokenLinkOfANodeIsNamedWithItsMend) {
  const NodeCase cases[] = {
      {"no label", [](NodeText& n) { n.labels = n.mode = ""; }, "has no label ack.node.gpu.schedule",
       "kubectl label node a ack.node.gpu.schedule=core_mem"},
      {"no word of the agent", [](NodeText& n) { n.mode = ""; }, "there is no pod of the agent",
       "deploy/manifests/agent.yaml"},
      {"not ready", [](NodeText& n) { n.conditions[0] = condition("Ready", "Unknown"); }, "not Ready",
       "kubectl describe node a"},
      {"waiting for pods",
       [](NodeText& n) { n.conditions[1] = condition("SluiceModeSettled", "False", "waits for default/x"); },
       "SluiceModeSettled: waits for default/x", "let the pods named there end"},
      {"card lost", [](NodeText& n) { n.conditions[2] = condition("SluiceCardsHealthy", "False", "card 1 is lost"); },
       "SluiceCardsHealthy: card 1 is lost", "XID"},
      {"nothing enforced",
       [](NodeText& n) {
         n.conditions[3] = condition("SluiceEnforcing", "False", "the kubelet is too old", "CdiMissing");
       },
       "SluiceEnforcing: the kubelet is too old", "docs/node-agent.md"},
      {"plugins not registered", [](NodeText& n) { n.mode = R"(,"sluice.dev/mode":"waiting")"; },
       "its plugins are not registered", "--kubelet-dir"},
      {"not in allocatable", [](NodeText& n) { n.allocatable = R"("cpu":"4")"; },
       "the agent has 31 units, the kubelet offers none", "--kubelet-dir"},
      {"annotation of somebody else", [](NodeText& n) { n.cards = "31"; }, "is not what an agent writes",
       "nothing but the agent may write it"},
  };
  for (const NodeCase& one : cases) {
    SCOPED_TRACE(one.what);
    NodeText node;
    one.change(node);
    ToldCluster cluster = whole_cluster();
    cluster.texts[kNodes] = list_of({NodeText{.name = "b"}.text(), node.text()});
    expect_broken(ask(cluster, "a"), "node a", one.found, one.mend);
    EXPECT_EQ(count_broken(ask(cluster, "b")), 0u);
  }
}

TEST(DoctorCluster, NodesAreChosenAndCounted) {
  ToldCluster cluster = whole_cluster();
  expect_broken(ask(cluster, "nobody"), "node nobody", "no such node", "kubectl get nodes");
  cluster.texts[kNodes] = list_of({R"({"metadata":{"name":"plain"}})"});
  expect_broken(ask(cluster), "nodes", "none of 1 has the label", "kubectl label node NAME");
  std::vector<std::string> many;
  for (int i = 0; i < 50; ++i) many.push_back(NodeText{.name = fmt::format("n{}", i)}.text());
  many.push_back(NodeText{.name = "last", .allocatable = ""}.text());
  cluster.texts[kNodes] = list_of(many);
  const std::vector<Link> links = ask(cluster);
  expect_broken(links, "node last", "offers none", "");
  EXPECT_NE(link_of(links, "nodes", LinkState::kHolds), nullptr);
  EXPECT_EQ(link_of(links, "nodes", LinkState::kHolds)->found, "and 30 more that hold");
  // Mode share enforces nothing, and means it; a change just under way is none.
  NodeText node;
  node.conditions[3] = condition("SluiceEnforcing", "False", "mode share", "ShareMode");
  node.allocatable = R"("aliyun.com/gpu-mem":"62")";
  cluster.texts[kNodes] = list_of({node.text()});
  EXPECT_EQ(count_broken(ask(cluster)), 0u);
  // The agent's pod says why there is no word of it.
  node.conditions.pop_back();
  cluster.texts[kNodes] = list_of({node.text()});
  const std::vector<Link> without = ask(cluster);
  EXPECT_NE(link_of(without, "node a", LinkState::kNote)->found.find("condition SluiceEnforcing"), std::string::npos);
  node.mode = "";
  cluster.texts[kNodes] = list_of({node.text()});
  cluster.texts[kPods] = list_of(
      {R"({"metadata":{"name":"agent-x","namespace":"sluice-system","uid":"u","labels":{"app":"sluice-agent"}},)"
       R"("spec":{"nodeName":"a","containers":[]},"status":{"phase":"Pending","containerStatuses":)"
       R"([{"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}})"});
  expect_broken(ask(cluster), "node a", "its pod agent-x is Pending (CrashLoopBackOff)", "logs");
}

TEST(DoctorCluster, TheSchedulersLinks) {
  ToldCluster cluster = whole_cluster();
  cluster.errors[kReadyz] = unavailable("the API server says: no endpoints available for service");
  cluster.errors[kMetrics] = cluster.errors[kReadyz];
  expect_broken(ask(cluster), "scheduler", "no endpoints available", "-l app=sluice-scheduler");
  cluster.errors[kReadyz] = cluster.errors[kMetrics] = not_found("the API server says: services not found");
  expect_broken(ask(cluster), "scheduler", "services not found", "make-secrets");

  cluster = whole_cluster();
  cluster.renewed = false;
  expect_broken(ask(cluster), "lease", "held by replica-1, not renewed within 2.0 s", "logs");
  cluster.texts[kLease] = "";
  cluster.renewed = true;
  expect_broken(ask(cluster), "lease", "held by nobody", "logs");
  cluster.texts.erase(kLease);
  EXPECT_EQ(count_broken(ask(cluster)), 0u);
  EXPECT_NE(link_of(ask(cluster), "lease", LinkState::kNote), nullptr) << "one replica needs none";
}

TEST(DoctorCluster, WhetherTheExtenderIsInUseIsShownByEvidence) {
  const std::string name = "extender in kube-scheduler";
  ToldCluster cluster = whole_cluster();
  cluster.texts[kMetrics] = kNotCounted;
  EXPECT_EQ(link_of(ask(cluster), name, LinkState::kHolds)->found, "1 live pods have Sluice's record");
  cluster.texts[kPods] = list_of({pod("runs", "a", true), pod("waits", "", false)});
  expect_broken(ask(cluster), name, "1 pods wait for shares, default/waits among them, and nobody has called",
                "kube-scheduler-config.yaml");
  cluster.texts[kPods] = list_of({pod("past", "a", false)});
  expect_broken(ask(cluster), name, "default/past was bound without Sluice's record", "kube-scheduler-config.yaml");
  cluster.texts[kPods] = list_of({});
  EXPECT_NE(link_of(ask(cluster), name, LinkState::kNote), nullptr);
  cluster.texts[kPods] = list_of({pod("waits", "", false)});
  cluster.texts[kMetrics] = kCounted;
  EXPECT_NE(link_of(ask(cluster), name, LinkState::kHolds), nullptr) << "a pod may wait for room";
}

TEST(DoctorCluster, TheWebhook) {
  ToldCluster cluster = whole_cluster();
  cluster.texts[kWebhooks] = list_of({});
  EXPECT_EQ(count_broken(ask(cluster)), 0u);
  const std::vector<Link> links = ask(cluster);
  ASSERT_NE(link_of(links, "webhook", LinkState::kNote), nullptr);
  EXPECT_NE(link_of(links, "webhook", LinkState::kNote)->mend.find("make-webhook"), std::string::npos);
  std::string without_ca = kWebhook;
  without_ca.replace(without_ca.find("QUFB"), 4, "");
  cluster.texts[kWebhooks] = list_of({without_ca});
  expect_broken(ask(cluster), "webhook", "without the CA", "make-webhook");
}

TEST(DoctorCluster, WhatMayNotBeLookedAtIsANoteAndNonsenseIsSurvived) {
  ToldCluster cluster = whole_cluster();
  for (const char* path : {kNodes, kPods, kReadyz, kMetrics, kLease, kWebhooks})
    cluster.errors[path] = permission("the API server says: forbidden");
  const std::vector<Link> links = ask(cluster);
  EXPECT_EQ(count_broken(links), 0u);
  EXPECT_EQ(links.size(), 5u) << json::to_pretty_string(to_json(links));
  for (const Link& link : links) EXPECT_EQ(link.state, LinkState::kNote) << link.name;

  cluster.errors[kNodes] = unavailable("no route");
  expect_broken(ask(cluster), "API server", "no route", "kubectl get nodes");

  for (const char* nonsense :
       {"", "[]", "{}", R"({"items":{}})", R"({"items":[1,null,[],{"metadata":7,"status":[]}]})"}) {
    ToldCluster odd;
    for (const char* path : {kNodes, kPods, kReadyz, kMetrics, kWebhooks}) odd.texts[path] = nonsense;
    EXPECT_GT(count_broken(ask(odd)), 0u) << nonsense;
  }
}

TEST(DoctorCluster, AsksAnApiServerPageByPage) {
  kube::ScriptedServer server({
      {200, R"({"metadata":{"continue":"next page"},"items":[]})"},
      {410, R"({"kind":"Status","message":"too old"})"},
      {200, list_of({NodeText{}.text()})},
      {403, R"({"kind":"Status","message":"pods is forbidden"})"},
      {503, R"({"kind":"Status","message":"no endpoints available"})"},
      {404, R"({"kind":"Status","message":"leases not found"})"},
      {401, ""},
  });
  kube::Endpoint endpoint;
  endpoint.server = server.url();
  const std::unique_ptr<ClusterReader> reader = read_directly(endpoint, kClusterRights);
  const std::vector<Link> links = check_cluster(*reader, {.node = "a", .sleep_ms = [](int) {}});
  const std::vector<std::string> requests = server.requests();
  ASSERT_EQ(requests.size(), 7u);
  EXPECT_EQ(requests[1].rfind("GET /api/v1/nodes?limit=500&continue=next%20page ", 0), 0u) << requests[1];
  ASSERT_EQ(links.size(), 5u) << json::to_pretty_string(to_json(links));
  EXPECT_EQ(links[0].found,
            fmt::format("cannot be looked at: the API server says: pods is forbidden; {}", kClusterRights));
  EXPECT_EQ(links[1].state, LinkState::kHolds) << links[1].found;
  EXPECT_EQ(links[2].found, "the API server says: no endpoints available");
  EXPECT_EQ(links[3].state, LinkState::kNote);
  EXPECT_EQ(links[4].name, "webhook");
  EXPECT_NE(links[4].found.find("does not know this user"), std::string::npos) << links[4].found;
}

class DoctorKubelet : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"device-plugins", "pod-resources", "cdi"})
      std::filesystem::create_directory(scratch_.path(folder));
    for (const char* socket :
         {"device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "device-plugins/sluice-gpu-mem-1.sock"})
      listen(socket);
    scratch_.file(
        "device-plugins/kubelet_internal_checkpoint",
        R"({"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"aliyun.com/gpu-mem":["m0","m1"]}},"Checksum":1})");
  }
  void listen(const std::string& file) {
    const std::filesystem::path at = scratch_.path(file);
    Fd folder(::open(at.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    Result<Fd> socket = agent::listen_socket(folder.get(), at.filename(), 0600);
    ASSERT_TRUE(socket) << socket.error().message;
    sockets_[file] = std::move(*socket);
  }
  std::vector<Link> ask() { return check_kubelet(scratch_.path(""), scratch_.path("cdi")); }
  Scratch scratch_;
  std::map<std::string, Fd> sockets_;
};

TEST_F(DoctorKubelet, EachLinkIsBrokenInTurn) {
  std::vector<Link> links = ask();
  EXPECT_EQ(links.size(), 5u);
  for (const Link& link : links) EXPECT_EQ(link.state, LinkState::kHolds) << link.name << ": " << link.found;

  sockets_["device-plugins/sluice-gpu-mem-1.sock"].reset();
  expect_broken(ask(), "plugin", "nobody listens there", "restart");
  std::filesystem::remove(scratch_.path("device-plugins/sluice-gpu-mem-1.sock"));
  expect_broken(ask(), "plugin", "no plugin of Sluice has its socket", "agent's log");
  listen("device-plugins/sluice-gpu-mem-1.sock");

  sockets_["device-plugins/kubelet.sock"].reset();
  expect_broken(ask(), "kubelet.sock", "nobody listens there", "systemctl status kubelet");
  listen("device-plugins/kubelet.sock");
  std::filesystem::remove_all(scratch_.path("pod-resources"));
  expect_broken(ask(), "pod-resources", "cannot open", "KubeletPodResources");
  std::filesystem::create_directory(scratch_.path("pod-resources"));
  listen("pod-resources/kubelet.sock");

  scratch_.file("device-plugins/kubelet_internal_checkpoint", R"({"Data":{"RegisteredDevices":{"other/gpu":["1"]}}})");
  expect_broken(ask(), "registered plugin", "no device of aliyun.com/gpu-mem", "registers again");
  scratch_.file("device-plugins/kubelet_internal_checkpoint", "torn");
  EXPECT_EQ(count_broken(ask()), 0u) << "no promised interface";

  std::filesystem::remove_all(scratch_.path("cdi"));
  expect_broken(ask(), "CDI directory", "there is no such directory", "--cdi-dir");
  std::filesystem::remove_all(scratch_.path("device-plugins"));
  expect_broken(ask(), "kubelet", "there is no such directory", "--root-dir");
}

}  // namespace
}  // namespace sluice::cli
