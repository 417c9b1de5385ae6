// Whose container is starting: what to ask the kubelet, how often, and what may be remembered. A live pod's complete
// record does not change, so it is asked for once and, before it decides anything, once more.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/files.h"
#include "node/pod_grants.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr auto kRateLimitPause = std::chrono::milliseconds(25);
constexpr int kRateLimitTries = 40;
constexpr auto kResortPause = std::chrono::milliseconds(500);  // each try asks the kubelet for its whole record
constexpr size_t kMaxCheckpointBytes = 64u << 20;
constexpr int64_t kListQuietMs = 50;  // kubernetes: List loses ids of an Allocate in flight

}  // namespace

int64_t PodGrants::quiet_ms() const {
  if (open_allocates_ > 0) return 0;
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
  return std::max<int64_t>(1, now - last_allocate_ms_);
}

void PodGrants::remember(const LocalPod& pod, const std::optional<RecordedPod>& record, Clock::time_point asked_at) {
  std::lock_guard guard(mutex_);
  if (!record) {
    known_.erase(pod.pod.uid);
    return;
  }
  bool complete = true;
  for (const char* resource : {core::kResourceMemory, core::kResourceWholeCards}) {
    const bool whole = std::string_view(resource) == core::kResourceWholeCards;
    if ((pod.kind() == PodKind::kWhole) == whole) complete = record_complete(pod, *record, resource);
  }
  known_[pod.pod.uid] = {*record, complete, asked_at};
}

// Pods that may own something: those that ask and have not ended.
std::vector<OwnerCandidate> PodGrants::candidates() {
  std::vector<LocalPodPtr> all = pods_.all();
  std::erase_if(all, [](const LocalPodPtr& pod) {
    return pod->pod.terminal() || (pod->kind() == PodKind::kNone && pod->request_problem.empty());
  });
  std::sort(all.begin(), all.end(), [](const LocalPodPtr& a, const LocalPodPtr& b) {
    return std::tie(a->pod.created_at, a->pod.uid) < std::tie(b->pod.created_at, b->pod.uid);
  });
  std::lock_guard guard(mutex_);
  std::vector<OwnerCandidate> out;
  for (LocalPodPtr& pod : all) {
    auto known = known_.find(pod->pod.uid);
    out.push_back({pod, known == known_.end() ? std::nullopt : std::optional(known->second.record)});
  }
  return out;
}

Result<void> PodGrants::ask_pod(const LocalPodPtr& pod) {
  std::lock_guard guard(asking_);
  for (int attempt = 0;; ++attempt) {
    const auto asked_at = Clock::now();
    ++counters_.record_calls;
    Result<std::optional<RecordedPod>> record = records_.get(pod->pod.name_space, pod->pod.name);
    if (record) {
      remember(*pod, *record, asked_at);
      return {};
    }
    if (record.error().code == ErrorCode::kInvalid) has_get_ = false;
    if (record.error().code != ErrorCode::kExhausted || attempt >= kRateLimitTries) return std::move(record.error());
    std::this_thread::sleep_for(kRateLimitPause);
  }
}

// Kubelets without Get: one List serves everybody who came before it was asked.
Result<void> PodGrants::ask_all(Clock::time_point arrived) {
  std::lock_guard guard(asking_);
  if (listed_at_ >= arrived) return {};
  if (quiet_ms() < kListQuietMs) {
    return unavailable("the kubelet is placing pods; its record is asked for when it has done");
  }
  const auto asked_at = Clock::now();
  ++counters_.record_calls;
  Result<std::vector<RecordedPod>> records = records_.list();
  if (!records) return std::move(records.error());
  for (const OwnerCandidate& candidate : candidates()) {
    const kube::Pod& pod = candidate.pod->pod;
    auto record = std::find_if(records->begin(), records->end(), [&](const RecordedPod& one) {
      return one.name == pod.name && one.name_space == pod.name_space;
    });
    remember(*candidate.pod, record == records->end() ? std::nullopt : std::optional(*record), asked_at);
  }
  listed_at_ = asked_at;
  return {};
}

// Asks for one pod after the other, the likeliest first, until an answer settles the question.
Result<Owner> PodGrants::ask_pods(const OwnerQuestion& question, Clock::time_point arrived) {
  auto fresh = [&](const LocalPodPtr& pod) {
    std::lock_guard guard(mutex_);
    auto known = known_.find(pod->pod.uid);
    return known != known_.end() && known->second.at >= arrived;
  };
  auto complete = [&](const LocalPodPtr& pod) {
    std::lock_guard guard(mutex_);
    auto known = known_.find(pod->pod.uid);
    return known != known_.end() && known->second.complete;
  };
  auto holds = [&](const OwnerCandidate& candidate) {
    return find_owner(question, {{candidate.pod, candidate.record}}).ok() && candidate.record &&
           std::any_of(candidate.record->containers.begin(), candidate.record->containers.end(),
                       [&](const RecordedContainer& container) {
                         auto ids = container.ids.find(question.resource);
                         return ids != container.ids.end() && ids->second == question.ids;
                       });
  };
  // What is remembered says where to look first; it is asked again before it counts.
  for (const OwnerCandidate& candidate : candidates()) {
    if (!holds(candidate)) continue;
    if (Result<void> asked = ask_pod(candidate.pod); !asked) return std::move(asked.error());
  }
  std::vector<OwnerCandidate> now = candidates();
  // Ids that were handed out once are one pod's; those that several slots share may be recorded for two pods, which
  // only the whole record shows.
  bool once = false;
  {
    std::lock_guard guard(mutex_);
    once = slots_.overlapping(question.resource, question.ids) <= 1;
  }
  bool settled = once && std::any_of(now.begin(), now.end(), holds);
  std::stable_partition(now.begin(), now.end(), [&](const OwnerCandidate& candidate) {
    const auto& shares = candidate.pod->request.shares;
    return std::any_of(shares.begin(), shares.end(), [&](const core::ContainerShare& share) {
      return candidate.pod->ids_wanted(share, question.resource) == static_cast<int64_t>(question.ids.size());
    });
  });
  for (const OwnerCandidate& candidate : now) {
    if (settled) break;
    if (complete(candidate.pod) || fresh(candidate.pod)) continue;
    if (Result<void> asked = ask_pod(candidate.pod); !asked) return std::move(asked.error());
    for (const OwnerCandidate& again : candidates()) settled = settled || (once && holds(again));
  }
  return find_owner(question, candidates());
}

Result<std::vector<CheckpointEntry>> PodGrants::checkpoint() const {
  Result<std::string> text = read_file(options_.checkpoint, kMaxCheckpointBytes);
  if (!text) return std::move(text.error());
  return parse_checkpoint(*text);
}

// Ids that the record does not show. Nothing here may hand a pod another's share: what the kubelet has not said is
// settled late, by elimination, or not at all.
Result<Owner> PodGrants::owner_off_record(const OwnerQuestion& question, bool last_resort) {
  Result<std::vector<CheckpointEntry>> entries = checkpoint();
  if (entries) {
    Result<Owner> owner = find_in_checkpoint(question, candidates(), *entries);
    if (owner || owner.error().code != ErrorCode::kNotFound || !last_resort) return owner;
  }
  if (!last_resort) return not_found("whose container this is, the kubelet's record does not say yet");
  std::lock_guard guard(asking_);
  if (quiet_ms() < kListQuietMs)
    return unavailable("the kubelet is placing pods; its record is asked for when it has done");
  ++counters_.record_calls;
  Result<std::vector<RecordedPod>> everybody = records_.list();
  if (!everybody) return std::move(everybody.error());
  return find_by_request(question, candidates(), *everybody);
}

Result<Owner> PodGrants::owner_of(const OwnerQuestion& question) {
  const auto began = Clock::now();
  const auto end = began + std::chrono::milliseconds(options_.owner_wait_ms);
  std::optional<Error> reason;  // the last one that says more than "nobody"
  auto next_resort = began + std::chrono::milliseconds(options_.last_resort_ms);
  while (true) {
    const auto arrived = Clock::now();
    Result<Owner> owner = internal("nobody was asked");
    if (has_get_) {
      owner = ask_pods(question, arrived);
    }
    if (!has_get_) {
      Result<void> asked = ask_all(arrived);
      owner = asked ? find_owner(question, candidates()) : Result<Owner>(std::move(asked.error()));
    }
    if (owner) {
      if (Result<std::vector<CheckpointEntry>> entries = checkpoint(); entries)
        owner = confirm_owner(question, std::move(*owner), *entries);
    }
    const bool contradiction = !owner && owner.error().code == ErrorCode::kUnavailable;
    if (!owner && owner.error().code == ErrorCode::kNotFound) {
      const bool last_resort = Clock::now() >= next_resort;
      if (last_resort) next_resort = Clock::now() + kResortPause;
      owner = owner_off_record(question, last_resort);
    }
    if (owner || owner.error().code == ErrorCode::kInvalid) return owner;
    if (owner.error().code != ErrorCode::kNotFound) reason = owner.error();
    if (Clock::now() >= end) return reason ? Result<Owner>(std::move(*reason)) : std::move(owner);
    // Two pods with one id, as remembered: one of them may have gone. What is known of both is asked anew.
    if (contradiction) {
      std::lock_guard guard(mutex_);
      known_.clear();
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace sluice::node
