#include "agent/metrics.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace sluice::agent {
namespace {

ListAnswer example() {
  ListAnswer node;
  node.agent_version = "0.1.0";
  node.driver_version = "550.54.15";
  CardStatus card;
  card.uuid = "GPU-a";
  card.model = "Tesla \"V100\"";
  card.state = "ok";
  card.kind = "memory+core";
  card.memory_mib = 32510;
  card.units = 31;
  card.free_units = 21;
  card.free_core_percent = 70;
  card.grants = 1;
  node.cards = {card};
  GrantStatus grant;
  grant.id = "00112233445566ff";
  grant.name = "train";
  grant.cards = {{0, "GPU-a", "V100", 32510, 31, 10, 10487, 30, ""}};
  grant.use = {{0, 1000, 1100, 29.9, 2, 1, 0}};
  grant.processes = {{100, 0, "train", 900, 800, 30.5, 12345, 1.5, true, 4, 5, 6},
                     {100, 0, "twice", 1, 1, 1, 1, 1, true}};
  node.grants = {grant};
  return node;
}

TEST(Metrics, TheExampleReadsAsTheDashboardsExpect) {
  const std::string text = metrics_text(example(), "node-b");
  for (const char* line : {
           "DCGM_CUSTOM_DEV_FB_TOTAL{gpu=\"0\",UUID=\"GPU-a\",modelName=\"Tesla \\\"V100\\\"\",Hostname=\"node-b\"} "
           "32510\n",
           "DCGM_CUSTOM_ALLOCATE_MODE{gpu=\"0\",UUID=\"GPU-a\",modelName=\"Tesla \\\"V100\\\"\",Hostname=\"node-b\"} "
           "2\n",
           "container=\"train\",grant=\"00112233445566ff\"} 0.3\n",  // CP_ALLOCATED
           "container=\"train\",grant=\"00112233445566ff\"} 10487\n",
           "# TYPE sluice_grant_overruns_total counter\n",
           "DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL{gpu=\"0\",process_id=\"100\",container=\"train\"} 4\n",
           "DCGM_CUSTOM_PROCESS_DECODE_UTIL{gpu=\"0\",process_id=\"100\",container=\"train\"} 6\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_NE(text.find("} 0.3225806"), std::string::npos) << "10 of 31 units: " << text;
  EXPECT_EQ(text.find("twice"), std::string::npos);
}

std::string fetch(int port, const std::string& request) {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(fd, request.data(), request.size(), 0) > 0) {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::recv(fd, buffer, sizeof(buffer), 0)) > 0) text.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return text;
}

TEST(MetricsServer, WhoSaysNothingKeepsNoProbeOut) {
  MetricsServer server;
  ASSERT_TRUE(server.start("127.0.0.1:0", [] { return std::string("answer 42\n"); }));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Fd> silent(3 * MetricsServer::kMaxConnections);
  for (Fd& fd : silent) {
    fd = Fd(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const auto started = std::chrono::steady_clock::now();
  EXPECT_EQ(fetch(server.port(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(2));
}

TEST(MetricsServer, ServesOnePathAndSaysNoToTheRest) {
  MetricsServer server;
  ASSERT_TRUE(server.start("127.0.0.1:0", [] { return std::string("answer 42\n"); }));
  const std::string good = fetch(server.port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(good.rfind("HTTP/1.1 200 OK\r\n", 0), 0u) << good;
  EXPECT_NE(good.find("\r\n\r\nanswer 42\n"), std::string::npos);
  EXPECT_EQ(fetch(server.port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n").rfind("HTTP/1.1 404", 0), 0u);
  EXPECT_EQ(fetch(server.port(), "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").rfind("HTTP/1.1 405", 0), 0u);
  EXPECT_EQ(fetch(server.port(), "\x16\x03\x01 tls?\r\n\r\n").rfind("HTTP/1.1 400", 0), 0u);
  MetricsServer second;
  EXPECT_EQ(second.start("127.0.0.1:" + std::to_string(server.port()), [] { return std::string(); }).error().code,
            ErrorCode::kUnavailable);
  for (const char* wrong : {"9401", "127.0.0.1", "example.org:1", "127.0.0.1:http", "127.0.0.1:99999", "127.0.0.1:"}) {
    MetricsServer other;
    Result<void> started = other.start(wrong, [] { return std::string(); });
    ASSERT_FALSE(started) << wrong;
    EXPECT_EQ(started.error().code, ErrorCode::kInvalid);
  }
}

}  // namespace
}  // namespace sluice::agent
