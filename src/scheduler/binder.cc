#include "scheduler/binder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace sluice::scheduler {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kMaxTries = 3;  // of a Binding to a pod that changes meanwhile

json::Value binding(const BindRequest& request, const std::string& version,
                    const std::map<std::string, std::string>& annotations) {
  json::Object notes;
  for (const auto& [key, value] : annotations) notes[key] = value;
  json::Object metadata{{"name", request.name},
                        {"namespace", request.name_space},
                        {"uid", request.uid},
                        {"annotations", std::move(notes)}};
  if (!version.empty()) metadata["resourceVersion"] = version;
  return json::Object{{"apiVersion", "v1"},
                      {"kind", "Binding"},
                      {"metadata", std::move(metadata)},
                      {"target", json::Object{{"apiVersion", "v1"}, {"kind", "Node"}, {"name", request.node}}}};
}

}  // namespace

ClientPool::Lease ClientPool::take() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    auto client = std::make_unique<kube::ApiClient>(endpoint_);
    client->set_timeout(timeout_);
    return Lease(*this, std::move(client));
  }
  std::unique_ptr<kube::ApiClient> client = std::move(idle_.back());
  idle_.pop_back();
  return Lease(*this, std::move(client));
}

ClientPool::Lease::~Lease() {
  std::lock_guard lock(pool_.mutex_);
  if (pool_.idle_.size() < 32) pool_.idle_.push_back(std::move(client_));
}

Binder::Binder(State& state, kube::Endpoint endpoint, kube::Signer signer, std::function<bool()> may_bind,
               BinderTimes times)
    : state_(state),
      clients_(std::move(endpoint), times.timeout),
      signer_(std::move(signer)),
      may_bind_(std::move(may_bind)),
      times_(times) {
  resolver_ = std::thread([this] { resolve_doubts(); });
}

Binder::~Binder() {
  stopping_.store(true);
  resolver_.join();
}

// What the API server says of the pod now; what it says of the right pod is told to the state.
Binder::Seen Binder::look(const BindRequest& request) {
  kube::ApiAnswer answer = clients_.take()->get(kube::pod_path(request.name_space, request.name));
  if (answer.status == 404) return Seen::kNotBoundHere;
  if (!answer.ok()) return Seen::kUnknown;
  Result<kube::Pod> pod = kube::decode_pod(answer.body);
  if (!pod) return Seen::kUnknown;
  if (pod->uid != request.uid) return Seen::kNotBoundHere;  // deleted and made anew
  if (pod->node_name.empty() && !pod->terminal()) return Seen::kNotBoundHere;
  state_.learn_pod(*pod);
  return pod->node_name == request.node ? Seen::kBoundHere : Seen::kNotBoundHere;
}

std::string Binder::bind(const BindRequest& request) {
  Result<BindPlan> plan = state_.plan_bind(request.uid, request.node);
  if (!plan && plan.error().code == ErrorCode::kNotFound) {
    kube::ApiAnswer answer = clients_.take()->get(kube::pod_path(request.name_space, request.name));
    Result<kube::Pod> pod = answer.ok() ? kube::decode_pod(answer.body) : Result<kube::Pod>(answer.to_error("pod"));
    if (!pod) return pod.error().message;
    if (pod->uid != request.uid) return "the pod was deleted and made anew under the same name";
    state_.introduce_pod(*pod);
    plan = state_.plan_bind(request.uid, request.node);
  }
  if (!plan) {
    // A repeated call for a pod that is here already, because the first answer was late, is a success.
    if (plan.error().code == ErrorCode::kExists && look(request) == Seen::kBoundHere) return "";
    if (plan.error().code == ErrorCode::kExhausted) conflicts_.fetch_add(1);
    return plan.error().message;
  }
  kube::Allocation allocation = kube::make_allocation(plan->request, plan->node, plan->placement);
  int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::map<std::string, std::string> annotations =
      kube::to_annotations(allocation, plan->node, plan->container_names, request.uid, signer_, now_ns);
  if (!may_bind_()) {
    state_.bind_refused(request.uid);
    return "this replica does not lead";
  }
  return finish(request, send(request, std::move(plan->resource_version), annotations));
}

// The pod's version is a precondition: the API server binds pods that have ended too, and kube-scheduler, which is told
// nothing more of those, would count such a pod on its node for ever. Changes that do not matter here (a condition, an
// annotation) are frequent, so what a conflict hides is looked at.
kube::ApiAnswer Binder::send(const BindRequest& request, std::string version,
                             const std::map<std::string, std::string>& annotations) {
  std::string path = kube::pod_path(request.name_space, request.name);
  for (int tries = 1;; ++tries) {
    kube::ApiAnswer answer = clients_.take()->create(path + "/binding", binding(request, version, annotations));
    if (answer.status != 409 || tries == kMaxTries) return answer;
    kube::ApiAnswer seen = clients_.take()->get(path);
    Result<kube::Pod> pod = seen.ok() ? kube::decode_pod(seen.body) : Result<kube::Pod>(seen.to_error("pod"));
    bool binds = pod && pod->uid == request.uid && pod->node_name.empty() && !pod->terminal() && !pod->deleting;
    if (!binds || pod->resource_version == version) return answer;
    version = pod->resource_version;
  }
}

std::string Binder::finish(const BindRequest& request, const kube::ApiAnswer& answer) {
  if (answer.ok()) {
    bound_.fetch_add(1);
    state_.bind_finished(request.uid);
    return "";
  }
  if (answer.definitely_refused() && answer.status != 409) {
    state_.bind_refused(request.uid);
    return answer.to_error("binding").message;
  }
  if (answer.status == 409) {
    conflicts_.fetch_add(1);
    Seen seen = look(request);
    if (seen == Seen::kBoundHere) {
      state_.bind_finished(request.uid);
      return "";
    }
    if (seen == Seen::kNotBoundHere) {
      state_.bind_refused(request.uid);
      return answer.to_error("binding").message;
    }
  }
  unknown_.fetch_add(1);
  state_.bind_finished(request.uid);
  std::lock_guard lock(mutex_);
  doubts_.push_back({request, steady_clock::now()});
  return fmt::format("binding: no definite answer ({}); the cards stay reserved until the API server tells",
                     answer.message);
}

void Binder::resolve_doubts() {
  while (!stopping_.load()) {
    std::this_thread::sleep_for(std::min(times_.doubt, milliseconds(100)));
    std::optional<Doubt> doubt;
    {
      std::lock_guard lock(mutex_);
      if (!doubts_.empty() && steady_clock::now() - doubts_.front().since > times_.doubt) {
        doubt = std::move(doubts_.front());
        doubts_.pop_front();
      }
    }
    if (!doubt) continue;
    Seen seen = look(doubt->request);
    if (seen == Seen::kNotBoundHere) {
      state_.bind_refused(doubt->request.uid);
      log::info("binding was not applied", {{"pod", doubt->request.name}, {"uid", doubt->request.uid}});
    } else if (seen == Seen::kUnknown) {
      doubt->since = steady_clock::now() - times_.doubt + seconds(1);
      std::lock_guard lock(mutex_);
      doubts_.push_back(*std::move(doubt));
    }
  }
}

}  // namespace sluice::scheduler
