#include "core/place.h"

#include <bit>
#include <memory>
#include <optional>

#include "core/scorer.h"
#include "core/view.h"

namespace sluice::core {

Result<Placed> place(std::span<const Node> nodes, const Request& request, const Policy& policy,
                     const std::string& unit) {
  ModelTable models;
  const std::unique_ptr<Scorer> scorer = make_scorer(policy);
  const Shape shape = make_shape(request, models);
  std::optional<Placed> best;
  int32_t best_score = 0;
  RefusalSummary refused;
  bool never = true;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (std::optional<Refusal> reason = refusal(nodes[i], request)) {
      refused.add(*reason);
      never = never && reason->never();
      continue;
    }
    const NodeView view = make_view(nodes[i], models);
    const std::optional<uint32_t> fitting = fitting_mask(view, shape);
    if (!fitting) continue;  // more cards than a node may have
    const Choice choice = scorer->score(view, shape, *fitting, models);
    if (best && choice.score <= best_score) continue;
    best_score = choice.score;
    std::vector<int32_t> positions;
    for (uint32_t rest = choice.mask; rest != 0; rest &= rest - 1) positions.push_back(std::countr_zero(rest));
    best = Placed{i, placement_on(nodes[i], request, positions)};
  }
  if (best) return std::move(*best);
  if (nodes.empty()) return not_found("nodes: needs at least one node with cards, have none");
  if (refused.empty()) return invalid("nodes: needs nodes with at most 32 cards");
  return never ? invalid(refused.text(unit)) : exhausted(refused.text(unit));
}

}  // namespace sluice::core
