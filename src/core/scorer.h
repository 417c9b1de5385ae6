// score(node, request) -> (score, cards) for every policy, on the compact views of core/view.h. The node is known to
// fit; the answer depends on nothing but node and request, so it can be remembered until the node changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/policy.h"
#include "core/view.h"
#include "core/workload.h"

namespace sluice::core {

struct Choice {
  int32_t score = 0;  // higher is better; only the order counts
  uint32_t mask = 0;  // bits of the cards, shape.cards of them
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  // `fitting` is fitting_mask(node, shape). Views and models must not change during the call.
  virtual Choice score(const NodeView& node, const Shape& shape, uint32_t fitting, const ModelTable& models) = 0;
};

// kFragmentation and kDefault look at a workload; without one they are binpack.
std::unique_ptr<Scorer> make_scorer(const Policy& policy, const std::optional<Workload>& workload = std::nullopt);

// The workload that this policy wants, learnt from requests seen: FGD as published covers 95 % of them, ours more.
Workload workload_for(const Policy& policy, std::span<const Request> requests);

// The cards of `fitting` that binpack (least free) or spread (most free) takes; the lowest number on a tie. `weight` is
// what memory counts against compute, 0..1.
uint32_t choose_cards(const NodeView& node, const Shape& shape, uint32_t fitting, CardOrder order, double weight);

// Of the cards of `fitting`, one of each state, the lowest numbered: cards in the same state give the same score, and
// the lowest number wins a tie.
uint32_t first_of_each_state(const NodeView& node, uint32_t fitting);

}  // namespace sluice::core
