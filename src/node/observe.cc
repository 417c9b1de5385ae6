// What the agent notices and shows: processes on cards without a grant, once a second; metrics, when they are fetched.
#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/files.h"
#include "base/log.h"
#include "node/cgroup.h"
#include "node/kubernetes_agent.h"
#include "node/metrics.h"
#include "page/grant.h"

namespace sluice::node {
namespace {

constexpr auto kLookEvery = std::chrono::seconds(1);

agent::Peer own_peer() {
  return {::getpid(), static_cast<int64_t>(::geteuid())};
}

}  // namespace

std::vector<PodOnNode> KubernetesAgent::pods_on_node() const {
  std::vector<PodOnNode> out;
  for (const LocalPodPtr& pod : pods_->all()) {
    PodOnNode one{pod->pod.uid, pod->pod.name_space, pod->pod.name, {}};
    for (const auto& [name, state] : pod->states) {
      if (!state.container_id.empty()) one.containers[state.container_id] = name;
    }
    out.push_back(std::move(one));
  }
  return out;
}

// Whether a container got what its spec says: seen in the mounts of a process of it, once per container. (A runtime
// with CDI switched off starts containers all the same.)
void KubernetesAgent::look_at_mounts(const std::vector<ContainerGrant>& grants) {
  std::set<std::string> unseen;
  {
    std::lock_guard guard(observe_mutex_);
    std::set<std::string> running;
    for (const ContainerGrant& grant : grants) {
      const bool guarded = !grant.container_id.empty() && !grant.whole_cards && grant.problem.empty();
      if (!guarded) continue;
      running.insert(grant.container_id);
      if (!mounted_.contains(grant.container_id)) unseen.insert(grant.container_id);
    }
    std::erase_if(mounted_, [&](const auto& entry) { return !running.contains(entry.first); });
  }
  if (unseen.empty()) return;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  while (const dirent* entry = ::readdir(proc)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    std::optional<ProcessSeen> process = look_at_process(std::strtol(entry->d_name, nullptr, 10));
    if (!process || !process->owner || !unseen.contains(process->owner->container_id)) continue;
    if (process->command.starts_with("runc")) continue;  // on its way into the container
    Result<std::string> mounts = read_file(fmt::format("/proc/{}/mountinfo", process->pid), 4 << 20);
    if (!mounts || mounts->empty()) continue;
    const bool mounted = mounts->find(fmt::format(" {} ", page::kUsagePath)) != std::string::npos;
    std::lock_guard guard(observe_mutex_);
    mounted_[process->owner->container_id] = mounted;
    unseen.erase(process->owner->container_id);
  }
  ::closedir(proc);
}

std::vector<ContainerGrant> KubernetesAgent::containers() {
  std::vector<ContainerGrant> grants = grants_->list();
  std::lock_guard guard(observe_mutex_);
  for (ContainerGrant& grant : grants) {
    auto seen = mounted_.find(grant.container_id);
    if (grant.problem.empty() && seen != mounted_.end() && !seen->second)
      grant.problem = "the container runs without its grant: CDI is switched off";
  }
  return grants;
}

void KubernetesAgent::observe_loop() {
  StrangerOptions options;
  options.policy = options_.stop_strangers ? StrangerPolicy::kStop : StrangerPolicy::kReport;
  options.exempt_namespaces = options_.exempt_namespaces;
  StrangerWatch watch(options);
  std::unique_lock lock(observe_mutex_);
  while (!observe_wake_.wait_for(lock, kLookEvery, [this] { return observe_stop_; })) {
    lock.unlock();
    // Outside the sharing modes the cards are somebody else's to give.
    StrangerWatch::Found found;
    if (is_sharing(mode_shown_.load()) && pods_->listed()) {
      const agent::ListAnswer list = node_->list(own_peer());
      const std::vector<ContainerGrant> grants = grants_->list();
      if (options_.delivery == DeliveryKind::kCdi) look_at_mounts(grants);
      const std::vector<PodOnNode> pods = pods_on_node();
      found = watch.look({&list.cards, &grants, &pods, [](int64_t pid) { return look_at_process(pid); }});
    }
    for (const ProcessSeen& process : found.to_stop) {
      if (!stop_process(process)) log::warning("a process could not be stopped", {{"pid", process.pid}});
    }
    for (const StrangerNews& news : found.news) {
      const Stranger& stranger = news.stranger;
      if (!stranger.pod.empty())
        events_->pod(stranger.name_space, stranger.pod, stranger.pod_uid, true, kStrangerReason, news.text);
      else
        events_->node(true, kStrangerReason, news.text);
    }
    lock.lock();
    strangers_ = std::move(found.present);
  }
}

std::string KubernetesAgent::metrics_text() {
  NodeSnapshot snapshot;
  snapshot.node_name = options_.node_name;
  snapshot.mode = mode_word(mode_shown_);
  snapshot.node = node_->list(own_peer());
  snapshot.containers = containers();
  snapshot.device_series = !options_.no_device_series;
  {
    std::lock_guard guard(observe_mutex_);
    snapshot.strangers = strangers_;
  }
  const PodGrants::Counters& counters = grants_->counters();
  auto seconds = [](uint64_t ns) { return static_cast<double>(ns) / 1e9; };
  auto add = [&](const char* name, const char* help, bool counter, double value) {
    snapshot.figures.push_back({name, help, counter, value});
  };
  add("sluice_agent_registered", "1 while the kubelet listens to every resource that this node's mode offers", false,
      ready_ ? 1 : 0);
  add("sluice_agent_registrations_total", "resources registered with the kubelet", true,
      static_cast<double>(registrations_.load()));
  add("sluice_agent_worker_restarts_total", "times the agent's worker was killed or crashed and was started again",
      true, static_cast<double>(plugins_->worker_restarts()));
  add("sluice_agent_allocate_total", "Allocate calls", true, static_cast<double>(counters.allocate_calls));
  add("sluice_agent_allocate_seconds_total", "time spent in Allocate calls", true, seconds(counters.allocate_ns));
  add("sluice_agent_pre_start_total", "PreStartContainer calls", true, static_cast<double>(counters.pre_start_calls));
  add("sluice_agent_pre_start_errors_total", "PreStartContainer calls that were refused; the kubelet tries again", true,
      static_cast<double>(counters.pre_start_errors));
  add("sluice_agent_pre_start_seconds_total", "time spent in PreStartContainer calls", true,
      seconds(counters.pre_start_ns));
  add("sluice_agent_pre_start_longest_seconds", "the longest PreStartContainer call so far", false,
      seconds(counters.pre_start_longest_ns));
  add("sluice_agent_kubelet_record_calls_total", "questions to the kubelet's PodResources", true,
      static_cast<double>(counters.record_calls));
  add("sluice_agent_bad_allocations_total", "pods' allocations whose signature or text did not hold", true,
      static_cast<double>(counters.bad_records));
  add("sluice_agent_pod_watch_age_seconds", "since the API server was last heard from about this node's pods", false,
      static_cast<double>(pod_watch_->age_ms()) / 1000);
  return node_metrics_text(snapshot);
}

}  // namespace sluice::node
