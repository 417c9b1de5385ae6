#include "agent/protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::agent {
namespace {

GrantRequest full_request() {
  GrantRequest r;
  r.name = "train";
  r.pod = "default/train-0";
  r.gpu_mem_units = 10;
  r.core_percent = 30;
  r.cards = 2;
  r.card_uuids = {"GPU-a", "GPU-b"};
  r.policy = 4;
  r.weight = 7;
  r.high_priority = true;
  r.runner_pid = 4711;
  return r;
}

GrantAnswer full_answer() {
  GrantAnswer a;
  a.id = "00112233445566ff";
  a.name = "train";
  a.policy = 3;
  a.cards = {{0, "GPU-a", "V100", 32510, 31, 10, 10487, 30, "/dev/nvidia0"}};
  a.grant_directory = "/run/sluice/grants/x/grant";
  a.usage_file = "/run/sluice/grants/x/usage.d/usage";
  a.driver_files = {
      {"libcuda.so.1", "/usr/lib/libcuda.so.550", {"/usr/lib/libcuda.so.550"}, "/opt/guest/libcuda.so.1"}};
  a.environment = {{"ALIYUN_COM_GPU_MEM_DEV", "31"}, {"NVIDIA_VISIBLE_DEVICES", "GPU-a"}};
  a.notes = {"a note"};
  return a;
}

ListAnswer full_list() {
  ListAnswer list;
  list.agent_version = "0.1.0";
  list.agent_pid = 12;
  CardStatus card;
  card.uuid = "GPU-a";
  card.state = "ok";
  card.units = 31;
  card.free_core_percent = 70;
  card.strangers = {{99, 0, "python3", 512, 0, 12.5, 0, 0, false}};
  list.cards = {card};
  GrantStatus grant;
  grant.id = "00112233445566ff";
  grant.cards = full_answer().cards;
  grant.use = {{0, 1000, 1100, 29.9, 2, 1, 0}};
  grant.processes = {{100, 0, "train", 900, 800, 30.5, 12345, 1.5, true, 4, 5.5, 6}};
  list.grants = {grant};
  list.events = {{1700000000000, "stranger", "a sentence"}};
  return list;
}

TEST(Protocol, EveryMemberSurvivesTheWire) {
  // Through text, so that what the parser makes of numbers counts too.
  auto through_text = [](const json::Object& object) { return json::parse(json::to_string(object))->get_object(); };
  EXPECT_EQ(*GrantRequest::from_json(through_text(full_request().to_json())), full_request());
  EXPECT_EQ(*GrantAnswer::from_json(through_text(full_answer().to_json())), full_answer());
  SetRequest set{"train", 8, 25, 3, false};
  EXPECT_EQ(*SetRequest::from_json(through_text(set.to_json())), set);
  SetRequest little{"train", std::nullopt, 25, std::nullopt, std::nullopt};
  EXPECT_EQ(*SetRequest::from_json(through_text(little.to_json())), little);
  SetPolicyRequest policy{4, "GPU-a"};
  EXPECT_EQ(*SetPolicyRequest::from_json(through_text(policy.to_json())), policy);
  Result<ListAnswer> list = ListAnswer::from_json(through_text(full_list().to_json()));
  ASSERT_TRUE(list) << list.error().message;
  EXPECT_EQ(list->cards, full_list().cards);
  EXPECT_EQ(list->grants, full_list().grants);
  EXPECT_EQ(list->events, full_list().events);
}

TEST(Protocol, FramesCarryIdsAndErrorsTheirCode) {
  int64_t id = 0;
  Result<RequestFrame> frame = parse_request(request_line({7, Op::kSet, {{"grant", "a"}}}), id);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->op, Op::kSet);
  EXPECT_EQ(id, 7);
  Result<json::Object> answer = parse_answer(error_line(7, exhausted("full")), 7);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(answer.error().message, "full");
  EXPECT_TRUE(parse_answer(answer_line(8, {}), 8).ok());
  EXPECT_FALSE(parse_answer(answer_line(8, {}), 9).ok());
}

struct BadLine {
  const char* line;
  const char* expected;  // part of the message
};

TEST(Protocol, WrongRequestsAreNamed) {
  const BadLine lines[] = {
      {"", "control protocol"},
      {"[]", "one JSON object per line"},
      {R"({"id":1,"op":"list"})", "sluice"},
      {R"({"sluice":2,"id":1,"op":"list"})", "the caller speaks version 2, this agent 1"},
      {R"({"sluice":1,"id":1,"op":"explode"})", "there is no operation 'explode'"},
      {R"({"sluice":1,"id":1,"op":"list","arguments":7})", "arguments: expected an object"},
  };
  for (const BadLine& bad : lines) {
    int64_t id = 0;
    Result<RequestFrame> frame = parse_request(bad.line, id);
    ASSERT_FALSE(frame) << bad.line;
    EXPECT_NE(frame.error().message.find(bad.expected), std::string::npos) << frame.error().message;
  }
  const BadLine members[] = {
      {R"({"gpu_mem_units":"ten"})", "gpu_mem_units: expected a whole number"},
      {R"({"gpu_mem_units":-1})", "gpu_mem_units: expected a whole number from 0"},
      {R"({"weight":0})", "weight: expected a whole number from 1 to 1000"},
      {R"({"cards":17})", "cards: expected a whole number from 1 to 16"},
      {R"({"high_priority":1})", "high_priority: expected true or false"},
      {R"({"card_uuids":[1]})", "card_uuids: expected a list of texts"},
      {R"({"policy":6})", "policy: expected a whole number from 0 to 5"},
  };
  for (const BadLine& bad : members) {
    Result<GrantRequest> request = GrantRequest::from_json(json::parse(bad.line)->get_object());
    ASSERT_FALSE(request) << bad.line;
    EXPECT_NE(request.error().message.find(bad.expected), std::string::npos) << request.error().message;
  }
}

TEST(Protocol, PoliciesByNameAndNumber) {
  for (uint32_t i = 0; i <= 5; ++i) {
    EXPECT_EQ(*parse_policy_name(policy_name(i)), i);
    EXPECT_EQ(*parse_policy_name(std::to_string(i)), i);
  }
  EXPECT_FALSE(parse_policy_name("6").ok());
}

// Whatever bytes arrive, a parser answers with a value or an error.
TEST(Protocol, NoiseIsAnsweredWithErrors) {
  std::mt19937 random(7);
  const std::string seed = request_line({1, Op::kGrant, full_request().to_json()});
  for (int round = 0; round < 5000; ++round) {
    std::string line = seed;
    for (int i = 0; i < 1 + round % 5; ++i) line[random() % line.size()] = static_cast<char>(random());
    if (round % 7 == 0) line.resize(random() % line.size());
    int64_t id = 0;
    Result<RequestFrame> frame = parse_request(line, id);
    if (frame) (void)GrantRequest::from_json(frame->arguments);
  }
}

}  // namespace
}  // namespace sluice::agent
