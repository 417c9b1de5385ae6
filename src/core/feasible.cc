#include "core/feasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "core/units.h"

namespace sluice::core {
namespace {

struct RuleWords {
  Rule rule;
  const char* name;
  bool never;
};
constexpr RuleWords kRules[] = {
    {Rule::kMode, "mode", true},
    {Rule::kCardCount, "card-count", true},
    {Rule::kModel, "card-model", true},
    {Rule::kCardSize, "card-size", true},
    {Rule::kCpu, "cpu", false},
    {Rule::kMainMemory, "main-memory", false},
    {Rule::kCardHealth, "card-health", false},
    {Rule::kCardPods, "card-pods", false},
    {Rule::kCardMemory, "card-memory", false},
    {Rule::kCardCore, "card-compute", false},
    {Rule::kCardTogether, "card-together", false},
    {Rule::kWholeCards, "whole-cards", false},
};

const RuleWords& words_of(Rule rule) {
  return kRules[static_cast<size_t>(rule)];
}

bool model_allowed(const Card& card, const Request& request) {
  return request.models.empty() ||
         std::find(request.models.begin(), request.models.end(), card.model) != request.models.end();
}

int32_t core_need(const Request& request) {
  return request.kind == Kind::kWhole ? kWholeCoreMilli : request.core_milli;
}

// What the cards of a node have to say about one request, gathered in one pass: a filter that refuses thousands of
// nodes must be as quick as one that accepts them.
struct Census {
  int32_t allowed = 0;      // of an allowed model
  int32_t large = 0;        // and of enough units when empty
  int32_t healthy = 0;      // and healthy
  int32_t open = 0;         // and with room for one more pod
  int32_t memory_fits = 0;  // and with the memory free
  int32_t core_fits = 0;    // (open) and with the compute free
  int32_t fits = 0;         // and all of it at once
  int32_t sizes = 0, open_cards = 0;
  std::array<int64_t, kMaxCardsPerNode> units, free_units, free_core_milli;
};

Census census_of(const Node& node, const Request& request) {
  Census census;
  const size_t count = std::min<size_t>(node.cards.size(), kMaxCardsPerNode);
  for (size_t i = 0; i < count; ++i) {
    const Card& card = node.cards[i];
    if (!model_allowed(card, request)) continue;
    ++census.allowed;
    census.units[static_cast<size_t>(census.sizes++)] = card.units;
    const CardNeed need = card_need(card, request);
    if (card.units <= 0 || card.units < need.units) continue;
    ++census.large;
    if (!card.healthy) continue;
    ++census.healthy;
    const CardFree free = card_free(node, card);
    census.fits += card_fits(free, need);
    if (!free.open) continue;
    ++census.open;
    census.memory_fits += card.free_units >= need.units;
    census.core_fits += card.free_core_milli >= need.core_milli;
    census.free_units[static_cast<size_t>(census.open_cards)] = card.free_units;
    census.free_core_milli[static_cast<size_t>(census.open_cards++)] = card.free_core_milli;
  }
  return census;
}

// The k-th largest of the first `count` values, 0 when there are fewer: the most that each of k cards can give.
int64_t kth_largest(std::array<int64_t, kMaxCardsPerNode>& values, int32_t count, int32_t k) {
  if (count < k) return 0;
  std::nth_element(values.begin(), values.begin() + (k - 1), values.begin() + count, std::greater<>());
  return values[static_cast<size_t>(k - 1)];
}

std::optional<Refusal> card_refusal(const Node& node, const Request& request) {
  const int32_t k = request.cards;
  auto refuse = [&](Rule rule, int64_t need, int64_t have) {
    return Refusal{rule, need, have, k, node.mode, request.kind};
  };
  if (k > kMaxCardsPerNode) return refuse(Rule::kCardCount, k, static_cast<int64_t>(node.cards.size()));
  if (int32_t have = static_cast<int32_t>(node.cards.size()); have < k) return refuse(Rule::kCardCount, k, have);
  Census census = census_of(node, request);
  if (census.allowed < k) return refuse(Rule::kModel, k, census.allowed);
  if (census.large < k) return refuse(Rule::kCardSize, request.units, kth_largest(census.units, census.sizes, k));
  if (census.healthy < k) return refuse(Rule::kCardHealth, k, census.healthy);
  if (request.kind == Kind::kWhole)
    return census.fits < k ? std::optional(refuse(Rule::kWholeCards, k, census.fits)) : std::nullopt;
  if (census.open < k) return refuse(Rule::kCardPods, k, census.open);
  if (census.memory_fits < k)
    return refuse(Rule::kCardMemory, request.units, kth_largest(census.free_units, census.open_cards, k));
  if (census.core_fits < k)
    return refuse(Rule::kCardCore, request.core_milli / 10,
                  kth_largest(census.free_core_milli, census.open_cards, k) / 10);
  if (census.fits < k) return refuse(Rule::kCardTogether, k, census.fits);
  return std::nullopt;
}

std::string mode_text(const Refusal& refusal) {
  const char* offers = "nothing";
  switch (refusal.mode) {
    case NodeMode::kDefault:
      offers = "whole cards";
      break;
    case NodeMode::kMemory:
      offers = "memory only";
      break;
    case NodeMode::kCoreMemory:
      offers = "memory and compute";
      break;
    case NodeMode::kShare:
      offers = "memory only";
      break;
    case NodeMode::kNothing:
      break;
  }
  return fmt::format("node mode: needs a node for {}, mode {} has {}", to_string(refusal.kind), to_string(refusal.mode),
                     offers);
}

std::string cards_words(int32_t cards) {
  return cards == 1 ? "one card" : fmt::format("each of {} cards", cards);
}
std::string most_free_on(int32_t cards) {
  return cards == 1 ? "most free on any card" : fmt::format("most free on {} cards", cards);
}

}  // namespace

const char* to_string(Rule rule) {
  return words_of(rule).name;
}

bool Refusal::never() const {
  return words_of(rule).never;
}

bool mode_serves(NodeMode mode, bool mixed, Kind kind) {
  if (kind == Kind::kNone) return true;
  switch (mode) {
    case NodeMode::kDefault:
      return kind == Kind::kWhole;
    case NodeMode::kMemory:
      return kind == Kind::kMemory;
    case NodeMode::kCoreMemory:
      return kind == Kind::kMemoryCore || (mixed && kind == Kind::kMemory);
    case NodeMode::kShare:
      return kind == Kind::kMemory;
    case NodeMode::kNothing:
      return false;
  }
  return false;
}

CardFree card_free(const Node& node, const Card& card) {
  return {card.free_units, card.free_core_milli, card.healthy && card_open(card.pods, node.max_pods_per_card),
          card.pods == 0};
}

CardNeed card_need(const Card& card, const Request& request) {
  return {units_on(card, request), core_need(request), request.kind == Kind::kWhole};
}

std::optional<Refusal> refusal(const Node& node, const Request& request) {
  if (!mode_serves(node.mode, node.mixed, request.kind))
    return Refusal{Rule::kMode, 0, 0, request.cards, node.mode, request.kind};
  if (request.cards > 0) {
    // What can never fit comes before what may fit later, so that a refusal is final whenever it can be.
    std::optional<Refusal> cards = card_refusal(node, request);
    if (cards && cards->never()) return cards;
    if (request.cpu_milli > node.free_cpu_milli)
      return Refusal{Rule::kCpu, request.cpu_milli, node.free_cpu_milli, request.cards, node.mode, request.kind};
    if (request.memory_mib > node.free_memory_mib)
      return Refusal{Rule::kMainMemory, request.memory_mib, node.free_memory_mib,
                     request.cards,     node.mode,          request.kind};
    return cards;
  }
  if (request.cpu_milli > node.free_cpu_milli)
    return Refusal{Rule::kCpu, request.cpu_milli, node.free_cpu_milli, 0, node.mode, request.kind};
  if (request.memory_mib > node.free_memory_mib)
    return Refusal{Rule::kMainMemory, request.memory_mib, node.free_memory_mib, 0, node.mode, request.kind};
  return std::nullopt;
}

std::vector<int32_t> fitting_cards(const Node& node, const Request& request) {
  std::vector<int32_t> positions;
  for (size_t i = 0; i < node.cards.size(); ++i) {
    const Card& card = node.cards[i];
    if (model_allowed(card, request) && card.units > 0 && card_fits(card_free(node, card), card_need(card, request)))
      positions.push_back(static_cast<int32_t>(i));
  }
  return positions;
}

void merge(Refusal& best, const Refusal& other) {
  if (other.have > best.have) best = other;
}

std::string to_text(const Refusal& r, const std::string& unit) {
  switch (r.rule) {
    case Rule::kMode:
      return mode_text(r);
    case Rule::kModel:
      return fmt::format("card model: needs {} of an allowed model on one node, most on any node {}", r.need, r.have);
    case Rule::kCardCount:
      return fmt::format("card count: needs {} cards on one node, most on any node {}", r.need, r.have);
    case Rule::kCardSize:
      return fmt::format("card size: needs {} {} on {}, largest has {} {}", r.need, unit, cards_words(r.cards), r.have,
                         unit);
    case Rule::kCpu:
      return fmt::format("CPU: needs {} milli on one node, most free on any node {}", r.need, r.have);
    case Rule::kMainMemory:
      return fmt::format("main memory: needs {} MiB on one node, most free on any node {}", r.need, r.have);
    case Rule::kCardHealth:
      return fmt::format("card health: needs {} healthy on one node, most on any node {}", r.need, r.have);
    case Rule::kCardPods:
      return fmt::format("pods per card: needs {} with room for one more pod on one node, most on any node {}", r.need,
                         r.have);
    case Rule::kCardMemory:
      return fmt::format("card memory: needs {} {} on {}, {} {} {}", r.need, unit, cards_words(r.cards),
                         most_free_on(r.cards), r.have, unit);
    case Rule::kCardCore:
      return fmt::format("card compute: needs {} % on {}, {} {} %", r.need, cards_words(r.cards), most_free_on(r.cards),
                         r.have);
    case Rule::kCardTogether:
      return fmt::format(
          "card memory and compute together: needs {} with both free at once on one node, most on any "
          "node {}",
          r.need, r.have);
    case Rule::kWholeCards:
      return fmt::format("whole cards: needs {} with nothing on them on one node, most on any node {}", r.need, r.have);
  }
  return "?";
}

void RefusalSummary::add(const Refusal& refusal) {
  for (Refusal& known : best_) {
    if (known.rule != refusal.rule || (refusal.rule == Rule::kMode && known.mode != refusal.mode)) continue;
    merge(known, refusal);
    return;
  }
  best_.push_back(refusal);
  std::sort(best_.begin(), best_.end(),
            [](const Refusal& a, const Refusal& b) { return a.rule != b.rule ? a.rule > b.rule : a.mode < b.mode; });
}

std::string RefusalSummary::text(const std::string& unit) const {
  std::string joined;
  for (const Refusal& refusal : best_) joined += (joined.empty() ? "" : "; ") + to_text(refusal, unit);
  return joined;
}

}  // namespace sluice::core
