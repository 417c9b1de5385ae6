#include "core/view.h"

#include <algorithm>

namespace sluice::core {

uint8_t ModelTable::intern(const std::string& model) {
  auto known = std::find(models_.begin(), models_.end(), model);
  if (known != models_.end()) return static_cast<uint8_t>(known - models_.begin());
  if (models_.size() == kMaxModels) return kMaxModels - 1;
  models_.push_back(model);
  cards_.push_back(0);
  return static_cast<uint8_t>(models_.size() - 1);
}

void ModelTable::count_cards(const Node& node, int64_t sign) {
  for (const Card& card : node.cards) cards_[intern(card.model)] += sign;
  if (!node.cards.empty()) ++capacity_version_;
}

NodeView make_view(const Node& node, ModelTable& models) {
  NodeView view;
  view.mode = node.mode;
  view.mixed = node.mixed;
  view.memory_only = node.mode == NodeMode::kMemory || node.mode == NodeMode::kShare;
  view.card_order = node.card_order;
  view.card_count = static_cast<int32_t>(std::min<size_t>(node.cards.size(), kMaxCardsPerNode));
  view.free_cpu_milli = node.free_cpu_milli;
  view.free_memory_mib = node.free_memory_mib;
  view.cpu_milli = node.cpu_milli;
  for (int32_t i = 0; i < view.card_count; ++i) {
    const Card& card = node.cards[static_cast<size_t>(i)];
    CardFree free = card_free(node, card);
    CardView& to = view.cards[static_cast<size_t>(i)];
    to.units = static_cast<int32_t>(free.units);
    to.total_units = static_cast<int32_t>(card.units);
    to.core_milli = free.core_milli;
    to.model = models.intern(card.model);
    to.open = free.open && card.units > 0;
    to.empty = free.empty;
    to.value = card_value(card.free_units, card.units, card.free_core_milli, view.memory_only);
    view.free_value += to.value;
  }
  return view;
}

bool same_state(const NodeView& a, const NodeView& b) {
  return a.mode == b.mode && a.mixed == b.mixed && a.card_order == b.card_order && a.card_count == b.card_count &&
         a.free_cpu_milli == b.free_cpu_milli && a.free_memory_mib == b.free_memory_mib && a.cpu_milli == b.cpu_milli &&
         std::equal(a.cards.begin(), a.cards.begin() + a.card_count, b.cards.begin());
}

uint64_t state_hash(const NodeView& node) {
  uint64_t hash = static_cast<uint64_t>(node.mode);
  auto add = [&hash](int64_t value) {
    hash ^= static_cast<uint64_t>(value) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdu;
  };
  add(node.free_cpu_milli);
  add(node.free_memory_mib);
  for (int32_t i = 0; i < node.card_count; ++i) {
    const CardView& card = node.cards[static_cast<size_t>(i)];
    add(int64_t{card.units} << 32 | card.core_milli);
    add(card.model);
  }
  return hash ^ hash >> 29;
}

Shape make_shape(const Request& request, ModelTable& models) {
  Shape shape;
  shape.kind = request.kind;
  shape.cards = request.cards;
  shape.units = static_cast<int32_t>(request.units);
  shape.core_milli = request.core_milli;
  shape.cpu_milli = request.cpu_milli;
  shape.memory_mib = request.memory_mib;
  if (!request.models.empty()) {
    shape.models = 0;
    for (const std::string& model : request.models) shape.models |= uint64_t{1} << models.intern(model);
  }
  for (const auto& [model, units] : request.units_by_model) {
    size_t id = models.intern(model);
    if (shape.units_by_model.size() <= id) shape.units_by_model.resize(id + 1, -1);
    shape.units_by_model[id] = static_cast<int32_t>(units);
  }
  return shape;
}

std::optional<uint32_t> fitting_mask(const NodeView& node, const Shape& shape) {
  if (shape.cpu_milli > node.free_cpu_milli || shape.memory_mib > node.free_memory_mib) return std::nullopt;
  if (shape.cards == 0) return 0u;
  if (shape.cards > node.card_count || !mode_serves(node.mode, node.mixed, shape.kind)) return std::nullopt;
  uint32_t mask = 0;
  for (int32_t i = 0; i < node.card_count; ++i) {
    const CardView& card = node.cards[static_cast<size_t>(i)];
    if ((shape.models >> card.model & 1) == 0) continue;
    if (card_fits({card.units, card.core_milli, card.open, card.empty}, shape.need(card))) mask |= 1u << i;
  }
  if (std::popcount(mask) < shape.cards) return std::nullopt;
  return mask;
}

}  // namespace sluice::core
