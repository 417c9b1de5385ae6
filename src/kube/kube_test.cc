#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "kube/api_client.h"
#include "kube/lease.h"
#include "kube/scripted_server.h"
#include "kube/watch_decoder.h"

namespace sluice::kube {
namespace {

std::string temporary(const std::string& name) {
  return testing::TempDir() + "/sluice_kube_" + name;
}

Endpoint endpoint_of(const ScriptedServer& server) {
  Endpoint endpoint;
  endpoint.server = server.url();
  return endpoint;
}

TEST(Kubeconfig, ReadsInlineDataAndResolvesRelativePaths) {
  std::string path = temporary("config");
  ASSERT_TRUE(
      write_file_atomic(path,
                        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
                        "contexts:\n- name: c\n  context: {cluster: k, user: u, namespace: team}\n"
                        "clusters:\n- name: k\n  cluster: {server: 'https://h:6443/', certificate-authority: ca.crt}\n"
                        "users:\n- name: u\n  user: {client-certificate-data: aGVsbG8=, client-key-data: d29ybGQh}\n")
          .ok());
  Result<Endpoint> endpoint = load_kubeconfig({path}, "");
  ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
  EXPECT_EQ(endpoint->server, "https://h:6443");
  EXPECT_EQ(endpoint->default_namespace, "team");
  EXPECT_EQ(endpoint->certificate_pem, "hello");
  EXPECT_EQ(endpoint->key_pem, "world!");
  EXPECT_EQ(endpoint->ca_file, path.substr(0, path.rfind('/')) + "/ca.crt");
}

TEST(Kubeconfig, FaultsSayWhatToMend) {
  std::string path = temporary("bad");
  ASSERT_TRUE(write_file_atomic(path,
                                "current-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n"
                                "clusters:\n- {name: k, cluster: {server: x}}\n"
                                "users:\n- {name: u, user: {exec: {command: aws}}}\n")
                  .ok());
  EXPECT_NE(load_kubeconfig({path}, "").error().message.find("'exec', which is not supported"), std::string::npos);
  EXPECT_EQ(load_kubeconfig({path}, "other").error().message, "the kubeconfig has no 'other' in contexts");
  EXPECT_EQ(load_kubeconfig({"/nonexistent/config"}, "").error().code, ErrorCode::kNotFound);
}

TEST(Kubeconfig, FieldsOfTheWrongKindAreNamed) {
  for (const char* wrong : {"current-context: [c]", "namespace: 7", "proxy-url: 7", "tls-server-name: {}"}) {
    std::string key = std::string(wrong).substr(0, std::string(wrong).find(':'));
    auto or_nothing = [&](const char* field) {
      return key == field ? std::string(wrong) : fmt::format("other-{}: y", field);
    };
    std::string text = fmt::format(
        "{}\ncontexts:\n- {{name: c, context: {{cluster: k, user: u, {}}}}}\n"
        "clusters:\n- {{name: k, cluster: {{server: x, {}, {}}}}}\nusers:\n- {{name: u, user: {{token: t}}}}\n",
        or_nothing("current-context"), or_nothing("namespace"), or_nothing("proxy-url"), or_nothing("tls-server-name"));
    Result<Endpoint> endpoint = parse_kubeconfig(text, "/etc/config", key == "current-context" ? "" : "c");
    ASSERT_FALSE(endpoint.ok()) << wrong;
    EXPECT_NE(endpoint.error().message.find(key), std::string::npos) << endpoint.error().message;
    EXPECT_TRUE(endpoint.error().message.starts_with("/etc/config")) << endpoint.error().message;
  }
}

TEST(InCluster, BracketsIpv6AndReadsTheToken) {
  std::string root = temporary("pod");
  std::string files = root + "/var/run/secrets/kubernetes.io/serviceaccount";
  ASSERT_TRUE(make_directories(files).ok());
  ASSERT_TRUE(write_file_atomic(files + "/token", "t1\n").ok());
  ASSERT_TRUE(write_file_atomic(files + "/namespace", "kube-system").ok());
  ::setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  ::setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  Result<Endpoint> endpoint = in_cluster(root);
  ::unsetenv("KUBERNETES_SERVICE_HOST");
  ::unsetenv("KUBERNETES_SERVICE_PORT");
  ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
  EXPECT_EQ(endpoint->server, "https://[fd00::1]:443");
  EXPECT_EQ(endpoint->default_namespace, "kube-system");
}

TEST(HttpClient, ReadsTheTokenAgainAfterA401) {
  std::string path = temporary("token");
  ASSERT_TRUE(write_file_atomic(path, "old\n").ok());
  ScriptedServer server({{200, "{}", false, ""}, {401, "{}", false, ""}, {200, "{}", false, ""}});
  Endpoint endpoint = endpoint_of(server);
  endpoint.token_file = path;
  ApiClient api(endpoint);
  EXPECT_TRUE(api.get("/a").ok());
  ASSERT_TRUE(write_file_atomic(path, "new\n").ok());
  EXPECT_TRUE(api.get("/b").ok());
  std::vector<std::string> requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_NE(requests[0].find("Authorization: Bearer old\r\n"), std::string::npos);
  EXPECT_NE(requests[1].find("Authorization: Bearer old\r\n"), std::string::npos);
  EXPECT_NE(requests[2].find("Authorization: Bearer new\r\n"), std::string::npos);
}

TEST(ApiClient, RefusalsAndSilenceAreToldApart) {
  ScriptedServer server({{409, R"({"kind":"Status","message":"pod a is bound"})", false, ""},
                         {503, "busy", false, "Retry-After: 3\r\n"},
                         {200, "{", false, ""},
                         {200, "{\"a\":", true, ""}});
  ApiClient api(endpoint_of(server));
  ApiAnswer conflict = api.create("/x", json::Object{});
  EXPECT_TRUE(conflict.definitely_refused());
  EXPECT_EQ(conflict.to_error("bind").message, "bind: pod a is bound");
  ApiAnswer busy = api.get("/x");
  EXPECT_FALSE(busy.definitely_refused());
  EXPECT_EQ(busy.retry_after.count(), 3000);
  ApiAnswer garbled = api.get("/x");
  EXPECT_EQ(garbled.status, 0);
  EXPECT_FALSE(garbled.definitely_refused());
  EXPECT_EQ(api.get("/x").status, 0);
}

TEST(ApiClient, PatchesNameTheirKindAndManager) {
  ScriptedServer server({{200, "{}", false, ""}});
  ApiClient api(endpoint_of(server));
  EXPECT_TRUE(api.patch(node_path("n 1", "status"), PatchKind::kApply, json::Object{}, "agent").ok());
  std::string request = server.requests()[0];
  EXPECT_EQ(request.find("PATCH /api/v1/nodes/n%201/status?fieldManager=agent&force=true HTTP/1.1"), 0u);
  EXPECT_NE(request.find("Content-Type: application/apply-patch+yaml"), std::string::npos);
}

TEST(WatchDecoder, ChunksEndAnywhere) {
  std::string text = R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}})"
                     "\n"
                     R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}})"
                     "\n\n"
                     R"({"type":"ERROR","object":{"reason":"Gone"}})"
                     "\n";
  for (size_t step = 1; step < text.size(); ++step) {
    WatchDecoder decoder;
    std::vector<WatchEvent> events;
    for (size_t at = 0; at < text.size(); at += step) {
      ASSERT_TRUE(decoder.feed(std::string_view(text).substr(at, step), events).ok());
    }
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[0].resource_version, "7");
    EXPECT_EQ(events[1].type, WatchEventType::kBookmark);
    EXPECT_EQ(events[2].error_code, 410);
  }
}

TEST(WatchDecoder, GarbageIsAnError) {
  std::vector<WatchEvent> events;
  for (const char* line : {"x\n", "[]\n", "{}\n", "{\"type\":\"NEW\",\"object\":{}}\n", "{\"type\":\"ADDED\"}\n"}) {
    EXPECT_FALSE(WatchDecoder().feed(line, events).ok()) << line;
  }
  EXPECT_FALSE(WatchDecoder().feed(std::string(WatchDecoder::kMaxLineBytes + 1, 'x'), events).ok());
  EXPECT_TRUE(events.empty());
}

TEST(Lease, DecidesByWhatItSaw) {
  using std::chrono::seconds;
  struct Case {
    LeaseView view;
    LeaseStep expected;
  };
  for (const Case& one : {Case{{false, "", seconds(0), seconds(15)}, LeaseStep::kCreate},
                          Case{{true, "me", seconds(99), seconds(15)}, LeaseStep::kRenew},
                          Case{{true, "", seconds(0), seconds(15)}, LeaseStep::kTake},
                          Case{{true, "other", seconds(14), seconds(15)}, LeaseStep::kWait},
                          Case{{true, "other", seconds(15), seconds(15)}, LeaseStep::kTake}}) {
    EXPECT_EQ(decide_lease(one.view, "me"), one.expected);
  }
}

}  // namespace
}  // namespace sluice::kube
