#include "core/default_policy.h"

#include <bit>
#include <cmath>
#include <limits>

#include "core/outlook.h"

namespace sluice::core {
namespace {

class DefaultScorer : public Scorer {
 public:
  DefaultScorer(Workload workload, const DefaultSettings& settings)
      : settings_(settings), outlook_(std::move(workload), {settings.cpu_outlook, settings.imbalance}) {}

  Choice score(const NodeView& node, const Shape& shape, uint32_t fitting, const ModelTable& models) override {
    outlook_.begin(node, models);
    if (shape.cards != 1 || node.card_order != CardOrder::kByPolicy) {
      const CardOrder order = node.card_order == CardOrder::kSpread ? CardOrder::kSpread : CardOrder::kBinpack;
      const uint32_t mask = choose_cards(node, shape, fitting, order, 0.5);
      return {points(node, shape, mask), mask};
    }
    Choice best{std::numeric_limits<int32_t>::min(), 0};
    for (uint32_t rest = first_of_each_state(node, fitting); rest != 0; rest &= rest - 1) {
      const uint32_t mask = rest & (~rest + 1);
      const int32_t score = points(node, shape, mask);
      if (score > best.score) best = {score, mask};
    }
    return best;
  }

 private:
  int32_t points(const NodeView& node, const Shape& shape, uint32_t mask) {
    double demand = 0, left = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const CardView& card = node.cards[static_cast<size_t>(std::countr_zero(rest))];
      const CardNeed need = shape.need(card);
      const double taken = card_value(need.units, card.total_units, need.core_milli, node.memory_only);
      demand += taken;
      left += card.value - taken;
    }
    double cost = outlook_.growth(shape, mask) + settings_.tightness * left;
    if (shape.cards > 0) cost += settings_.scarcity_price * demand * outlook_.scarcity();
    return -static_cast<int32_t>(std::floor(cost / settings_.step_milli + 0.5));
  }

  DefaultSettings settings_;
  Outlook outlook_;
};

}  // namespace

std::unique_ptr<Scorer> make_default_scorer(Workload workload, const DefaultSettings& settings) {
  return std::make_unique<DefaultScorer>(std::move(workload), settings);
}

}  // namespace sluice::core
