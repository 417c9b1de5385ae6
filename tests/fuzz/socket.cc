// What comes over the agent's socket: a caller's request as the agent reads it, an agent's answer as `sluice` does. And
// the agent's own records on disk, in the same form.
#include "agent/grant_record.h"
#include "agent/protocol.h"
#include "check.h"

using namespace sluice;
using namespace sluice::agent;

namespace {

template <typename Answer>
void read_as(const json::Object& object) {
  const Result<Answer> answer = Answer::from_json(object);
  promise(answer.ok() || !answer.error().message.empty(), "a refusal says why");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  int64_t id = 0;
  const Result<RequestFrame> request = parse_request(line, id);
  if (request) {
    const std::string again = request_line(*request);
    promise(again.find('\n') == std::string::npos || again.find('\n') + 1 == again.size(), "a frame is one line");
    int64_t id_again = 0;
    promise(parse_request(std::string_view(again).substr(0, again.find('\n')), id_again).ok(),
            "what was read can be written and read again");
    promise(id_again == id, "with the same number");
  } else {
    promise(!request.error().message.empty(), "a refusal says why");
  }
  const Result<json::Object> answer = parse_answer(line, 1);
  if (!answer) return 0;
  read_as<GrantAnswer>(*answer);
  read_as<ListAnswer>(*answer);
  read_as<HelloAnswer>(*answer);
  read_as<GrantStatus>(*answer);
  read_as<GrantRecord>(*answer);
  return 0;
}
