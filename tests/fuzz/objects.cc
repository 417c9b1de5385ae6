// Objects of the API as the watches bring them, through the whole state: pods, nodes, disruption budgets, records.
// Users write annotations and labels, so all of it is foreign.
#include "check.h"
#include "scheduler/objects_for_tests.h"
#include "scheduler/state.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const kube::Signer signer = kube::Signer::generate();
  static std::unique_ptr<scheduler::State> state;
  static int uses = 0;
  if (uses++ % 256 == 0) {
    state = std::make_unique<scheduler::State>(scheduler::StateSettings{},
                                               *kube::Verifier::from_pem({signer.public_pem()}));
    state->replace_nodes({scheduler::node("a", 2)});
    state->replace_pods({});
  }
  Result<json::Value> object = json::parse({reinterpret_cast<const char*>(data), size});
  if (!object) return 0;
  state->node_changed(*object);
  state->pod_changed(*object);
  state->budget_changed(*object);
  if (Result<kube::Pod> pod = kube::decode_pod(*object); pod) {
    (void)state->filter(*pod, {"a", "zz"});
    (void)state->preempt(*pod, {{"a", {}}});
    (void)state->explain(pod->name_space, pod->name);
    if (state->plan_bind(pod->uid, "a")) state->bind_refused(pod->uid);
  }
  (void)state->pods_to_wake(uses);
  (void)state->unreached_pods(uses);
  for (int looks = 0; std::optional<scheduler::State::Orphan> orphan = state->next_orphan(uses); ++looks) {
    promise(orphan->plan.has_value() != !orphan->reason.empty(), "an orphan has cards or a reason");
    promise(looks < 1000, "each is looked at once");
    state->adoption_ended(orphan->pod.uid, 0);
  }
  const json::Object described = state->describe();
  for (const json::Value& node : described.at("nodes").get_array()) {
    for (const json::Value& card : node.at("cards").get_array()) {
      int64_t free = card.at("free_units").to_number<int64_t>();
      promise(free >= 0 && free <= card.at("units").to_number<int64_t>(), "free is within 0 and the card");
    }
  }
  return 0;
}
