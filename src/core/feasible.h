// One feasibility rule for everything: filter, score, bind, stand-alone and replay ask here, so that they cannot
// differ. A refusal says which rule, what the request needs and the best that the node has; it is true at the moment it
// is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/node.h"
#include "core/request.h"

namespace sluice::core {

// In the order in which they are checked; the first one that fails is the refusal.
enum class Rule {
  kMode,       // the node offers nothing of this kind: never fits here
  kCardCount,  // fewer cards than asked for: never fits here
  kModel,      // fewer cards of an allowed model than asked for: never fits here
  kCardSize,   // more units than any card of the node has: never fits here
  kCpu,
  kMainMemory,
  kCardHealth,    // enough cards, not enough healthy ones
  kCardPods,      // max pods per card reached
  kCardMemory,    // card memory on enough cards
  kCardCore,      // compute on enough cards
  kCardTogether,  // memory here, compute there, but not on the same cards
  kWholeCards,    // cards with nothing on them
};
const char* to_string(Rule rule);  // short name for metrics: "card-memory"

struct Refusal {
  Rule rule = Rule::kMode;
  int64_t need = 0;                    // in the rule's own measure: units, percent, cards, CPU milli, MiB
  int64_t have = 0;                    // the best this node has in that measure
  int32_t cards = 1;                   // cards asked for
  NodeMode mode = NodeMode::kDefault;  // kMode: the node's mode
  Kind kind = Kind::kNone;             // kMode: the request's kind

  // True: no pod leaving this node would make it fit.
  bool never() const;
  bool operator==(const Refusal&) const = default;
};

// nullopt: it fits. kMode has need = have = 0.
std::optional<Refusal> refusal(const Node& node, const Request& request);

// The two tests that everything rests on, also used by the scoring code on its compact copies of nodes.
struct CardFree {
  int64_t units;
  int32_t core_milli;
  bool open;   // healthy and below max pods per card
  bool empty;  // no pod on it
};
struct CardNeed {
  int64_t units;
  int32_t core_milli;
  bool whole;
};
inline bool card_open(int32_t pods, int32_t max_pods) {
  return max_pods == 0 || pods < max_pods;
}
inline bool card_fits(const CardFree& free, const CardNeed& need) {
  return free.open && free.units >= need.units && free.core_milli >= need.core_milli && (!need.whole || free.empty);
}
CardFree card_free(const Node& node, const Card& card);
CardNeed card_need(const Card& card, const Request& request);
bool mode_serves(NodeMode mode, bool mixed, Kind kind);

// Positions in node.cards that can take one card's part of the request now. For a request that fits there are at least
// request.cards of them.
std::vector<int32_t> fitting_cards(const Node& node, const Request& request);

// The best of two refusals by the same rule (larger have), so that a text over many nodes does not depend on their
// order.
void merge(Refusal& best, const Refusal& other);

// "card memory: needs 10 GiB on one card, most free on any card 7 GiB". `unit` names the memory unit.
std::string to_text(const Refusal& refusal, const std::string& unit = "GiB");

// Refusals of many nodes in one sentence group: the rule that came closest to fitting first, one per rule.
class RefusalSummary {
 public:
  void add(const Refusal& refusal);
  bool empty() const { return best_.empty(); }
  const std::vector<Refusal>& by_rule() const { return best_; }  // ordered by rule, last checked first
  std::string text(const std::string& unit = "GiB") const;       // joined by "; "
 private:
  std::vector<Refusal> best_;
};

}  // namespace sluice::core
