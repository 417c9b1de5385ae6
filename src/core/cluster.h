// Many nodes, many decisions. Per request shape the score of every node is remembered; a decision re-scores only the
// nodes that changed since that shape was last asked for, then takes the largest of one flat array. Everything
// considered, nothing sampled.
//
// Order: higher score first, then lower tie rank, then lower id. One owner; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "core/feasible.h"
#include "core/node.h"
#include "core/scorer.h"
#include "core/view.h"

namespace sluice::core {

using NodeId = uint32_t;

struct Decision {
  NodeId node = 0;
  int32_t score = 0;
  Placement placement;
};

class Cluster {
 public:
  static constexpr size_t kMaxNodes = 1u << 20;
  static constexpr size_t kMaxRemembered = size_t{1} << 23;  // scores over all shapes, 8 bytes each
  static constexpr size_t kMinShapes = 64;                   // remembered whatever the number of nodes

  explicit Cluster(std::unique_ptr<Scorer> scorer);

  // Another policy, or the same with a workload learnt anew; forgets all scores.
  void replace_scorer(std::unique_ptr<Scorer> scorer);

  // A node gets an id, used again after remove(). `tie_rank`: the lower wins among equal scores.
  Result<NodeId> add(Node node, uint32_t tie_rank);
  void remove(NodeId id);
  // Replaces a node's description and state.
  Result<void> update(NodeId id, Node node);
  bool contains(NodeId id) const { return id < slots_.size() && slots_[id].used; }
  const Node& node(NodeId id) const { return slots_[id].node; }
  size_t size() const { return used_; }
  // Grows by one with every change of any node.
  uint64_t generation() const { return generation_; }

  // The best node of all and the cards there; books nothing. nullopt: fits nowhere, explain() says why.
  std::optional<Decision> decide(const Request& request);

  // Per id: the sortable key of that node for this request, kRefused where it does not fit; higher is better. Valid
  // until the next call of any kind.
  static constexpr int64_t kRefused = INT64_MIN;
  std::span<const int64_t> keys(const Request& request);
  static int32_t score_of(int64_t key) { return static_cast<int32_t>(key >> 32); }

  // Score and cards on one node; a Refusal if it does not fit.
  std::optional<Decision> decide_on(NodeId id, const Request& request);
  RefusalSummary explain(const Request& request) const;

  Result<void> take(NodeId id, const Placement& placement);
  Result<void> release(NodeId id, const Placement& placement);

  const ModelTable& models() const { return models_; }
  const NodeView& view(NodeId id) const { return views_[id]; }
  // Bytes held for nodes and for remembered scores.
  size_t memory_bytes() const;

 private:
  struct RequestHash {
    size_t operator()(const Request& request) const;
  };
  struct Slot {
    Node node;
    uint32_t tie_rank = 0;
    bool used = false;
  };
  struct Memo {
    Shape shape;
    std::vector<int64_t> keys;
    uint64_t seen = 0;  // position in the log of changes up to which keys are right
    uint64_t capacity_version = 0;
    uint64_t last_used = 0;
  };

  void changed(NodeId id);
  Memo& memo_for(const Request& request);
  void refresh(Memo& memo);
  int64_t key_of(NodeId id, const Shape& shape);
  int64_t key_by_state(std::vector<int64_t>& keys, NodeId id, const Shape& shape);
  std::optional<Choice> choice_on(NodeId id, const Shape& shape);

  std::unique_ptr<Scorer> scorer_;
  ModelTable models_;
  std::vector<Slot> slots_;
  std::vector<NodeView> views_;
  std::vector<NodeId> free_ids_;
  size_t used_ = 0;
  uint64_t generation_ = 0;
  std::vector<NodeId> log_;      // ring: the node that change number n touched is log_[n % size]
  std::vector<uint64_t> stamp_;  // per node: the refresh that re-scored it last
  uint64_t refreshes_ = 0;
  // What this refresh has scored already, by the state of the node: most nodes of a cluster are alike.
  struct Known {
    uint64_t refresh = 0;
    uint64_t hash = 0;
    NodeId node = 0;
  };
  std::vector<Known> known_;
  std::vector<uint64_t> hashes_;  // per node: state_hash of its view
  uint64_t uses_ = 0;
  std::unordered_map<Request, std::unique_ptr<Memo>, RequestHash> memos_;
};

}  // namespace sluice::core
