#include "core/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/feasible.h"
#include "core/units.h"

namespace sluice::core {
namespace {

struct NamedPolicy {
  PolicyName name;
  const char* text;
};
constexpr NamedPolicy kPolicies[] = {
    {PolicyName::kDefault, "default"},   {PolicyName::kBinpack, "binpack"}, {PolicyName::kSpread, "spread"},
    {PolicyName::kFragmentation, "FGD"}, {PolicyName::kBestFit, "BestFit"},
};

// Free part of a card, 0..1, with memory and compute weighed; compute that nobody on this node is held to counts as
// memory does, else a memory-only node would look half empty for ever.
double free_part(const Node& node, const Card& card, double memory_weight) {
  double memory = card.units > 0 ? static_cast<double>(card.free_units) / static_cast<double>(card.units) : 0;
  if (node.mode == NodeMode::kMemory || node.mode == NodeMode::kShare) return memory;
  double core = static_cast<double>(card.free_core_milli) / kWholeCoreMilli;
  return memory_weight * memory + (1 - memory_weight) * core;
}

double taken_part(const Node& node, const Card& card, const Request& request, double memory_weight) {
  CardNeed need = card_need(card, request);
  double memory = card.units > 0 ? static_cast<double>(need.units) / static_cast<double>(card.units) : 0;
  if (node.mode == NodeMode::kMemory || node.mode == NodeMode::kShare) return memory;
  return memory_weight * memory + (1 - memory_weight) * static_cast<double>(need.core_milli) / kWholeCoreMilli;
}

int64_t thousandths(double part) {
  return std::llround(part * 1000);
}

}  // namespace

const char* to_string(PolicyName name) {
  for (const NamedPolicy& policy : kPolicies)
    if (policy.name == name) return policy.text;
  return "?";
}

Result<PolicyName> parse_policy(const std::string& name) {
  std::string known;
  for (const NamedPolicy& policy : kPolicies) {
    if (name == policy.text) return policy.name;
    known += (known.empty() ? "" : ", ") + std::string(policy.text);
  }
  return invalid(fmt::format("policy: needs one of {}, have '{}'", known, name));
}

std::vector<int32_t> choose_cards(const Node& node, const Request& request, std::vector<int32_t> candidates,
                                  CardOrder order, double memory_weight) {
  auto free = [&](int32_t position) {
    return free_part(node, node.cards[static_cast<size_t>(position)], memory_weight);
  };
  std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    return order == CardOrder::kSpread ? free(a) > free(b) : free(a) < free(b);
  });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(request.cards)));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

Scored score(const Node& node, const Request& request, const Policy& policy) {
  const bool spread = policy.name == PolicyName::kSpread;
  const double weight = std::clamp(policy.memory_weight, 0.0, 1.0);
  CardOrder order = node.card_order;
  if (order == CardOrder::kByPolicy) order = spread ? CardOrder::kSpread : CardOrder::kBinpack;
  Scored scored;
  scored.positions = choose_cards(node, request, fitting_cards(node, request), order, weight);
  double node_left = 0, card_left = 0, taken = 0;
  for (const Card& card : node.cards) node_left += free_part(node, card, weight);
  for (int32_t position : scored.positions) {
    const Card& card = node.cards[static_cast<size_t>(position)];
    double part = taken_part(node, card, request, weight);
    taken += part;
    card_left += free_part(node, card, weight) - part;
  }
  if (!scored.positions.empty()) card_left /= static_cast<double>(scored.positions.size());
  // Binpack: first the least left on the cards, then the least left on the node in cards. Spread: first the emptiest
  // node as a fraction, so that nodes of different sizes fill alike, then the emptiest card.
  double fraction = node.cards.empty() ? 0 : (node_left - taken) / static_cast<double>(node.cards.size());
  constexpr int64_t kStep = 100 * 1000;
  if (spread)
    scored.score = thousandths(fraction) * kStep + thousandths(card_left);
  else
    scored.score = -(thousandths(card_left) * kStep + thousandths(node_left - taken));
  return scored;
}

}  // namespace sluice::core
