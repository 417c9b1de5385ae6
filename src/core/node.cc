#include "core/node.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"

namespace sluice::core {
namespace {

const Card* card_with_index(const Node& node, int32_t index) {
  for (const Card& card : node.cards)
    if (card.index == index) return &card;
  return nullptr;
}

Card* card_with_index(Node& node, int32_t index) {
  return const_cast<Card*>(card_with_index(static_cast<const Node&>(node), index));
}

// CPU and memory that somebody else counts stay unlimited.
int64_t moved(int64_t free, int64_t by) {
  return free == kUnlimited ? free : free + by;
}

Result<void> known_cards(const Node& node, const Placement& placement) {
  for (size_t i = 0; i < placement.shares.size(); ++i) {
    int32_t index = placement.shares[i].card_index;
    if (card_with_index(node, index) == nullptr)
      return not_found(
          fmt::format("node {}: needs a card with index {}, have {} cards", node.name, index, node.cards.size()));
    for (size_t j = 0; j < i; ++j)
      if (placement.shares[j].card_index == index)
        return invalid(fmt::format("placement: needs different cards, have card {} twice", index));
    if (placement.shares[i].units < 0 || placement.shares[i].core_milli < 0)
      return invalid(fmt::format("placement: needs amounts of 0 or more, have {} units and {} milli on card {}",
                                 placement.shares[i].units, placement.shares[i].core_milli, index));
  }
  if (placement.cpu_milli < 0 || placement.memory_mib < 0)
    return invalid("placement: needs CPU and main memory of 0 or more");
  return {};
}

}  // namespace

const char* to_string(NodeMode mode) {
  switch (mode) {
    case NodeMode::kDefault:
      return "default";
    case NodeMode::kMemory:
      return "cgpu";
    case NodeMode::kCoreMemory:
      return "core_mem";
    case NodeMode::kShare:
      return "share";
    case NodeMode::kNothing:
      return "disabled";
  }
  return "?";
}

Card make_card(int32_t index, std::string uuid, std::string model, int64_t memory_mib, int64_t unit_mib) {
  Card card;
  card.index = index;
  card.uuid = std::move(uuid);
  card.model = std::move(model);
  card.memory_mib = memory_mib;
  card.units = card_units(memory_mib, unit_mib);
  card.free_units = card.units;
  card.free_core_milli = kWholeCoreMilli;
  return card;
}

int64_t units_on(const Card& card, const Request& request) {
  if (request.kind == Kind::kWhole) return card.units;
  for (const auto& [model, units] : request.units_by_model)
    if (model == card.model) return units;
  return request.units;
}

Placement placement_on(const Node& node, const Request& request, const std::vector<int32_t>& positions) {
  Placement placement;
  placement.cpu_milli = request.cpu_milli;
  placement.memory_mib = request.memory_mib;
  placement.shares.reserve(positions.size());
  for (int32_t position : positions) {
    const Card& card = node.cards[static_cast<size_t>(position)];
    Share share;
    share.card_index = card.index;
    share.units = units_on(card, request);
    share.memory_mib = container_limit_mib(card.memory_mib, share.units, card.units);
    share.core_milli = request.kind == Kind::kWhole ? kWholeCoreMilli : request.core_milli;
    placement.shares.push_back(share);
  }
  return placement;
}

Result<void> take(Node& node, const Placement& placement) {
  if (Result<void> known = known_cards(node, placement); !known) return known;
  for (const Share& share : placement.shares) {
    const Card& card = *card_with_index(node, share.card_index);
    if (share.units > card.free_units)
      return exhausted(fmt::format("node {} card {}: needs {} units, have {} free of {}", node.name, card.index,
                                   share.units, card.free_units, card.units));
    if (share.core_milli > card.free_core_milli)
      return exhausted(fmt::format("node {} card {}: needs {} % compute, have {} free", node.name, card.index,
                                   share.core_milli / 10, card.free_core_milli / 10));
    if (node.max_pods_per_card > 0 && card.pods >= node.max_pods_per_card)
      return exhausted(fmt::format("node {} card {}: needs room for one more pod, have {} of at most {}", node.name,
                                   card.index, card.pods, node.max_pods_per_card));
  }
  if (placement.cpu_milli > node.free_cpu_milli || placement.memory_mib > node.free_memory_mib)
    return exhausted(fmt::format("node {}: needs {} milli CPU and {} MiB main memory, have {} and {}", node.name,
                                 placement.cpu_milli, placement.memory_mib, node.free_cpu_milli, node.free_memory_mib));
  for (const Share& share : placement.shares) {
    Card& card = *card_with_index(node, share.card_index);
    card.free_units -= share.units;
    card.free_core_milli -= share.core_milli;
    ++card.pods;
  }
  node.free_cpu_milli = moved(node.free_cpu_milli, -placement.cpu_milli);
  node.free_memory_mib = moved(node.free_memory_mib, -placement.memory_mib);
  return {};
}

Result<void> release(Node& node, const Placement& placement) {
  if (Result<void> known = known_cards(node, placement); !known) return known;
  for (const Share& share : placement.shares) {
    const Card& card = *card_with_index(node, share.card_index);
    if (card.free_units + share.units > card.units || card.free_core_milli + share.core_milli > kWholeCoreMilli ||
        card.pods < 1)
      return invalid(
          fmt::format("node {} card {}: needs a share that was taken, have {} units, {} % and {} pods taken "
                      "and {} units, {} % given back",
                      node.name, card.index, card.units - card.free_units,
                      (kWholeCoreMilli - card.free_core_milli) / 10, card.pods, share.units, share.core_milli / 10));
  }
  if (moved(node.free_cpu_milli, placement.cpu_milli) > node.cpu_milli ||
      moved(node.free_memory_mib, placement.memory_mib) > node.memory_mib)
    return invalid(fmt::format("node {}: more CPU or main memory given back than was taken", node.name));
  for (const Share& share : placement.shares) {
    Card& card = *card_with_index(node, share.card_index);
    card.free_units += share.units;
    card.free_core_milli += share.core_milli;
    --card.pods;
  }
  node.free_cpu_milli = moved(node.free_cpu_milli, placement.cpu_milli);
  node.free_memory_mib = moved(node.free_memory_mib, placement.memory_mib);
  return {};
}

}  // namespace sluice::core
