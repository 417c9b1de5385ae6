// How much of a node's idle cards the usual workload cannot use: the fragmentation measure of FGD (Weng et al., "Beware
// of Fragmentation", USENIX ATC '23), held in two dimensions.
//
// For a task class m that does not fit on node n (CPU short, too few cards that fit, model not allowed, no card asked
// for) all idle capacity counts as fragment; for one that fits, the idle capacity of the cards that m cannot use. F_n
// is the mean over classes by popularity, in 1/1000 card. Idle capacity of a card is card_value(): with memory and
// compute in proportion, the measure is FGD's to the last bit. `imbalance` adds that many times |free memory - free
// compute| of each card, in 1/1000: a card with memory but no compute left serves nobody, and this sees it coming.
//
// The sum runs class by class into seven buckets and then over the buckets, as the published code does: scores are cut
// to whole points later and another order of summation moves some across a point.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/view.h"
#include "core/workload.h"

namespace sluice::core {

// A node's cards are taken to be of one model, the first card's; feasibility itself is exact for every card.
//
// Not thread-safe: begin() keeps the node at hand, so that many placements on one node are measured at the cost of what
// each changes.
class Fragmentation {
 public:
  explicit Fragmentation(Workload workload, double imbalance = 0);

  // Sets the node that of() and after() speak about. Its view must live on.
  void begin(const NodeView& node, const ModelTable& models);

  // The measure for the node as it is.
  double of() const;

  // The measure after `shape` went onto the cards of `mask` (each takes one card's part).
  double after(const Shape& shape, uint32_t mask);

 private:
  struct Level {  // a distinct per-card need
    int64_t units;
    int32_t core_milli;
    bool operator==(const Level&) const = default;
  };
  struct ClassOnModel {
    double popularity;
    int64_t cpu_milli;
    int32_t cards;
    uint16_t level;
    bool allowed;
  };
  struct ModelTables {
    int32_t total_units = 0;  // of one card: the same model may be cut into other units on another node
    std::vector<Level> levels;
    std::vector<ClassOnModel> classes;
  };
  struct PerLevel {
    int32_t fitting = 0;  // cards that could take it
    double unusable = 0;  // idle capacity of those that could not
  };

  const ModelTables& tables(const NodeView& node, const ModelTable& models);
  void count(std::vector<PerLevel>& levels, const CardView& card, int sign) const;
  double sum(const std::vector<PerLevel>& levels, double idle, double skew, int64_t free_cpu_milli) const;

  Workload workload_;
  double imbalance_;
  std::vector<std::vector<std::unique_ptr<ModelTables>>> by_model_;  // per model the variants seen, few
  const NodeView* node_ = nullptr;
  const ModelTables* tables_ = nullptr;
  std::vector<PerLevel> now_, then_;
};

}  // namespace sluice::core
