#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "kube/api_client.h"
#include "kube/lease.h"
#include "kube/names.h"
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
  const std::string authority = path.substr(0, path.rfind('/')) + "/ca.crt";
  ASSERT_TRUE(write_file_atomic(authority, "pem").ok());
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
  EXPECT_EQ(endpoint->ca_file, authority);
}

TEST(Kubeconfig, FaultsSayWhatToMend) {
  std::string path = temporary("bad");
  ASSERT_TRUE(write_file_atomic(path,
                                "current-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n"
                                "clusters:\n- {name: k, cluster: {server: 'https://x'}}\n"
                                "users:\n- {name: u, user: {exec: {command: aws}}}\n")
                  .ok());
  EXPECT_NE(load_kubeconfig({path}, "").error().message.find("'exec', which is not supported"), std::string::npos);
  EXPECT_EQ(load_kubeconfig({path}, "other").error().message, "the kubeconfig has no 'other' in contexts");
  EXPECT_EQ(load_kubeconfig({"/nonexistent/config"}, "").error().code, ErrorCode::kNotFound);
}

// One kubeconfig with this user and this server.
std::string config_with(const std::string& user, const std::string& server = "https://h:6443") {
  return fmt::format(
      "current-context: c\ncontexts:\n- {{name: c, context: {{cluster: k, user: u}}}}\n"
      "clusters:\n- {{name: k, cluster: {{server: '{}'}}}}\nusers:\n- {{name: u, user: {}}}\n",
      server, user);
}

TEST(Kubeconfig, EachKindOfCredentialIsUsedOrRefused) {
  const std::string good = temporary("good_token"), bad = temporary("bad_token"), empty = temporary("no_token");
  ASSERT_TRUE(write_file_atomic(good, "abc\r\n").ok());
  ASSERT_TRUE(write_file_atomic(bad, "abc\r\nX-Remote-User: admin").ok());
  ASSERT_TRUE(write_file_atomic(empty, "\n").ok());
  const struct {
    std::string user;
    std::string error;  // empty: taken
  } cases[] = {
      {"{}", ""},
      {"{token: abc}", ""},
      {"{token: \"abc\\n\"}", ""},
      {"{token: ''}", ""},
      {"{token: \"a\\r\\nX: y\"}", "line break"},
      {"{token: \"a b\"}", "space"},
      {"{token: \"\\u00e9\"}", "not ASCII"},
      {"{tokenFile: " + good + "}", ""},
      {"{tokenFile: " + bad + "}", "line break"},
      {"{tokenFile: " + empty + "}", "empty"},
      {"{tokenFile: /nonexistent/token}", "'tokenFile': cannot open /nonexistent/token"},
      {"{username: a, password: b}", "'username' and 'password', which is not supported"},
      {"{password: b}", "'username' and 'password', which is not supported"},
      {"{as: root, token: abc}", "impersonation ('as'), which is not supported"},
      {"{as-groups: [system:masters], token: abc}", "'as-groups'"},
      {"{as-uid: '7', token: abc}", "'as-uid'"},
      {"{as-user-extra: {a: [b]}, token: abc}", "'as-user-extra'"},
      {"{as-groups: [], exec: null, username: '', token: abc}", ""},
      {"{exec: {command: aws}}", "'exec', which is not supported"},
      {"{auth-provider: {name: gcp}}", "'auth-provider', which is not supported"},
      {"{client-certificate-data: YWJj}", "no client-key"},
      {"{client-key-data: YWJj}", "no client-certificate"},
      {"{client-certificate-data: YWJj, client-key: " + good + "}", ""},
      {"{client-certificate: /nonexistent/c, client-key-data: YWJj}",
       "'client-certificate': cannot open /nonexistent/c"},
      {"{client-certificate-data: YWJj, client-key: /nonexistent/k}", "'client-key': cannot open /nonexistent/k"},
  };
  for (const auto& one : cases) {
    Result<Endpoint> endpoint = parse_kubeconfig(config_with(one.user), "/etc/config", "");
    if (one.error.empty()) {
      EXPECT_TRUE(endpoint.ok()) << one.user << ": " << endpoint.error().message;
      if (endpoint.ok()) {
        EXPECT_TRUE(endpoint->token.empty() || endpoint->token == "abc") << one.user;
      }
    } else if (endpoint.ok()) {
      ADD_FAILURE() << one.user << " was taken";
    } else {
      EXPECT_NE(endpoint.error().message.find(one.error), std::string::npos) << endpoint.error().message;
      EXPECT_EQ(endpoint.error().message.find("admin"), std::string::npos) << "a token is repeated";
    }
  }
}

TEST(Kubeconfig, AServerIsAUrl) {
  for (const char* server : {"https://h", "http://127.0.0.1:8080/", "https://[::1]:6443", "https://h/base"})
    EXPECT_TRUE(parse_kubeconfig(config_with("{}", server), "/etc/config", "").ok()) << server;
  for (const char* server : {"", "h:6443", "ftp://h", "file:///etc/passwd", "https://", "https:///x", "http://h/a b"}) {
    Result<Endpoint> endpoint = parse_kubeconfig(config_with("{}", server), "/etc/config", "");
    ASSERT_FALSE(endpoint.ok()) << server;
    EXPECT_NE(endpoint.error().message.find("expected https://HOST:PORT"), std::string::npos)
        << endpoint.error().message;
  }
}

TEST(Names, AreThoseOfKubernetes) {
  const std::string long_label(63, 'a'), long_name = long_label + "." + long_label + "." + long_label;
  const struct {
    Result<void> (*check)(std::string_view, std::string_view);
    std::vector<std::string> good, bad;
  } cases[] = {
      {check_label_name,
       {"a", "kube-system", "0", long_label},
       {"", "a/b", "A", "-a", "a-", "a.b", "a b", long_label + "a", "\xff"}},
      {check_subdomain_name,
       {"node-1", "ip-10-0-0-1.ec2.internal", long_name},
       {"", ".", "a..b", "a.", "Node", "a/b", "a,b", "a\n", "a.-b", long_name + "." + long_label + "a"}},
      {check_qualified_name,
       {"gpu", "nvidia.com/gpu", "a/B_c.d", "example.com/" + long_label},
       {"", "/", "a/", "/a", "A/b", "a/b/c", "a b", "-a", "a=", "a:NoSchedule", "x/" + long_label + "a"}},
  };
  for (const auto& one : cases) {
    for (const std::string& text : one.good) EXPECT_TRUE(one.check("--x", text).ok()) << text;
    for (const std::string& text : one.bad) {
      ASSERT_FALSE(one.check("--x", text).ok()) << text;
      EXPECT_TRUE(one.check("--x", text).error().message.starts_with("--x '")) << text;
    }
  }
}

TEST(Kubeconfig, FieldsOfTheWrongKindAreNamed) {
  for (const char* wrong : {"current-context: [c]", "namespace: 7", "proxy-url: 7", "tls-server-name: {}"}) {
    std::string key = std::string(wrong).substr(0, std::string(wrong).find(':'));
    auto or_nothing = [&](const char* field) {
      return key == field ? std::string(wrong) : fmt::format("other-{}: y", field);
    };
    std::string text = fmt::format(
        "{}\ncontexts:\n- {{name: c, context: {{cluster: k, user: u, {}}}}}\n"
        "clusters:\n- {{name: k, cluster: {{server: 'https://x', {}, {}}}}}\nusers:\n- {{name: u, user: {{token: "
        "t}}}}\n",
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

TEST(HttpClient, AsksNothingWithoutTheTokenItWasGiven) {
  ScriptedServer server({{200, "{}", false, ""}});
  Endpoint endpoint = endpoint_of(server);
  endpoint.token_file = "/nonexistent/token";
  HttpClient client(endpoint);
  Result<HttpResponse> response = client.send({});
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.error().message, "no token: cannot open /nonexistent/token: No such file or directory");
  EXPECT_TRUE(server.requests().empty());
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
