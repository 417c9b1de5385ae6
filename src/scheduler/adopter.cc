#include "scheduler/adopter.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/steady.h"
#include "kube/allocation.h"
#include "scheduler/event_writer.h"

namespace sluice::scheduler {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPerPeriod = 10;

std::string card_words(const core::Placement& placement) {
  std::string out = placement.shares.size() == 1 ? "card" : "cards";
  for (const core::Share& share : placement.shares) out += fmt::format(" {}", share.card_index);
  return out;
}

}  // namespace

Adopter::Adopter(State& state, kube::Endpoint endpoint, kube::Signer signer, std::string event_source,
                 std::function<bool()> may_write, AdopterTimes times)
    : state_(state),
      api_(std::move(endpoint)),
      signer_(std::move(signer)),
      event_source_(std::move(event_source)),
      may_write_(std::move(may_write)),
      times_(times) {
  api_.set_timeout(times_.timeout);
  thread_ = std::thread([this] { run(); });
}

Adopter::~Adopter() {
  stopping_.store(true);
  thread_.join();
}

void Adopter::run() {
  while (!stopping_.load()) {
    std::this_thread::sleep_for(times_.period);
    if (!state_.ready() || !may_write_()) continue;
    for (size_t i = 0; i < kPerPeriod && !stopping_.load(); ++i) {
      std::optional<State::Orphan> orphan = state_.next_orphan(steady_ms());
      if (!orphan) break;
      if (orphan->plan) {
        adopt(*orphan);
      } else {
        std::string text =
            fmt::format("bound to node {} without the Sluice scheduler, and its containers wait there for a card: {}",
                        orphan->node_name, orphan->reason);
        write_event(api_, event_source_, {orphan->pod, "Warning", "NoFittingCard", text});
      }
    }
  }
}

void Adopter::adopt(const State::Orphan& orphan) {
  const BindPlan& plan = *orphan.plan;
  kube::Allocation allocation = kube::make_allocation(plan.request, plan.node, plan.placement);
  int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  json::Object annotations;
  for (const auto& [key, value] :
       kube::to_annotations(allocation, plan.node, plan.container_names, orphan.pod.uid, signer_, now_ns)) {
    annotations[key] = value;
  }
  json::Object patch{{"metadata", json::Object{{"uid", orphan.pod.uid},
                                               {"resourceVersion", orphan.resource_version},
                                               {"annotations", std::move(annotations)}}}};
  std::string path = kube::pod_path(orphan.pod.name_space, orphan.pod.name);
  kube::ApiAnswer answer;
  // A PATCH without an answer may still be applied. The same one again is harmless, and its answer is final for both:
  // whichever came first has moved the resourceVersion.
  while (!stopping_.load() && may_write_()) {
    answer = api_.patch(path, kube::PatchKind::kMerge, patch);
    if (answer.ok() || answer.definitely_refused()) break;
    pause(times_.retry);
  }
  Result<kube::Pod> pod = answer.ok() ? kube::decode_pod(answer.body) : Result<kube::Pod>(answer.to_error("pod"));
  if (pod) {
    adopted_.fetch_add(1);
    state_.pod_was_changed(*pod, orphan.resource_version);
    state_.adoption_ended(orphan.pod.uid, 0);
    log::info("pod bound without us given cards", {{"pod", orphan.pod.name}, {"node", orphan.node_name}});
    std::string text = fmt::format("given {} of node {}, to which it was bound without the Sluice scheduler",
                                   card_words(plan.placement), orphan.node_name);
    write_event(api_, event_source_, {orphan.pod, "Normal", "CardsGiven", text});
    return;
  }
  if (answer.status == 409) {  // somebody changed the pod meanwhile: what it is now decides what comes next
    kube::ApiAnswer now = api_.get(path);
    Result<kube::Pod> changed = now.ok() ? kube::decode_pod(now.body) : Result<kube::Pod>(now.to_error("pod"));
    if (changed && changed->uid == orphan.pod.uid) state_.learn_pod(*changed);
  } else if (answer.status != 404) {
    log::warning("pod bound without us not given cards", {{"pod", orphan.pod.name}, {"reason", answer.message}});
  }
  state_.adoption_ended(orphan.pod.uid, steady_ms() + times_.retry.count());
}

void Adopter::pause(milliseconds time) {
  auto until = std::chrono::steady_clock::now() + time;
  while (!stopping_.load() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::min(time, times_.period));
}

}  // namespace sluice::scheduler
