#include "accuracy/targets.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "accuracy/ideal.h"

namespace sluice::accuracy {

namespace {

constexpr size_t kLeastPhaseMs = 1000;
constexpr size_t kQueuedMs = 1000;

size_t to_ms(double seconds) {
  return static_cast<size_t>(seconds * 1000);
}

size_t end_ms(const Scenario& scenario, const ContainerSpec& spec) {
  double end_s = scenario.seconds;
  for (const std::optional<double>& end : {spec.stop_s, spec.kill_s, spec.freeze_s})
    end_s = std::min(end_s, end.value_or(end_s));
  return to_ms(end_s);
}

double percent_at(const ContainerSpec& spec, size_t ms) {
  double percent = spec.percent;
  for (const ContainerSpec::Change& change : spec.changes) {
    if (to_ms(change.at_s) <= ms) percent = change.percent;
  }
  return percent;
}

// Divides `room` by weight among those who want `most`; whoever wants less leaves the rest to the others.
std::vector<double> divide(double room, const std::vector<double>& weights, const std::vector<double>& most) {
  std::vector<double> parts(weights.size(), 0);
  std::vector<bool> full(weights.size(), false);
  for (size_t round = 0; round <= weights.size(); ++round) {
    double left = room;
    double weight = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (full[i]) left -= parts[i];
      if (!full[i]) weight += weights[i];
    }
    bool filled = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (full[i]) continue;
      parts[i] = weight > 0 ? std::max(0.0, left) * weights[i] / weight : 0;
      if (parts[i] < most[i]) continue;
      parts[i] = most[i];
      full[i] = filled = true;
    }
    if (!filled) break;
  }
  return parts;
}

// The state of a card at one time.
class Moment {
 public:
  Moment(const Scenario& scenario, uint32_t card, size_t ms, const std::vector<Uncapped>& uncapped)
      : scenario_(scenario), uncapped_(uncapped), quota_(scenario.containers.size(), 0), target_(quota_.size(), 0) {
    std::vector<core::ShareRequest> requests;
    for (size_t i = 0; i < quota_.size(); ++i) {
      const ContainerSpec& spec = scenario.containers[i];
      if (card >= spec.cards || to_ms(spec.start_s) > ms || spec.lives_s > 0) continue;
      members_.push_back(i);
      requests.push_back({static_cast<uint32_t>(percent_at(spec, ms) * 10 + 0.5), spec.weight, spec.high_priority});
    }
    const std::vector<uint32_t> shares = core::shares_of(scenario.policy, scenario.max_containers, requests);
    for (size_t i = 0; i < members_.size(); ++i) quota_[members_[i]] = scenario.gated ? shares[i] / 10.0 : 0;
    std::erase_if(members_, [&](size_t i) {
      return ms >= end_ms(scenario, scenario.containers[i]) || scenario.containers[i].lies != Lie::kNone;
    });
    set_targets();
  }
  double quota(size_t i) const { return quota_[i]; }
  double target(size_t i) const { return target_[i]; }
  bool saturated(size_t i) const { return uncapped_[i].least_100ms >= std::min(99.0, quota_[i] + 5); }

 private:
  void set_targets() {
    double capped = 0;
    for (const bool with_quota : {true, false}) {
      std::vector<size_t> who;
      std::vector<double> weights, most;
      for (const size_t i : members_) {
        if ((quota_[i] != 0) != with_quota) continue;
        who.push_back(i);
        const bool equal = scenario_.policy == core::ComputePolicy::kNative;
        weights.push_back(with_quota ? quota_[i] : equal ? 1.0 : scenario_.containers[i].weight);
        most.push_back(with_quota ? wanted(i) : uncapped_[i].mean_percent);
      }
      const std::vector<double> parts = scenario_.gated ? divide(100 - capped, weights, most) : most;
      for (size_t n = 0; n < who.size(); ++n) {
        target_[who[n]] = parts[n];
        capped += parts[n];
      }
    }
  }

  // Of a capped container on its own.
  double wanted(size_t i) const {
    const double quota = quota_[i];
    if (saturated(i)) return quota;
    // The model of the program is held against the program itself, run without the library.
    const ContainerSpec& spec = scenario_.containers[i];
    const double model = ideal_percent(spec, 0, scenario_.seconds, scenario_.seed);
    const double bucket = ideal_percent(spec, quota, scenario_.seconds, scenario_.seed);
    return model > 0 ? std::min(quota, bucket * uncapped_[i].mean_percent / model) : quota;
  }

  const Scenario& scenario_;
  const std::vector<Uncapped>& uncapped_;
  std::vector<size_t> members_;  // have work
  std::vector<double> quota_;
  std::vector<double> target_;
};

}  // namespace

std::vector<Phase> phases_of(const Scenario& scenario, size_t container, uint32_t card,
                             const std::vector<Uncapped>& uncapped) {
  const ContainerSpec& own = scenario.containers[container];
  const size_t end = end_ms(scenario, own);
  std::set<size_t> times = {to_ms(own.start_s)};
  for (const ContainerSpec& spec : scenario.containers) {
    times.insert({to_ms(spec.start_s), end_ms(scenario, spec)});
    for (const ContainerSpec::Change& change : spec.changes) times.insert(to_ms(change.at_s));
  }
  std::vector<Phase> phases;
  for (const size_t at : times) {
    if (at < to_ms(own.start_s) || at >= end) continue;
    const Moment moment(scenario, card, at, uncapped);
    Phase next = {at, end, moment.quota(container), moment.target(container), moment.saturated(container)};
    if (!phases.empty()) {
      const Phase& last = phases.back();
      if (last.quota_percent == next.quota_percent && std::abs(last.target_percent - next.target_percent) < 0.5)
        continue;
      const bool settles = last.quota_percent == 0 || next.quota_percent == last.quota_percent;
      phases.back().to_ms = at;
      if (settles) next.from_ms += kQueuedMs;
    }
    phases.push_back(next);
  }
  if (own.lives_s > 0) return {};
  for (Phase& phase : phases) phase.from_ms = std::max(phase.from_ms, to_ms(own.start_s) + kWarmUpMs);
  std::erase_if(phases, [](const Phase& phase) { return phase.from_ms + kLeastPhaseMs > phase.to_ms; });
  return phases;
}

}  // namespace sluice::accuracy
