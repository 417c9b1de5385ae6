#include "replay/two_dim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/units.h"
#include "core/workload.h"
#include "replay/setup.h"

namespace sluice::replay {
namespace {

struct NamedSet {
  TwoDim set;
  const char* name;
};
constexpr NamedSet kSets[] = {
    {TwoDim::kProportional, "proportional"},
    {TwoDim::kDecorrelated, "decorrelated"},
    {TwoDim::kMemoryHeavy, "memory-heavy"},
};

constexpr int64_t kSmallestCardGib = 14;

// Piecewise linear through p10, p50 and p90, its ends continued in a straight line.
struct Percentiles {
  double p10, p50, p90;
  double at(double quantile) const {
    double value =
        quantile < 0.5 ? p10 + (quantile - 0.1) / 0.4 * (p50 - p10) : p50 + (quantile - 0.5) / 0.4 * (p90 - p50);
    return std::max(0.0, value);
  }
};
constexpr Percentiles kMemoryGb{23, 40, 48};
constexpr Percentiles kDutyPercent{0.4, 5.8, 11.5};

std::vector<std::string> models_of(const std::vector<TraceNode>& nodes) {
  std::vector<std::string> models;
  for (const TraceNode& node : nodes)
    if (std::find(models.begin(), models.end(), node.model) == models.end()) models.push_back(node.model);
  return models;
}

int64_t units_of_card(const std::string& model, TwoDim set) {
  const int64_t mib = model_memory_mib(model);
  return set == TwoDim::kProportional ? mib * kCardMilli : core::card_units(mib, core::kMibPerGib);
}

class Draw {
 public:
  explicit Draw(const std::vector<TracePod>& pods) {
    for (const TracePod& pod : pods)
      if (pod.cards > 0 && pod.card_milli < kCardMilli) shares_.push_back(pod.card_milli);
  }
  // Reproducible on every platform: the standard fixes mt19937's numbers, but not those of its distributions.
  double quantile() { return (static_cast<double>(random_()) + 0.5) / 4294967296.0; }
  int64_t share_milli() { return shares_[random_() % shares_.size()]; }

 private:
  std::mt19937 random_{20230801};
  std::vector<int64_t> shares_;
};

int64_t gib_of_part(double part) {
  return std::clamp<int64_t>(std::llround(std::ceil(part * kSmallestCardGib)), 1, kSmallestCardGib);
}

core::Request request_of(const TracePod& pod, const std::vector<std::string>& models, TwoDim set, Draw& draw) {
  core::Request request = one_dimensional_request(pod);
  if (pod.cards == 0) return request;
  if (set == TwoDim::kProportional || pod.card_milli == kCardMilli) {
    request.units = 0;
    for (const std::string& model : models)
      request.units_by_model.emplace_back(model, units_of_card(model, set) / kCardMilli * pod.card_milli);
    if (pod.card_milli == kCardMilli)
      for (auto& [model, units] : request.units_by_model) units = units_of_card(model, set);
    return request;
  }
  if (set == TwoDim::kDecorrelated) {
    request.units = gib_of_part(static_cast<double>(draw.share_milli()) / kCardMilli);
    return request;
  }
  request.units = gib_of_part(kMemoryGb.at(draw.quantile()) / kMemoryGb.at(1));
  const int64_t percent =
      std::llround(std::ceil(kDutyPercent.at(draw.quantile()) / core::kCorePercentStep)) * core::kCorePercentStep;
  request.core_milli = core::core_milli_from_percent(static_cast<int32_t>(std::max<int64_t>(percent, 5)));
  return request;
}

}  // namespace

Result<TwoDim> parse_two_dim(const std::string& name) {
  for (const NamedSet& set : kSets)
    if (name == set.name) return set.set;
  return invalid(fmt::format("two-dim: needs one of proportional, decorrelated, memory-heavy, have '{}'", name));
}

const char* to_string(TwoDim set) {
  for (const NamedSet& known : kSets)
    if (set == known.set) return known.name;
  return "?";
}

Result<Experiment> two_dimensional(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods,
                                   std::vector<uint32_t> arrivals, std::vector<uint32_t> ranks, TwoDim set) {
  Result<Experiment> built = one_dimensional(nodes, pods, std::move(arrivals), std::move(ranks));
  if (!built) return built;
  const std::vector<std::string> models = models_of(nodes);
  for (core::Node& node : built->nodes)
    for (core::Card& card : node.cards) card.units = card.free_units = units_of_card(card.model, set);
  Draw draw(pods);
  for (size_t i = 0; i < pods.size(); ++i) built->requests[i] = request_of(pods[i], models, set, draw);
  built->workload = core::learn_workload(built->requests);
  return built;
}

}  // namespace sluice::replay
