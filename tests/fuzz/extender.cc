// Bodies of the extender's verbs: the first byte chooses the verb, the rest is the body.
#include "scheduler/extender.h"

#include <set>

#include "check.h"
#include "scheduler/objects_for_tests.h"

using namespace sluice;

namespace {

// A fresh state now and then: filter calls bring pods of their own.
struct World {
  scheduler::State state{{}, std::nullopt};
  scheduler::Extender extender{state, {}, [](const scheduler::BindRequest&) { return std::string("no"); }};
  World() {
    state.replace_nodes({scheduler::node("a"), scheduler::node("b", 2), scheduler::node("c", 1, "cgpu")});
    state.replace_pods({scheduler::pod({.name = "x", .node = "a"})});
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<World> world;
  static int uses = 0;
  if (uses++ % 256 == 0) world = std::make_unique<World>();
  if (size == 0) return 0;
  std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  scheduler::ServerResponse response;
  switch (data[0] % 4) {
    case 0:
      response = world->extender.filter(body);
      break;
    case 1:
      response = world->extender.prioritize(body);
      break;
    case 2:
      response = world->extender.preempt(body);
      break;
    case 3:
      response = world->extender.bind(body);
      break;
  }
  promise(response.status == 200 || response.status == 400, "the status is 200 or 400");
  Result<json::Value> said = json::parse(response.body);
  promise(said.ok(), "the answer is JSON");
  if (response.status == 400) {
    promise(said->is_object() && said->get_object().contains("error"), "a refusal says why");
    return 0;
  }
  if (data[0] % 4 != 0) return 0;
  // A name that was not asked about fails kube-scheduler's whole cycle.
  Result<json::Value> asked = json::parse(body);
  const json::Value* names =
      asked.ok() && asked->is_object() ? scheduler::find_any_case(asked->get_object(), "NodeNames") : nullptr;
  if (names == nullptr) return 0;
  std::set<std::string> known;
  for (const json::Value& name : names->get_array()) known.insert(std::string(name.get_string()));
  for (const json::Value& name : said->at("NodeNames").get_array())
    promise(known.contains(std::string(name.get_string())), "only names of the question are answered");
  return 0;
}
