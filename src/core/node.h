// Cards and nodes as the placement sees them, and the bookkeeping of what is taken. Pure values: whoever owns a Node
// (the scheduler's cache, the agent, the replay) is its only writer.
//
// Memory is counted in units of the card, exactly as Kubernetes counts it, because MiB rounded per container could add
// up to a unit too many; MiB are derived (core/units.h). Compute is counted in 1/1000 of a card.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/request.h"

namespace sluice::core {

// What the node label ack.node.gpu.schedule makes of the node's cards.
enum class NodeMode {
  kDefault,     // whole cards
  kMemory,      // "cgpu": memory isolated, compute shared
  kCoreMemory,  // "core_mem": both isolated
  kShare,       // "share": scheduling only
  kNothing,     // "disabled", or a mode that offers no cards ("mps", "topology", "mig")
};
const char* to_string(NodeMode mode);  // the label's own words

// Which card inside the node: the label ack.node.gpu.placement; without it the policy decides.
enum class CardOrder { kByPolicy, kBinpack, kSpread };

struct Card {
  int32_t index = 0;  // the number that the allocation record names
  std::string uuid;
  std::string model;
  int64_t memory_mib = 0;  // of the whole card
  int64_t units = 0;       // of the whole card
  bool healthy = true;

  int64_t free_units = 0;
  int32_t free_core_milli = 1000;
  int32_t pods = 0;

  bool operator==(const Card&) const = default;
};

// A card with nothing taken. unit_mib as set by the cluster, 1024 unless said otherwise.
Card make_card(int32_t index, std::string uuid, std::string model, int64_t memory_mib, int64_t unit_mib = 1024);

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

struct Node {
  std::string name;
  NodeMode mode = NodeMode::kCoreMemory;
  CardOrder card_order = CardOrder::kByPolicy;
  int32_t max_pods_per_card = 20;  // 0: no limit
  bool mixed = false;              // memory-only pods may share what compute is left on a core_mem node
  // CPU and main memory; kUnlimited where somebody else (kube-scheduler) decides about them.
  int64_t cpu_milli = kUnlimited;
  int64_t memory_mib = kUnlimited;
  int64_t free_cpu_milli = kUnlimited;
  int64_t free_memory_mib = kUnlimited;
  std::vector<Card> cards;  // at most kMaxCardsPerNode

  bool operator==(const Node&) const = default;
};

// A part of one card.
struct Share {
  int32_t card_index = 0;  // Card::index
  int64_t units = 0;
  int64_t memory_mib = 0;  // the limit: container_limit_mib of this card
  int32_t core_milli = 0;  // 0: compute not limited

  bool operator==(const Share&) const = default;
};

// Where one request went on one node: enough to give it all back.
struct Placement {
  std::vector<Share> shares;  // one per card, in card order; empty for a request without cards
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;

  bool operator==(const Placement&) const = default;
};

// Units that the request takes of one such card (units_by_model first; all of it for whole cards).
int64_t units_on(const Card& card, const Request& request);

// The placement of `request` on the cards at these positions of node.cards (not card indexes). Checks nothing.
Placement placement_on(const Node& node, const Request& request, const std::vector<int32_t>& positions);

// Books a placement. An error (a card that is not there, more than is free, more pods than allowed) changes nothing.
Result<void> take(Node& node, const Placement& placement);

// Gives a placement back. An error (a card that is not there, more than was taken) changes nothing. take followed by
// release of the same placement leaves the node exactly as it was, in whatever order other pods come and go.
Result<void> release(Node& node, const Placement& placement);

}  // namespace sluice::core
