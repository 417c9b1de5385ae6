#include "scheduler/watchers.h"

#include "base/log.h"
#include "base/steady.h"
#include "scheduler/event_writer.h"

namespace sluice::scheduler {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{100};
constexpr size_t kWakesPerPeriod = 5;  // 50 patches a second at most

std::string name_of(const json::Value& object, const char* key) {
  if (!object.is_object()) return "";
  const json::Value* metadata = object.get_object().if_contains("metadata");
  if (metadata == nullptr || !metadata->is_object()) return "";
  Result<std::string> name = json::get_string_or(metadata->get_object(), key, "");
  return name ? *name : "";
}

}  // namespace

class Watchers::NodeSink : public kube::ReflectorSink {
 public:
  explicit NodeSink(State& state) : state_(state) {}
  void replaced(json::Array items) override { state_.replace_nodes(items); }
  void changed(json::Value object) override { state_.node_changed(object); }
  void deleted(json::Value object) override { state_.node_deleted(name_of(object, "name")); }

 private:
  State& state_;
};

class Watchers::PodSink : public kube::ReflectorSink {
 public:
  explicit PodSink(State& state) : state_(state) {}
  void replaced(json::Array items) override { state_.replace_pods(items); }
  void changed(json::Value object) override { state_.pod_changed(object); }
  void deleted(json::Value object) override { state_.pod_deleted(name_of(object, "uid")); }

 private:
  State& state_;
};

class Watchers::BudgetSink : public kube::ReflectorSink {
 public:
  explicit BudgetSink(State& state) : state_(state) {}
  void replaced(json::Array items) override { state_.replace_budgets(items); }
  void changed(json::Value object) override { state_.budget_changed(object); }
  void deleted(json::Value object) override {
    state_.budget_deleted(name_of(object, "namespace"), name_of(object, "name"));
  }

 private:
  State& state_;
};

Watchers::Watchers(State& state, kube::Endpoint endpoint, std::string event_source, std::function<bool()> leading)
    : state_(state), api_(endpoint), event_source_(std::move(event_source)), leading_(std::move(leading)) {
  node_sink_ = std::make_unique<NodeSink>(state_);
  pod_sink_ = std::make_unique<PodSink>(state_);
  budget_sink_ = std::make_unique<BudgetSink>(state_);
  kube::ReflectorOptions nodes;
  nodes.path = "/api/v1/nodes";
  kube::ReflectorOptions pods;
  pods.path = "/api/v1/pods";
  // A pod that ends leaves this selection and arrives as deleted: finished pods hold nothing.
  pods.field_selector = "status.phase!=Succeeded,status.phase!=Failed";
  nodes.seed = pods.seed = static_cast<uint64_t>(steady_ms());
  nodes_ = std::make_unique<kube::Reflector>(endpoint, nodes, *node_sink_);
  pods_ = std::make_unique<kube::Reflector>(endpoint, pods, *pod_sink_);
  kube::ReflectorOptions budgets;
  budgets.path = "/apis/policy/v1/poddisruptionbudgets";
  budgets.seed = nodes.seed;
  budgets_ = std::make_unique<kube::Reflector>(endpoint, budgets, *budget_sink_);
  for (kube::Reflector* one : {nodes_.get(), pods_.get(), budgets_.get()}) one->start();
  thread_ = std::thread([this] { run(); });
}

Watchers::~Watchers() {
  stopping_.store(true);
  thread_.join();
  for (kube::Reflector* one : {nodes_.get(), pods_.get(), budgets_.get()}) one->stop();
}

void Watchers::run() {
  while (!stopping_.load()) {
    std::this_thread::sleep_for(kPeriod);
    if (!state_.ready() || !leading_()) continue;
    size_t sent = 0;
    for (const State::Waiting& pod : state_.pods_to_wake(steady_ms(), kWakesPerPeriod)) {
      if (stopping_.load() || ++sent > kWakesPerPeriod) break;
      wake(pod);
    }
    for (const State::Unreached& pod : state_.unreached_pods(steady_ms())) {
      if (stopping_.load()) break;
      tell(pod);
    }
  }
}

// kube-scheduler tries a waiting pod again as soon as the pod's own annotations change.
void Watchers::wake(const State::Waiting& pod) {
  int64_t value = std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  json::Object patch{
      {"metadata",
       json::Object{{"uid", pod.uid}, {"annotations", json::Object{{"sluice.dev/wake", std::to_string(value)}}}}}};
  kube::ApiAnswer answer = api_.patch(kube::pod_path(pod.name_space, pod.name), kube::PatchKind::kMerge, patch);
  if (answer.ok()) {
    wakes_.fetch_add(1);
  } else if (answer.status != 404 && answer.status != 409) {
    log::warning("pod not woken", {{"pod", pod.name}, {"reason", answer.message}});
  }
}

void Watchers::tell(const State::Unreached& unreached) {
  write_event(api_, event_source_, {unreached.pod, "Warning", "FailedScheduling", unreached.text});
}

}  // namespace sluice::scheduler
