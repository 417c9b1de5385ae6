// Bodies of the admission webhook.
#include "check.h"
#include "scheduler/objects_for_tests.h"
#include "scheduler/webhook.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static scheduler::State state({}, std::nullopt);
  static bool filled = false;
  if (!std::exchange(filled, true)) state.replace_nodes({scheduler::node("a")});
  std::string body(reinterpret_cast<const char*>(data), size);
  for (bool refuse : {false, true}) {
    scheduler::Webhook webhook(state,
                               {.refuse = refuse, .scheduler_name = "sluice", .toleration_key = "sluice.dev/shared"});
    scheduler::ServerResponse response = webhook.review(body);
    promise(response.status == 200 || response.status == 400, "the status is 200 or 400");
    Result<json::Value> said = json::parse(response.body);
    promise(said.ok() && said->is_object(), "the answer is a JSON object");
    if (response.status == 400) continue;
    const json::Object& answer = said->at("response").get_object();
    promise(answer.contains("uid"), "the answer names the review");
    promise(refuse || answer.at("allowed").get_bool(), "without --webhook-refuse nothing is refused");
  }
  return 0;
}
