#include "core/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sluice::core {
namespace {

constexpr size_t kLogSize = size_t{1} << 14;  // a shape not asked for during so many changes is scored anew

constexpr size_t kKnownStates = 1024;  // a power of two

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

int64_t key_with_rank(int32_t score, uint32_t tie_rank) {
  const uint32_t order = std::numeric_limits<uint32_t>::max() - tie_rank;
  return static_cast<int64_t>(uint64_t{static_cast<uint32_t>(score)} << 32 | order);
}

Result<void> acceptable(const Node& node) {
  if (node.cards.size() > static_cast<size_t>(kMaxCardsPerNode))
    return invalid(
        fmt::format("node {}: needs at most {} cards, have {}", node.name, kMaxCardsPerNode, node.cards.size()));
  for (const Card& card : node.cards)
    if (card.units < 0 || card.units > kMaxUnits || card.free_units > card.units || card.free_core_milli > 1000)
      return invalid(fmt::format("node {} card {}: needs 0 to {} units and no more free than there are, have {} of {}",
                                 node.name, card.index, kMaxUnits, card.free_units, card.units));
  return {};
}

}  // namespace

size_t Cluster::RequestHash::operator()(const Request& request) const {
  uint64_t hash = mixed(static_cast<uint64_t>(request.kind), static_cast<uint64_t>(request.cards));
  hash = mixed(hash, static_cast<uint64_t>(request.units));
  hash = mixed(hash, static_cast<uint64_t>(request.core_milli));
  hash = mixed(hash, static_cast<uint64_t>(request.cpu_milli));
  hash = mixed(hash, static_cast<uint64_t>(request.memory_mib));
  for (const std::string& model : request.models) hash = mixed(hash, std::hash<std::string>()(model));
  return hash;
}

Cluster::Cluster(std::unique_ptr<Scorer> scorer) : scorer_(std::move(scorer)), log_(kLogSize), known_(kKnownStates) {}

void Cluster::replace_scorer(std::unique_ptr<Scorer> scorer) {
  scorer_ = std::move(scorer);
  memos_.clear();
}

Result<NodeId> Cluster::add(Node node, uint32_t tie_rank) {
  if (Result<void> fine = acceptable(node); !fine) return fine.error();
  if (used_ >= kMaxNodes) return exhausted(fmt::format("cluster: needs at most {} nodes", kMaxNodes));
  NodeId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    id = static_cast<NodeId>(slots_.size());
    slots_.emplace_back();
    views_.emplace_back();
    stamp_.push_back(0);
    hashes_.push_back(0);
  }
  models_.count_cards(node, 1);
  slots_[id] = {std::move(node), tie_rank, true};
  ++used_;
  changed(id);
  return id;
}

void Cluster::remove(NodeId id) {
  if (!contains(id)) return;
  models_.count_cards(slots_[id].node, -1);
  slots_[id] = {};
  free_ids_.push_back(id);
  --used_;
  changed(id);
}

Result<void> Cluster::update(NodeId id, Node node) {
  if (!contains(id)) return not_found(fmt::format("cluster: needs a node with id {}", id));
  if (Result<void> fine = acceptable(node); !fine) return fine;
  const bool same_cards =
      std::equal(node.cards.begin(), node.cards.end(), slots_[id].node.cards.begin(), slots_[id].node.cards.end(),
                 [](const Card& a, const Card& b) { return a.model == b.model; });
  if (!same_cards) {
    models_.count_cards(slots_[id].node, -1);
    models_.count_cards(node, 1);
  }
  slots_[id].node = std::move(node);
  changed(id);
  return {};
}

void Cluster::changed(NodeId id) {
  views_[id] = make_view(slots_[id].node, models_);
  hashes_[id] = state_hash(views_[id]);
  log_[generation_ % kLogSize] = id;
  ++generation_;
}

std::optional<Choice> Cluster::choice_on(NodeId id, const Shape& shape) {
  if (!slots_[id].used) return std::nullopt;
  std::optional<uint32_t> fitting = fitting_mask(views_[id], shape);
  if (!fitting) return std::nullopt;
  return scorer_->score(views_[id], shape, *fitting, models_);
}

int64_t Cluster::key_of(NodeId id, const Shape& shape) {
  std::optional<Choice> choice = choice_on(id, shape);
  if (!choice) return kRefused;
  return key_with_rank(choice->score, slots_[id].tie_rank);
}

// As key_of, but a node in the same state as one that this refresh has scored takes its score.
int64_t Cluster::key_by_state(std::vector<int64_t>& keys, NodeId id, const Shape& shape) {
  Known& known = known_[hashes_[id] & (kKnownStates - 1)];
  if (known.refresh == refreshes_ && known.hash == hashes_[id] && slots_[id].used && slots_[known.node].used &&
      same_state(views_[known.node], views_[id])) {
    const int64_t key = keys[known.node];
    return key == kRefused ? kRefused : key_with_rank(score_of(key), slots_[id].tie_rank);
  }
  known = {refreshes_, hashes_[id], id};
  return key_of(id, shape);
}

Cluster::Memo& Cluster::memo_for(const Request& request) {
  auto found = memos_.find(request);
  if (found == memos_.end()) {
    const size_t bound = std::max(kMinShapes, kMaxRemembered / std::max<size_t>(1, slots_.size()));
    while (memos_.size() >= bound) {
      auto oldest = std::min_element(memos_.begin(), memos_.end(), [](const auto& a, const auto& b) {
        return a.second->last_used < b.second->last_used;
      });
      memos_.erase(oldest);
    }
    auto memo = std::make_unique<Memo>();
    memo->shape = make_shape(request, models_);
    found = memos_.emplace(request, std::move(memo)).first;
  }
  found->second->last_used = ++uses_;
  refresh(*found->second);
  return *found->second;
}

void Cluster::refresh(Memo& memo) {
  const size_t known = memo.keys.size();
  // How scarce a model is bears on every node's score.
  if (known == 0 || generation_ - memo.seen > kLogSize || memo.capacity_version != models_.capacity_version()) {
    ++refreshes_;
    memo.keys.resize(slots_.size());
    for (NodeId id = 0; id < slots_.size(); ++id) memo.keys[id] = key_by_state(memo.keys, id, memo.shape);
  } else {
    memo.keys.resize(slots_.size(), kRefused);
    ++refreshes_;
    // Newest change first: a node that changed several times is scored once.
    for (uint64_t change = generation_; change > memo.seen; --change) {
      NodeId id = log_[(change - 1) % kLogSize];
      if (stamp_[id] == refreshes_) continue;
      stamp_[id] = refreshes_;
      memo.keys[id] = key_by_state(memo.keys, id, memo.shape);
    }
  }
  memo.seen = generation_;
  memo.capacity_version = models_.capacity_version();
}

std::span<const int64_t> Cluster::keys(const Request& request) {
  return memo_for(request).keys;
}

std::optional<Decision> Cluster::decide(const Request& request) {
  Memo& memo = memo_for(request);
  int64_t best_key = kRefused;
  for (int64_t key : memo.keys) best_key = std::max(best_key, key);
  if (best_key == kRefused) return std::nullopt;
  const NodeId best = static_cast<NodeId>(std::find(memo.keys.begin(), memo.keys.end(), best_key) - memo.keys.begin());
  return decide_on(best, request);
}

std::optional<Decision> Cluster::decide_on(NodeId id, const Request& request) {
  if (!contains(id)) return std::nullopt;
  std::optional<Choice> choice = choice_on(id, make_shape(request, models_));
  if (!choice) return std::nullopt;
  std::vector<int32_t> positions;
  for (uint32_t rest = choice->mask; rest != 0; rest &= rest - 1) positions.push_back(std::countr_zero(rest));
  return Decision{id, choice->score, placement_on(slots_[id].node, request, positions)};
}

RefusalSummary Cluster::explain(const Request& request) const {
  RefusalSummary summary;
  for (const Slot& slot : slots_)
    if (slot.used)
      if (std::optional<Refusal> reason = refusal(slot.node, request)) summary.add(*reason);
  return summary;
}

Result<void> Cluster::take(NodeId id, const Placement& placement) {
  if (!contains(id)) return not_found(fmt::format("cluster: needs a node with id {}", id));
  Result<void> taken = core::take(slots_[id].node, placement);
  if (taken) changed(id);
  return taken;
}

Result<void> Cluster::release(NodeId id, const Placement& placement) {
  if (!contains(id)) return not_found(fmt::format("cluster: needs a node with id {}", id));
  Result<void> released = core::release(slots_[id].node, placement);
  if (released) changed(id);
  return released;
}

size_t Cluster::memory_bytes() const {
  size_t bytes =
      slots_.capacity() * (sizeof(Slot) + sizeof(NodeView) + sizeof(uint64_t)) + log_.size() * sizeof(NodeId);
  for (const Slot& slot : slots_) {
    bytes += slot.node.name.capacity() + slot.node.cards.capacity() * sizeof(Card);
    for (const Card& card : slot.node.cards) bytes += card.uuid.capacity() + card.model.capacity();
  }
  for (const auto& [request, memo] : memos_) bytes += sizeof(Memo) + sizeof(Request) + memo->keys.capacity() * 8;
  return bytes;
}

}  // namespace sluice::core
