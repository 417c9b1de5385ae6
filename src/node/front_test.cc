#include "node/front.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "node/plugin_link.h"

namespace sluice::node {
namespace {

using std::chrono::milliseconds;

std::pair<Fd, Fd> make_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

template <typename Message>
Message through(const Message& message) {
  Result<json::Value> text = json::parse(json::to_string(to_json(FrontMessage(message))));
  EXPECT_TRUE(text.ok());
  Result<FrontMessage> back = read_message(*text);
  EXPECT_TRUE(back.ok()) << (back.ok() ? "" : back.error().message);
  return back.ok() ? std::get<Message>(*back) : Message{};
}

TEST(FrontMessages, ComeBackAsTheyWere) {
  OfferMessage offer{{{"r/one", {{"m0", true}, {"m1", false}}}, {"r/none", {}}}, true};
  EXPECT_EQ(through(offer), offer);
  CallMessage call{7, true, "r/one", {"m1", "m0"}};
  EXPECT_EQ(through(call), call);
  PluginStatus status{{{"r/one", true}, {"r/two", false}}, {"r/two"}, 5, 2};
  EXPECT_EQ(through(status), status);
  ReplyMessage reply;
  reply.id = 9;
  reply.answer = {{{"A", "b\n\"c"}}, {{"/to", "/from", false}}, {{"/dev/a", "/dev/b", "r"}}, {"k=d"}};
  EXPECT_EQ(through(reply).answer, reply.answer);
  reply = {9, false, exhausted("card memory"), {}};
  const ReplyMessage refused = through(reply);
  EXPECT_FALSE(refused.done);
  EXPECT_EQ(refused.error.code, ErrorCode::kExhausted);
  EXPECT_EQ(refused.error.message, "card memory");
}

TEST(FrontMessages, WhatCannotBeReadIsAnError) {
  for (const char* text :
       {"[]", "{}", R"({"what":"dance"})", R"({"what":"call"})", R"({"what":"offer"})", R"({"what":"status"})",
        R"({"what":"offer","resources":{"r":{"ids":["a"],"health":"hh"}}})",
        R"({"what":"reply","id":1,"done":false,"code":99,"message":"m"})", R"({"what":"reply","id":-1,"done":true})"}) {
    Result<FrontMessage> message = read_message(*json::parse(text));
    if (std::string(text).find("call") != std::string::npos) continue;  // an empty call is odd, not unreadable
    EXPECT_FALSE(message.ok()) << text;
  }
}

TEST(LineChannel, LongAndCutLines) {
  auto [a, b] = make_pair();
  const int raw = a.get();
  LineChannel left(std::move(a)), right(std::move(b));
  OfferMessage offer;
  for (int i = 0; i < 8192; ++i) offer.resources["r/one"].push_back({fmt::format("m{}", i), i % 2 == 0});
  std::thread sender([&] {
    EXPECT_TRUE(left.send(offer).ok());
    EXPECT_TRUE(left.send(PluginStatus{{}, {}, 3, 0}).ok());
    const std::string line = json::to_string(to_json(FrontMessage(CallMessage{1, false, "r", {"x"}})));
    EXPECT_EQ(::send(raw, line.data(), 5, 0), 5);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(::send(raw, line.data() + 5, line.size() - 5, 0), static_cast<ssize_t>(line.size() - 5));
    EXPECT_EQ(::send(raw, "\nnonsense\n", 10, 0), 10);
  });
  std::vector<FrontMessage> got;
  Result<std::vector<FrontMessage>> some = std::vector<FrontMessage>();
  while ((some = right.receive())) {
    for (FrontMessage& one : *some) got.push_back(std::move(one));
    std::this_thread::sleep_for(milliseconds(1));
  }
  sender.join();
  EXPECT_EQ(some.error().code, ErrorCode::kInvalid);
  ASSERT_GE(got.size(), 2u);
  EXPECT_EQ(std::get<OfferMessage>(got[0]), offer);
  EXPECT_EQ(std::get<PluginStatus>(got[1]).registrations, 3u);
}

TEST(LineChannel, AnEndThatDoesNotReadBreaksIt) {
  auto [a, b] = make_pair();
  const timeval longest{0, 20'000};
  ASSERT_EQ(::setsockopt(a.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest)), 0);
  LineChannel left(std::move(a));
  OfferMessage offer;
  for (int i = 0; i < 8192; ++i) offer.resources["r/one"].push_back({fmt::format("m{}", i), true});
  int sent = 0;
  while (sent < 1000 && left.send(offer).ok()) ++sent;
  EXPECT_LT(sent, 1000);
  EXPECT_TRUE(left.broken());
  EXPECT_FALSE(left.send(PluginStatus{}).ok());
}

TEST(CallDesk, AnotherWorkerIsAskedAgain) {
  CallDesk desk;
  ReplyMessage reply;
  std::thread kubelet([&] { reply = desk.ask({0, false, "r", {"m1"}}, milliseconds(10'000)); });
  auto next_call = [](LineChannel& worker) {
    while (true) {
      Result<std::vector<FrontMessage>> messages = worker.receive();
      if (!messages) return CallMessage{};
      for (FrontMessage& message : *messages) return std::get<CallMessage>(message);
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  auto [a, first_end] = make_pair();
  LineChannel front_first(std::move(a)), first(std::move(first_end));
  desk.worker_here(&front_first);
  const CallMessage call = next_call(first);
  EXPECT_EQ(call.ids, std::vector<std::string>{"m1"});
  desk.worker_gone();
  auto [b, second_end] = make_pair();
  LineChannel front_second(std::move(b)), second(std::move(second_end));
  desk.worker_here(&front_second);
  EXPECT_EQ(next_call(second), call);
  desk.answered({call.id + 1, true, {}, {}});  // of nobody
  desk.answered({call.id, true, {}, {{}, {}, {}, {"k=d"}}});
  kubelet.join();
  EXPECT_TRUE(reply.done);
  EXPECT_EQ(reply.answer.cdi_devices, std::vector<std::string>{"k=d"});
}

TEST(CallDesk, NobodyAnswers) {
  CallDesk desk;
  const ReplyMessage late = desk.ask({0, true, "r", {}}, milliseconds(20));
  EXPECT_FALSE(late.done);
  EXPECT_EQ(late.error.code, ErrorCode::kUnavailable);
  std::thread closing([&] {
    std::this_thread::sleep_for(milliseconds(20));
    desk.close();
  });
  EXPECT_FALSE(desk.ask({0, true, "r", {}}, milliseconds(60'000)).done);
  closing.join();
}

TEST(RestartRule, AtOnceThenSlowerThenNoMore) {
  RestartRule rule;
  RestartRule::Clock::time_point now{};
  std::vector<int64_t> pauses;
  for (int i = 0; i < 6; ++i) {
    rule.started(now);
    now += milliseconds(500);
    std::optional<milliseconds> pause = rule.died(now);
    ASSERT_TRUE(pause.has_value()) << i;
    pauses.push_back(pause->count());
  }
  EXPECT_EQ(pauses, (std::vector<int64_t>{0, 100, 200, 400, 800, 1600}));
  rule.started(now);
  EXPECT_FALSE(rule.died(now + milliseconds(500)).has_value());
  // One that has served for a while is started at once.
  rule.started(now);
  EXPECT_EQ(rule.died(now + std::chrono::minutes(5))->count(), 0);
}

TEST(PluginLink, CallsWaitUntilTheyCanBeServed) {
  auto [front_end, worker_end] = make_pair();
  LineChannel front(std::move(front_end));
  std::atomic<int> changes{0}, losses{0};
  {
    PluginLink link(std::move(worker_end), [&] { ++changes; }, [&] { ++losses; });
    EXPECT_TRUE(front.send(CallMessage{4, true, "r", {"m1"}}).ok());
    EXPECT_TRUE(front.send(PluginStatus{{{"r", true}, {"other", false}}, {"other"}, 2, 1}).ok());
    while (changes == 0) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_FALSE(link.complete());  // nothing is wanted
    link.want({{"r", {{"m1", true}}}});
    link.want({{"r", {{"m1", true}}}});  // the same: not sent again
    EXPECT_TRUE(link.complete());
    EXPECT_TRUE(link.contested("other"));
    EXPECT_EQ(link.worker_restarts(), 1u);
    link.serve([](const CallMessage& call) {
      ReplyMessage reply;
      reply.done = false;
      reply.error = not_found(call.ids.front());
      return reply;
    });
    std::vector<FrontMessage> got;
    while (got.size() < 2) {
      Result<std::vector<FrontMessage>> some = front.receive();
      ASSERT_TRUE(some.ok());
      for (FrontMessage& one : *some) got.push_back(std::move(one));
    }
    EXPECT_EQ(std::get<OfferMessage>(got[0]).resources.size(), 1u);
    EXPECT_EQ(std::get<ReplyMessage>(got[1]).id, 4u);
    EXPECT_EQ(std::get<ReplyMessage>(got[1]).error.message, "m1");
    link.want({});
    EXPECT_FALSE(link.complete());
  }
  EXPECT_EQ(losses, 0);
}

}  // namespace
}  // namespace sluice::node
