#include "core/scorer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/default_policy.h"
#include "core/fragmentation.h"
#include "core/units.h"

namespace sluice::core {
namespace {

// A part of a card, 0..1, memory and compute weighed. Compute that nobody on the node is held to does not count, else a
// memory-only node would look half empty for ever.
double part(const NodeView& node, const CardView& card, int64_t units, int32_t core_milli, double weight) {
  double memory = card.total_units > 0 ? static_cast<double>(units) / card.total_units : 0;
  if (node.memory_only) return memory;
  return weight * memory + (1 - weight) * core_milli / kWholeCoreMilli;
}

double free_part(const NodeView& node, const CardView& card, double weight) {
  return part(node, card, card.units, card.core_milli, weight);
}

int32_t thousandths(double fraction) {
  return static_cast<int32_t>(std::lround(fraction * 1000));
}

// binpack: first the least left on the cards taken, then the least left on the node in cards. spread: first the
// emptiest node as a fraction, so that nodes of different sizes fill alike, then the emptiest card.
class FullnessScorer : public Scorer {
 public:
  FullnessScorer(bool spread, double weight) : spread_(spread), weight_(std::clamp(weight, 0.0, 1.0)) {}

  Choice score(const NodeView& node, const Shape& shape, uint32_t fitting, const ModelTable&) override {
    CardOrder order = node.card_order;
    if (order == CardOrder::kByPolicy) order = spread_ ? CardOrder::kSpread : CardOrder::kBinpack;
    Choice choice;
    choice.mask = choose_cards(node, shape, fitting, order, weight_);
    double node_left = 0, card_left = 0;
    for (int32_t i = 0; i < node.card_count; ++i) {
      const CardView& card = node.cards[static_cast<size_t>(i)];
      double left = free_part(node, card, weight_);
      if (choice.mask >> i & 1) {
        CardNeed need = shape.need(card);
        left -= part(node, card, need.units, need.core_milli, weight_);
        card_left += left;
      }
      node_left += left;
    }
    if (shape.cards > 0) card_left /= shape.cards;
    constexpr int32_t kStep = kMaxCardsPerNode * 1000 + 1;
    if (spread_)
      choice.score =
          thousandths(node.card_count > 0 ? node_left / node.card_count : 0) * kStep + thousandths(card_left);
    else
      choice.score = -(thousandths(card_left) * kStep + thousandths(node_left));
    return choice;
  }

 private:
  bool spread_;
  double weight_;
};

// The published baseline, scores in whole points of 100, the largest node of the trace (128 CPU, 8 cards) as the scale.
// Cards: the tightest that fits.
class BestFitScorer : public Scorer {
 public:
  Choice score(const NodeView& node, const Shape& shape, uint32_t fitting, const ModelTable&) override {
    Choice choice;
    choice.mask = choose_cards(node, shape, fitting, CardOrder::kBinpack, 0.5);
    double card_left = node.free_value;
    for (uint32_t rest = choice.mask; rest != 0; rest &= rest - 1) {
      const CardView& card = node.cards[static_cast<size_t>(std::countr_zero(rest))];
      CardNeed need = shape.need(card);
      card_left -= card_value(need.units, card.total_units, need.core_milli, node.memory_only);
    }
    const double cpu_left = static_cast<double>(node.free_cpu_milli - shape.cpu_milli);
    constexpr double kLargestCpuMilli = 128000, kLargestCardMilli = 8000;
    double filled = cpu_left / kLargestCpuMilli * 0.5 + card_left / kLargestCardMilli * 0.5;
    choice.score = static_cast<int32_t>((1 - filled) * 100);
    return choice;
  }
};

// FGD as published: the least growth of fragmentation, through a sigmoid into whole points 0..100 (50: no change, one
// point about 40/1000 card). The coarseness is what makes it good: equal nodes tie, and ties pile up.
class FragmentationScorer : public Scorer {
 public:
  explicit FragmentationScorer(Workload workload) : fragmentation_(std::move(workload)) {}

  Choice score(const NodeView& node, const Shape& shape, uint32_t fitting, const ModelTable& models) override {
    fragmentation_.begin(node, models);
    const double before = fragmentation_.of();
    auto points = [&](uint32_t mask) {
      double growth = fragmentation_.after(shape, mask) - before;
      return static_cast<int32_t>(1 / (1 + std::exp(growth / 1000)) * 100);
    };
    if (shape.cards != 1) {
      uint32_t mask = choose_cards(node, shape, fitting, CardOrder::kBinpack, 0.5);
      return {points(mask), mask};
    }
    Choice best{-1, 0};
    for (uint32_t rest = first_of_each_state(node, fitting); rest != 0; rest &= rest - 1) {
      const uint32_t mask = rest & (~rest + 1);
      int32_t score = points(mask);
      if (score > best.score) best = {score, mask};
    }
    return best;
  }

 private:
  Fragmentation fragmentation_;
};

}  // namespace

uint32_t choose_cards(const NodeView& node, const Shape& shape, uint32_t fitting, CardOrder order, double weight) {
  uint32_t mask = 0;
  for (int32_t taken = 0; taken < shape.cards; ++taken) {
    int best = -1;
    double best_free = 0;
    for (uint32_t rest = fitting & ~mask; rest != 0; rest &= rest - 1) {
      int position = std::countr_zero(rest);
      double free = free_part(node, node.cards[static_cast<size_t>(position)], weight);
      if (best < 0 || (order == CardOrder::kSpread ? free > best_free : free < best_free)) {
        best = position;
        best_free = free;
      }
    }
    mask |= 1u << best;
  }
  return mask;
}

uint32_t first_of_each_state(const NodeView& node, uint32_t fitting) {
  uint32_t firsts = 0;
  for (uint32_t rest = fitting; rest != 0; rest &= rest - 1) {
    const int position = std::countr_zero(rest);
    const CardView& card = node.cards[static_cast<size_t>(position)];
    bool seen = false;
    for (uint32_t lower = firsts; lower != 0 && !seen; lower &= lower - 1) {
      const CardView& other = node.cards[static_cast<size_t>(std::countr_zero(lower))];
      seen = other.units == card.units && other.core_milli == card.core_milli && other.model == card.model &&
             other.total_units == card.total_units;
    }
    if (!seen) firsts |= 1u << position;
  }
  return firsts;
}

Workload workload_for(const Policy& policy, std::span<const Request> requests) {
  return policy.name == PolicyName::kDefault ? learn_workload(requests, kDefaultCovered) : learn_workload(requests);
}

std::unique_ptr<Scorer> make_scorer(const Policy& policy, const std::optional<Workload>& workload) {
  switch (policy.name) {
    case PolicyName::kSpread:
      return std::make_unique<FullnessScorer>(true, policy.memory_weight);
    case PolicyName::kBestFit:
      return std::make_unique<BestFitScorer>();
    case PolicyName::kFragmentation:
      if (workload) return std::make_unique<FragmentationScorer>(*workload);
      break;
    case PolicyName::kDefault:
      if (workload) return make_default_scorer(*workload);
      break;
    case PolicyName::kBinpack:
      break;
  }
  return std::make_unique<FullnessScorer>(false, policy.memory_weight);
}

}  // namespace sluice::core
