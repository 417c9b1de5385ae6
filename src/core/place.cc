#include "core/place.h"

namespace sluice::core {

Result<Placed> place(std::span<const Node> nodes, const Request& request, const Policy& policy,
                     const std::string& unit) {
  std::optional<Placed> best;
  int64_t best_score = 0;
  RefusalSummary refused;
  bool never = true;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (std::optional<Refusal> reason = refusal(nodes[i], request)) {
      refused.add(*reason);
      never = never && reason->never();
      continue;
    }
    Scored scored = score(nodes[i], request, policy);
    if (best && scored.score <= best_score) continue;
    best_score = scored.score;
    best = Placed{i, placement_on(nodes[i], request, scored.positions)};
  }
  if (best) return std::move(*best);
  if (nodes.empty()) return not_found("nodes: needs at least one node with cards, have none");
  return never ? invalid(refused.text(unit)) : exhausted(refused.text(unit));
}

}  // namespace sluice::core
