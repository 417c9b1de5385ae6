#include "agent/protocol.h"

#include <fmt/format.h>

#include <array>

#include "page/grant.h"

namespace sluice::agent {
namespace {

struct OpName {
  Op op;
  const char* name;
};
constexpr std::array<OpName, 9> kOps{{{Op::kHello, "hello"},
                                      {Op::kGrant, "grant"},
                                      {Op::kRelease, "release"},
                                      {Op::kAttach, "attach"},
                                      {Op::kList, "list"},
                                      {Op::kSet, "set"},
                                      {Op::kSetPolicy, "set-policy"},
                                      {Op::kWatch, "watch"},
                                      {Op::kShutdown, "shutdown"}}};

constexpr std::array<const char*, 6> kPolicies{"fair", "preemptive", "weighted", "fixed", "burst", "native"};

struct CodeName {
  ErrorCode code;
  const char* name;
};
constexpr std::array<CodeName, 7> kCodes{{{ErrorCode::kInvalid, "invalid"},
                                          {ErrorCode::kNotFound, "not-found"},
                                          {ErrorCode::kExists, "exists"},
                                          {ErrorCode::kPermission, "permission"},
                                          {ErrorCode::kUnavailable, "unavailable"},
                                          {ErrorCode::kExhausted, "exhausted"},
                                          {ErrorCode::kInternal, "internal"}}};

Error bad_line(std::string_view what) {
  return invalid(fmt::format("control protocol: {}", what));
}

}  // namespace

const char* to_string(Op op) {
  for (const OpName& entry : kOps) {
    if (entry.op == op) return entry.name;
  }
  return "?";
}

Result<Op> parse_op(const std::string& text) {
  std::string known;
  for (const OpName& entry : kOps) {
    if (text == entry.name) return entry.op;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
  return bad_line(fmt::format("there is no operation '{}'; there are {}", text.substr(0, 64), known));
}

const char* policy_name(uint32_t policy) {
  return policy < kPolicies.size() ? kPolicies[policy] : "unknown";
}

Result<uint32_t> parse_policy_name(const std::string& text) {
  for (uint32_t i = 0; i < kPolicies.size(); ++i) {
    if (text == kPolicies[i] || text == std::to_string(i)) return i;
  }
  return invalid(fmt::format(
      "policy '{}' is unknown; expected fair, preemptive, weighted, fixed, burst, native or their numbers 0 to 5",
      text.substr(0, 64)));
}

const char* code_name(ErrorCode code) {
  for (const CodeName& entry : kCodes) {
    if (entry.code == code) return entry.name;
  }
  return "internal";
}

ErrorCode parse_code(const std::string& name) {
  for (const CodeName& entry : kCodes) {
    if (name == entry.name) return entry.code;
  }
  return ErrorCode::kInternal;
}

std::string request_line(const RequestFrame& frame) {
  json::Object object;
  object["sluice"] = kProtocolVersion;
  object["id"] = frame.id;
  object["op"] = to_string(frame.op);
  object["arguments"] = frame.arguments;
  return json::to_string(object) + "\n";
}

Result<RequestFrame> parse_request(std::string_view line, int64_t& id) {
  id = 0;
  Result<json::Value> value = json::parse(line);
  if (!value) return std::move(value.error()).wrap("control protocol");
  if (!value->is_object()) return bad_line("expected one JSON object per line");
  const json::Object& object = value->get_object();
  Result<int64_t> number = json::get_int_or(object, "id", 0);
  if (!number) return std::move(number.error()).wrap("control protocol");
  id = *number;
  Result<int64_t> version = json::get_int(object, "sluice");
  if (!version) return std::move(version.error()).wrap("control protocol");
  if (*version != kProtocolVersion) {
    return bad_line(fmt::format("the caller speaks version {}, this agent {}; install the same release for both",
                                *version, kProtocolVersion));
  }
  Result<std::string> name = json::get_string(object, "op");
  if (!name) return std::move(name.error()).wrap("control protocol");
  Result<Op> op = parse_op(*name);
  if (!op) return std::move(op.error());
  RequestFrame frame;
  frame.id = id;
  frame.op = *op;
  if (const json::Value* arguments = object.if_contains("arguments"); arguments != nullptr && !arguments->is_null()) {
    if (!arguments->is_object()) return bad_line("arguments: expected an object");
    frame.arguments = arguments->get_object();
  }
  return frame;
}

std::string answer_line(int64_t id, const json::Object& result) {
  json::Object object;
  object["id"] = id;
  object["result"] = result;
  return json::to_string(object) + "\n";
}

std::string error_line(int64_t id, const Error& error) {
  json::Object object;
  object["id"] = id;
  object["error"] = json::Object{{"code", code_name(error.code)}, {"message", error.message}};
  return json::to_string(object) + "\n";
}

Result<json::Object> parse_answer(std::string_view line, int64_t expected_id) {
  Result<json::Value> value = json::parse(line);
  if (!value) return std::move(value.error()).wrap("the agent's answer");
  if (!value->is_object()) return internal("the agent's answer is no JSON object");
  const json::Object& object = value->get_object();
  Result<int64_t> id = json::get_int(object, "id");
  if (!id) return std::move(id.error()).wrap("the agent's answer");
  if (const json::Value* error = object.if_contains("error"); error != nullptr && error->is_object()) {
    Result<std::string> code = json::get_string_or(error->get_object(), "code", "internal");
    Result<std::string> message = json::get_string_or(error->get_object(), "message", "the agent gave no reason");
    if (!code || !message) return internal("the agent's answer: error: expected code and message as texts");
    return Error{parse_code(*code), *message};
  }
  if (*id != expected_id) {
    return internal(fmt::format("the agent answered request {} where {} was asked", *id, expected_id));
  }
  const json::Value* result = object.if_contains("result");
  if (result == nullptr || !result->is_object()) return internal("the agent's answer has neither result nor error");
  return result->get_object();
}

}  // namespace sluice::agent
