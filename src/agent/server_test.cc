#include "agent/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "agent/client.h"
#include "agent/process.h"
#include "agent/run_directory.h"
#include "agent/test_support.h"
#include "agent/version.h"
#include "agent/watchdog.h"

namespace sluice::agent {
namespace {

using test::eventually;
using test::FakeCards;
using test::FakeProgram;
using test::TemporaryDirectory;

// Node, watchdog threads and server over cards of plain values.
class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    NodeOptions options;
    options.run_directory = directory_.path();
    options.card_lock_directory = directory_.path();
    node_ = std::make_unique<Node>(options, cards_, [] { return std::make_unique<test::SleepyHost>(); });
    ASSERT_TRUE(node_->start());
    watchdog_ = std::make_unique<Watchdog>(*node_, cards_, WatchdogOptions{5, 20, 40, 5, 20, 1000});
    watchdog_->start();
    opened_ = Fd(::open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    start_server(4);
  }
  void TearDown() override {
    server_.reset();
    if (watchdog_) watchdog_->stop();
  }
  void start_server(int most) {
    ServerOptions options;
    options.directory = opened_.get();
    options.run_directory = directory_.path();
    options.max_connections = most;
    options.line_timeout_ms = 200;
    server_ = std::make_unique<Server>(options, *node_, [this] { shutdown_ = true; });
    Result<void> started = server_->start();
    ASSERT_TRUE(started) << started.error().message;
  }
  Result<Client> connect(int timeout_ms = 2000) {
    ConnectOptions options;
    options.run_directory = directory_.path();
    options.timeout_ms = timeout_ms;
    return Client::connect(options);
  }
  Fd raw() { return Fd(connect_socket(opened_.get(), kSocketName).value()); }
  static std::string hear(int fd) {
    std::string text;
    char buffer[4096];
    ssize_t got = 0;
    while (text.find('\n') == std::string::npos && (got = ::recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

  TemporaryDirectory directory_;
  FakeCards cards_{2};
  std::unique_ptr<Node> node_;
  std::unique_ptr<Watchdog> watchdog_;
  Fd opened_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> shutdown_{false};
};

TEST_F(ServerTest, TheWholePathFromGrantToItsEnd) {
  Result<Client> client = connect();
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(client->agent().pid, ::getpid());
  FakeProgram runner("/dev/null", 0, 0, 0);
  GrantRequest request;
  request.name = "a";
  request.gpu_mem_units = 10;
  request.core_percent = 30;
  request.runner_pid = runner.pid();
  Result<GrantAnswer> answer = client->grant(request);
  ASSERT_TRUE(answer) << answer.error().message;
  FakeProgram program(answer->usage_file, 0, 0, 500);
  ASSERT_TRUE(program.ready());
  cards_.use(static_cast<int>(answer->cards[0].index), program.pid(), 600);
  ASSERT_TRUE(eventually([&] {
    Result<ListAnswer> list = client->list();
    return list && list->grants.size() == 1 && list->grants[0].use[0].used_mib == 600;
  }));
  Result<GrantStatus> changed = client->set({"a", 5, 50, std::nullopt, std::nullopt});
  ASSERT_TRUE(changed) << changed.error().message;
  int snapshots = 0;
  Result<Client> watcher = connect();
  ASSERT_TRUE(watcher);
  ASSERT_TRUE(watcher->watch(100, [&](const ListAnswer& list) {
    EXPECT_EQ(list.grants[0].cards[0].core_percent, 50);
    return ++snapshots < 3;
  }));
  EXPECT_EQ(snapshots, 3);
  const pid_t pid = program.pid();
  runner.kill();
  program.kill();
  cards_.use(static_cast<int>(answer->cards[0].index), pid, 0);
  const uint64_t killed_ns = monotonic_ns();
  ASSERT_TRUE(eventually([&] { return client->list()->grants.empty(); }));
  EXPECT_LT(monotonic_ns() - killed_ns, 1'000'000'000u);
}

TEST_F(ServerTest, WithoutAnAgentThereIsOneSentence) {
  server_.reset();
  Result<Client> client = connect(100);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(client.error().message.find("no agent answers at " + directory_.path()), std::string::npos);
}

TEST_F(ServerTest, WrongLinesAreAnsweredAndTheConnectionLives) {
  Fd fd = raw();
  for (const char* line : {"nonsense\n", "{\"sluice\":1,\"id\":3,\"op\":\"set\",\"arguments\":{}}\n"}) {
    ASSERT_GT(::send(fd.get(), line, std::strlen(line), 0), 0);
    EXPECT_NE(hear(fd.get()).find("\"code\":\"invalid\""), std::string::npos);
  }
  const std::string hello = request_line({4, Op::kHello, {}});
  ASSERT_GT(::send(fd.get(), hello.data(), hello.size(), 0), 0);
  EXPECT_NE(hear(fd.get()).find("\"protocol\":1"), std::string::npos);
}

TEST_F(ServerTest, SlowAndEndlessLinesAreCutOff) {
  Fd slow = raw();
  ASSERT_EQ(::send(slow.get(), "{", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(::recv(slow.get(), &byte, 1, 0), 0) << "a line once begun must end";
  Fd endless = raw();
  const std::string filler(100 << 10, 'x');
  for (int i = 0; i < 3; ++i) {
    if (::send(endless.get(), filler.data(), filler.size(), MSG_NOSIGNAL) <= 0) break;
  }
  std::string heard = hear(endless.get());
  EXPECT_TRUE(heard.empty() || heard.find("at most 65536 bytes") != std::string::npos) << heard;
}

TEST_F(ServerTest, ConnectionsAreBounded) {
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) {
    Result<Client> client = connect();
    ASSERT_TRUE(client);
    clients.push_back(std::move(*client));
  }
  Result<Client> more = connect();
  ASSERT_FALSE(more);
  EXPECT_NE(more.error().message.find("4 connections, the most there may be"), std::string::npos)
      << more.error().message;
  clients.clear();
  EXPECT_TRUE(eventually([&] { return connect().ok(); }));
}

TEST_F(ServerTest, ALeavingAgentHangsUpBeforeHelloAndTheCallerStartsOver) {
  ASSERT_TRUE(eventually([&] { return server_->idle(); }));
  // A caller who got in between the last look and the leaving: connected, not yet greeted.
  Fd early = raw();
  ASSERT_TRUE(eventually([&] { return !server_->idle(); }));
  EXPECT_FALSE(server_->leave_if_idle()) << "somebody is connected";
  early.reset();
  ASSERT_TRUE(eventually([&] { return server_->leave_if_idle(); }));
  // The caller waits in connect() while the agent leaves and another one starts.
  std::thread next([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server_->stop();
    start_server(4);
  });
  bool greeted = eventually([&] { return connect(50).ok(); });
  next.join();
  EXPECT_TRUE(greeted);
}

TEST_F(ServerTest, AnAgentWithAGrantDoesNotLeave) {
  FakeProgram runner("/dev/null", 0, 0, 0);
  {
    Result<Client> client = connect();
    ASSERT_TRUE(client);
    GrantRequest request;
    request.gpu_mem_units = 1;
    request.runner_pid = runner.pid();
    ASSERT_TRUE(client->grant(request));
  }
  ASSERT_TRUE(eventually([&] { return server_->idle(); }));
  EXPECT_FALSE(server_->leave_if_idle());
  runner.kill();
  EXPECT_TRUE(eventually([&] { return server_->leave_if_idle(); }));
}

TEST_F(ServerTest, ShutdownIsAsked) {
  Result<Client> client = connect();
  ASSERT_TRUE(client);
  ASSERT_TRUE(client->shutdown());
  EXPECT_TRUE(eventually([&] { return shutdown_.load(); }));
}

TEST_F(ServerTest, ACardThatIsLostAndComesBackIsSeenByTheThreads) {
  cards_.set_lost(1, true);
  ASSERT_TRUE(eventually([&] { return node_->any_lost(); }));
  cards_.set_lost(1, false);
  EXPECT_TRUE(eventually([&] { return !node_->any_lost(); }));
}

TEST(RunDirectory, TheSecondAgentIsToldWhoHoldsIt) {
  TemporaryDirectory base;
  Result<Fd> directory = open_run_directory(base.path());
  ASSERT_TRUE(directory);
  Result<Fd> first = lock_as_the_agent(directory->get(), base.path(), 1000);
  ASSERT_TRUE(first);
  testing::internal::CaptureStderr();
  Result<Fd> second = lock_as_the_agent(directory->get(), base.path(), 20);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_FALSE(second);
  const std::string holder = fmt::format("pid {}", ::getpid());
  EXPECT_EQ(second.error().code, ErrorCode::kExists);
  EXPECT_NE(second.error().message.find("another agent (" + holder + ") serves " + base.path()), std::string::npos)
      << second.error().message;
  EXPECT_NE(log.find("waiting for it to leave"), std::string::npos) << log;
  EXPECT_NE(log.find(holder), std::string::npos) << log;
  EXPECT_EQ(log.find("follows another"), std::string::npos) << log;
  first->reset();
  testing::internal::CaptureStderr();
  EXPECT_TRUE(lock_as_the_agent(directory->get(), base.path(), 20));
  const std::string next = testing::internal::GetCapturedStderr();
  EXPECT_NE(next.find(fmt::format("this agent follows another; what runs under its grants goes on\" version={} "
                                  "before=\"{} of {}\"",
                                  kVersion, holder, kVersion)),
            std::string::npos)
      << next;
}

TEST(RunDirectory, AUnitIsNoLargerThanTheLargestCard) {
  const std::vector<CardInfo> cards = {{.index = 0, .uuid = "a", .model = "Small", .memory_bytes = 8ll << 30},
                                       {.index = 1, .uuid = "b", .model = "Large", .memory_bytes = 16ll << 30}};
  for (int64_t unit : {1, 1024, 8192, 8193, 16384}) EXPECT_TRUE(check_unit(cards, unit).ok()) << unit;
  Result<void> none = check_unit(cards, 16385);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("--memory-unit-mib 16385 is more than any card here has (the largest, Large, has "
                                      "16384 MiB)"),
            std::string::npos)
      << none.error().message;
  EXPECT_TRUE(check_unit({}, 1 << 20).ok());
}

TEST(RunDirectory, OthersMayNotOwnOrWriteIt) {
  TemporaryDirectory base;
  const std::string path = base.path() + "/run";
  ASSERT_TRUE(open_run_directory(path));
  ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
  Result<Fd> open_to_all = open_run_directory(path);
  ASSERT_FALSE(open_to_all);
  EXPECT_NE(open_to_all.error().message.find("can be written by others"), std::string::npos);
  const std::string link = base.path() + "/link";
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_FALSE(open_run_directory(link).ok());
  EXPECT_FALSE(open_run_directory("relative").ok());
  if (::geteuid() == 0) {
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
    ASSERT_EQ(::chown(path.c_str(), 4242, 4242), 0);
    Result<Fd> foreign = open_run_directory(path);
    ASSERT_FALSE(foreign);
    EXPECT_NE(foreign.error().message.find("belongs to uid 4242"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::agent
