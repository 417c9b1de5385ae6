#include "node/local_pods.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "agent/protocol.h"
#include "base/json_find.h"
#include "base/log.h"
#include "node/delivery.h"

namespace sluice::node {
namespace {

constexpr size_t kMaxPods = 10'000;  // a node runs some hundred; more is a server that ignores the field selector

void read_states(const json::Object& status, LocalPod& out) {
  for (const char* key : {"initContainerStatuses", "containerStatuses"}) {
    const json::Array* list = json::find_array(status, key);
    if (list == nullptr) continue;
    for (const json::Value& item : *list) {
      if (!item.is_object()) continue;
      const json::Object& one = item.get_object();
      ContainerState state;
      state.container_id = json::find_text(one, "containerID");
      if (size_t scheme = state.container_id.find("://"); scheme != std::string::npos)
        state.container_id.erase(0, scheme + 3);
      state.restarts = json::find_int(one, "restartCount").value_or(0);
      if (const json::Object* now = json::find_object(one, "state"); now != nullptr) {
        state.running = json::find_object(*now, "running") != nullptr;
        if (const json::Object* waits = json::find_object(*now, "waiting"); waits != nullptr) {
          // containerd: "CDI device injection failed: unresolvable CDI devices sluice.dev/grant=..."
          const std::string message = json::find_text(*waits, "message");
          state.cdi_refused = message.find("CDI") != std::string::npos && message.find(kCdiKind) != std::string::npos;
        }
        if (const json::Object* ended = json::find_object(*now, "terminated"); ended != nullptr) {
          state.terminated = true;
          state.exit_code = json::find_int(*ended, "exitCode").value_or(0);
        }
      }
      out.states[json::find_text(one, "name")] = state;
    }
  }
}

// Weight, priority and the wish for no limits stand in the env of the pod's spec, where the API server keeps them from
// being changed; what a running container says of itself is not read.
void read_wishes(const json::Object& spec, LocalPod& out) {
  for (const char* key : {"initContainers", "containers"}) {
    const json::Array* list = json::find_array(spec, key);
    if (list == nullptr) continue;
    for (const json::Value& item : *list) {
      if (!item.is_object()) continue;
      const json::Array* env = json::find_array(item.get_object(), "env");
      if (env == nullptr) continue;
      LocalPod::Wishes wishes;
      for (const json::Value& variable : *env) {
        if (!variable.is_object()) continue;
        const std::string name = json::find_text(variable.get_object(), "name");
        const std::string value = json::find_text(variable.get_object(), "value");
        if (name == "ALIYUN_COM_GPU_SCHD_WEIGHT") {
          int64_t weight = 0;
          auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), weight);
          if (code == std::errc() && end == value.data() + value.size())
            wishes.weight = std::clamp<int64_t>(weight, 1, agent::kMaxWeight);
        }
        if (name == "ALIYUN_COM_GPU_HIGH_PRIO")
          wishes.high_priority = !value.empty() && value != "0" && value != "false";
        if (name == "CGPU_DISABLE") wishes.no_limits = value == "true" || value == "1";  // as cGPU reads it
      }
      if (wishes.weight != 1 || wishes.high_priority || wishes.no_limits)
        out.wishes[json::find_text(item.get_object(), "name")] = wishes;
    }
  }
}

// What the pod's containers ask for over all its cards. On how many cards that lies is the allocation's to say and the
// scheduler's to check; the label it comes from may be edited while the pod runs, and must not stop a restart then. So
// the fewest cards that carry the request stand for it.
Result<core::PodRequest> request_of(core::PodText text) {
  text.card_count.reset();
  Result<core::PodRequest> request = core::parse_pod(text);
  for (int32_t cards = 2; cards <= core::kMaxCardsPerNode; ++cards) {
    if (request) return request;
    text.card_count = std::to_string(cards);
    if (Result<core::PodRequest> more = core::parse_pod(text); more) return more;
  }
  return request;
}

}  // namespace

PodKind LocalPod::kind() const {
  switch (request.total.kind) {
    case core::Kind::kWhole:
      return PodKind::kWhole;
    case core::Kind::kMemory:
      return PodKind::kMemory;
    case core::Kind::kMemoryCore:
      return PodKind::kMemoryCore;
    case core::Kind::kNone:
      break;
  }
  return PodKind::kNone;
}

int64_t LocalPod::ids_wanted(const core::ContainerShare& share, const std::string& resource) const {
  if (resource == core::kResourceWholeCards) return share.whole_cards;
  if (resource == core::kResourceCore) return int64_t{share.core_milli} / 10 * request.total.cards;
  return share.units * request.total.cards;
}

Result<LocalPod> decode_local_pod(const json::Value& object) {
  Result<kube::Pod> pod = kube::decode_pod(object);
  if (!pod) return std::move(pod.error());
  LocalPod out;
  out.pod = std::move(*pod);
  Result<core::PodRequest> request = request_of(out.pod.text);
  if (request)
    out.request = std::move(*request);
  else
    out.request_problem = request.error().message;
  const json::Object& root = object.get_object();
  if (const json::Object* status = json::find_object(root, "status"); status != nullptr) read_states(*status, out);
  if (const json::Object* spec = json::find_object(root, "spec"); spec != nullptr) read_wishes(*spec, out);
  return out;
}

void LocalPods::put(const json::Value& object) {
  Result<LocalPod> decoded = decode_local_pod(object);
  if (!decoded) {
    log::warning("a pod cannot be read and is left out", {{"reason", decoded.error().message}});
    return;
  }
  std::string uid = decoded->pod.uid;
  if (pods_.size() >= kMaxPods && !pods_.contains(uid)) return;
  pods_[uid] = std::make_shared<const LocalPod>(std::move(*decoded));
}

void LocalPods::replaced(json::Array items) {
  {
    std::lock_guard guard(mutex_);
    pods_.clear();
    for (const json::Value& item : items) put(item);
    listed_ = true;
  }
  news_.notify_all();
  if (changed_) changed_();
}

void LocalPods::changed(json::Value object) {
  {
    std::lock_guard guard(mutex_);
    put(object);
  }
  news_.notify_all();
  if (changed_) changed_();
}

void LocalPods::deleted(json::Value object) {
  {
    std::lock_guard guard(mutex_);
    if (object.is_object()) {
      if (const json::Object* metadata = json::find_object(object.get_object(), "metadata"); metadata != nullptr)
        pods_.erase(json::find_text(*metadata, "uid"));
    }
  }
  news_.notify_all();
  if (changed_) changed_();
}

bool LocalPods::listed() const {
  std::lock_guard guard(mutex_);
  return listed_;
}

std::vector<LocalPodPtr> LocalPods::all() const {
  std::lock_guard guard(mutex_);
  std::vector<LocalPodPtr> out;
  for (const auto& [uid, pod] : pods_) out.push_back(pod);
  return out;
}

LocalPodPtr LocalPods::find(const std::string& uid) const {
  std::lock_guard guard(mutex_);
  auto found = pods_.find(uid);
  return found == pods_.end() ? nullptr : found->second;
}

LocalPodPtr LocalPods::newest(const LocalPodPtr& pod) const {
  LocalPodPtr newer = find(pod->pod.uid);
  if (newer == nullptr || newer->request.total != pod->request.total) return pod;
  auto same_name = [](const core::ContainerShare& a, const core::ContainerShare& b) { return a.name == b.name; };
  const auto& now = newer->request.shares;
  const auto& then = pod->request.shares;
  return std::equal(now.begin(), now.end(), then.begin(), then.end(), same_name) ? newer : pod;
}

LocalPodPtr LocalPods::wait_for(const std::string& name_space, const std::string& name, int timeout_ms) const {
  std::unique_lock lock(mutex_);
  LocalPodPtr found;
  news_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    for (const auto& [uid, pod] : pods_) {
      if (pod->pod.name == name && pod->pod.name_space == name_space && !pod->pod.terminal()) found = pod;
    }
    return found != nullptr;
  });
  return found;
}

}  // namespace sluice::node
