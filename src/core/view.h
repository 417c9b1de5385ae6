// Nodes and requests as the scoring code reads them: flat numbers, card models as small integers. A decision looks at
// every node, so what it reads must be compact; the words (names, UUIDs) stay in core/node.h.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/feasible.h"
#include "core/node.h"
#include "core/request.h"

namespace sluice::core {

// Card models by number. Grows as models appear; at most 64, later ones share the last number and are then told apart
// by refusal() alone (a cluster with 64 card models does not exist).
class ModelTable {
 public:
  static constexpr size_t kMaxModels = 64;
  uint8_t intern(const std::string& model);
  size_t size() const { return models_.size(); }
  const std::string& name(size_t id) const { return models_[id]; }

  // Cards of each model in the whole cluster, for policies that ask how scarce a model is. `capacity_version` changes
  // with every change of a number.
  void count_cards(const Node& node, int64_t sign);
  int64_t cards(size_t id) const { return cards_[id]; }
  uint64_t capacity_version() const { return capacity_version_; }

 private:
  std::vector<std::string> models_;
  std::vector<int64_t> cards_;
  uint64_t capacity_version_ = 0;
};

struct CardView {
  int32_t units = 0;  // free
  int32_t total_units = 0;
  int32_t core_milli = 0;  // free
  uint8_t model = 0;
  bool open = true;
  bool empty = true;
  double value = 0;  // what is free, in 1/1000 of a card: card_value()

  bool operator==(const CardView&) const = default;
};

struct NodeView {
  NodeMode mode = NodeMode::kCoreMemory;
  bool mixed = false;
  bool memory_only = false;  // compute is not counted on this node
  CardOrder card_order = CardOrder::kByPolicy;
  int32_t card_count = 0;
  int64_t free_cpu_milli = 0;
  int64_t free_memory_mib = 0;
  int64_t cpu_milli = 0;  // of the whole node
  double free_value = 0;  // sum over cards
  std::array<CardView, kMaxCardsPerNode> cards;
};

// A request with its models as bits.
struct Shape {
  Kind kind = Kind::kNone;
  int32_t cards = 0;
  int32_t units = 0;
  int32_t core_milli = 0;
  uint64_t models = ~uint64_t{0};  // bit per ModelTable number
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  std::vector<int32_t> units_by_model;  // empty, or per ModelTable number; -1: `units`

  CardNeed need(const CardView& card) const {
    if (kind == Kind::kWhole) return {card.total_units, 1000, true};
    int32_t wanted = units;
    if (card.model < units_by_model.size() && units_by_model[card.model] >= 0) wanted = units_by_model[card.model];
    return {wanted, core_milli, false};
  }
};

// Free capacity of a card in 1/1000 card: the mean of its free memory and its free compute, each as a part of the
// whole. With memory and compute in proportion this is exactly the one number of a one-dimensional trace.
inline double card_value(int64_t units, int64_t total_units, int32_t core_milli, bool memory_only) {
  double memory = total_units > 0 ? 1000.0 * static_cast<double>(units) / static_cast<double>(total_units) : 0.0;
  return memory_only ? memory : 0.5 * memory + 0.5 * core_milli;
}

// Nodes in the same state get the same answer to every request, whatever their names. The hash is equal where this is
// true.
bool same_state(const NodeView& a, const NodeView& b);
uint64_t state_hash(const NodeView& node);

NodeView make_view(const Node& node, ModelTable& models);
Shape make_shape(const Request& request, ModelTable& models);

// Bits of the cards that can take one card's part; nullopt when the node cannot take the request. The same answer as
// refusal(), from the same tests.
std::optional<uint32_t> fitting_mask(const NodeView& node, const Shape& shape);

}  // namespace sluice::core
