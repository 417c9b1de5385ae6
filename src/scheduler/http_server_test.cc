#include "scheduler/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "kube/http_client.h"
#include "scheduler/forwarder.h"

namespace sluice::scheduler {
namespace {

Handler echo() {
  return [](const ServerRequest& request) {
    return ServerResponse{200, request.method + " " + request.target + " " + request.peer + " " + request.body,
                          "text/plain", false};
  };
}

Fd dial(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.reset();
  return fd;
}

// Sends raw bytes, returns everything that comes back until the server closes.
std::string raw(uint16_t port, const std::string& bytes, bool half_close = false) {
  Fd fd = dial(port);
  if (!fd.valid()) return "no connection";
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (half_close) ::shutdown(fd.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  ssize_t got;
  while ((got = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) answer.append(buffer, static_cast<size_t>(got));
  return answer;
}

TEST(HttpServer, AnswersSeveralRequestsOnOneConnection) {
  auto server = HttpServer::start({}, echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  std::string answer = raw((*server)->port(),
                           "POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
                           "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("POST /a?b  abc"), std::string::npos) << answer;
  EXPECT_NE(answer.find("GET /c  "), std::string::npos) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
}

// A follower that finds its own address in the lease, or another follower's, asks once and no more.
TEST(Forwarder, ACallIsSentOnOnce) {
  Forwarder forwarder({});
  std::atomic<int> calls{0};
  std::string own;
  auto server = HttpServer::start({}, [&](const ServerRequest& request) {
    ++calls;
    return forwarder.forward(request, own);
  });
  ASSERT_TRUE(server.ok());
  own = fmt::format("http://127.0.0.1:{}", (*server)->port());
  std::string answer = raw((*server)->port(), "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_NE(answer.find("does not lead"), std::string::npos) << answer;
  EXPECT_EQ(calls, 2);
}

TEST(HttpServer, BadRequestsGetAClearRefusal) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 1000;
  options.request_timeout = std::chrono::milliseconds(300);
  auto server = HttpServer::start(options, echo());
  ASSERT_TRUE(server.ok());
  uint16_t port = (*server)->port();
  EXPECT_EQ(raw(port, "nonsense\r\n\r\n").find("HTTP/1.1 400"), 0u);
  EXPECT_EQ(raw(port, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n").find("HTTP/1.1 413"), 0u);
  EXPECT_EQ(raw(port, "GET / HTTP/1.1\r\nX: " + std::string(2000, 'y') + "\r\n\r\n").find("HTTP/1.1 431"), 0u);
  EXPECT_EQ(raw(port, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nslow").find("HTTP/1.1 408"), 0u);
  EXPECT_EQ(raw(port, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\ncut", true), "");
}

TEST(HttpServer, ConnectionsAreBounded) {
  ServerOptions options;
  options.max_connections = 0;
  auto server = HttpServer::start(options, echo());
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(raw((*server)->port(), "GET / HTTP/1.1\r\n\r\n"), "");
  EXPECT_EQ((*server)->refused_connections(), 1u);
}

// Others connect and say nothing, as many as there are places: who asks is answered all the same.
TEST(HttpServer, WhoSaysNothingGivesWay) {
  ServerOptions options;
  options.max_connections = 8;
  auto server = HttpServer::start(options, echo());
  ASSERT_TRUE(server.ok());
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(dial((*server)->port()));
  const auto started = std::chrono::steady_clock::now();
  EXPECT_NE(raw((*server)->port(), "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("GET /c"),
            std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(2));
  EXPECT_EQ((*server)->refused_connections(), 0u);
}

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/sluice_tls_" + std::to_string(::getpid());
    ASSERT_TRUE(make_directories(directory_).ok());
    shell(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout ca.key -out "
        "ca.crt");
    issue("server", "server");
    issue("client", "kube-scheduler");
  }
  void issue(const std::string& file, const std::string& name) {
    shell("openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + file +
          ".key -out " + file + ".csr");
    shell("printf 'subjectAltName=IP:127.0.0.1' > ext; openssl x509 -req -in " + file +
          ".csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out " + file + ".tmp && mv " + file +
          ".tmp " + file + ".crt");
  }
  void shell(const std::string& command) {
    ASSERT_EQ(std::system(("cd " + directory_ + " && (" + command + ") >/dev/null 2>&1").c_str()), 0) << command;
  }
  ServerOptions options() {
    ServerOptions options;
    options.certificate_file = directory_ + "/server.crt";
    options.key_file = directory_ + "/server.key";
    options.client_ca_file = directory_ + "/ca.crt";
    return options;
  }
  kube::Endpoint endpoint(const HttpServer& server, bool with_certificate) {
    kube::Endpoint endpoint;
    endpoint.server = "https://127.0.0.1:" + std::to_string(server.port());
    endpoint.ca_file = directory_ + "/ca.crt";
    if (with_certificate) {
      endpoint.certificate_file = directory_ + "/client.crt";
      endpoint.key_file = directory_ + "/client.key";
    }
    return endpoint;
  }
  std::string directory_;
};

TEST_F(Tls, ClientsAreKnownByTheirCertificate) {
  auto server = HttpServer::start(options(), echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  kube::HttpClient client(endpoint(**server, true));
  Result<kube::HttpResponse> response = client.send({});
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(response->body, "GET / kube-scheduler ");
  kube::HttpClient stranger(endpoint(**server, false));
  response = stranger.send({});
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(response->body, "GET /  ");  // no name: what it may see is the handler's to say
  shell(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=kube-scheduler -keyout "
      "client.key -out client.crt");  // not of our CA
  EXPECT_FALSE(kube::HttpClient(endpoint(**server, true)).send({}).ok());
  EXPECT_EQ(raw((*server)->port(), "GET / HTTP/1.1\r\n\r\n").find("HTTP/1.1 200"), std::string::npos);
}

// Of several common names the last one counts, as for the API server and for whoever approved the certificate (Go).
TEST_F(Tls, TheLastOfSeveralCommonNamesCounts) {
  issue("client", "kube-scheduler/CN=somebody");
  auto server = HttpServer::start(options(), echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  Result<kube::HttpResponse> response = kube::HttpClient(endpoint(**server, true)).send({});
  ASSERT_TRUE(response.ok()) << response.error().message;
  EXPECT_EQ(response->body, "GET / somebody ");
}

TEST_F(Tls, AnotherNameInTheCertificateCanBeExpected) {
  shell(
      "sed -i 's/IP:127.0.0.1/DNS:sluice.test/' ext; openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key "
      "-CAcreateserial "
      "-days 2 -extfile ext -out server.crt");
  auto server = HttpServer::start(options(), echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  kube::Endpoint by_address = endpoint(**server, true);
  EXPECT_EQ(kube::HttpClient(by_address).send({}).error().code, ErrorCode::kPermission);
  by_address.tls_server_name = "sluice.test";
  EXPECT_TRUE(kube::HttpClient(by_address).send({}).ok());
}

TEST_F(Tls, ClientsThatHangUpDoNotEndTheServer) {
  auto server = HttpServer::start(options(), echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  kube::Endpoint distrustful = endpoint(**server, true);
  distrustful.tls_server_name = "another.name";
  for (int i = 0; i < 30; ++i) EXPECT_EQ(kube::HttpClient(distrustful).send({}).error().code, ErrorCode::kPermission);
  EXPECT_TRUE(kube::HttpClient(endpoint(**server, true)).send({}).ok());
}

TEST_F(Tls, AReplacedCertificateIsUsedForNewConnections) {
  auto server = HttpServer::start(options(), echo());
  ASSERT_TRUE(server.ok()) << server.error().message;
  shell(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca2 -keyout ca.key -out "
      "ca2.crt");
  shell("cp ca2.crt ca.crt");
  issue("server", "server");
  issue("client", "kube-scheduler");
  ::usleep(1'100'000);
  EXPECT_TRUE(kube::HttpClient(endpoint(**server, true)).send({}).ok());
}

TEST_F(Tls, FaultsNameTheFile) {
  ServerOptions wrong = options();
  wrong.key_file = directory_ + "/client.key";
  EXPECT_NE(HttpServer::start(wrong, echo()).error().message.find("client.key"), std::string::npos);
  wrong.certificate_file = "/nonexistent.crt";
  EXPECT_NE(HttpServer::start(wrong, echo()).error().message.find("/nonexistent.crt"), std::string::npos);
}

}  // namespace
}  // namespace sluice::scheduler
