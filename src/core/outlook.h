// What the usual workload could still use of a node: FGD's idea of fragmentation with a longer outlook.
// docs/placement.md tells how the constants were found and what was tried beside them.
//
// FGD asks of each task class whether one more task fits: if it does, every card that could take it counts as usable,
// even where the node's CPU lasts for one task and seven cards stand idle. That damage shows only when the last CPU has
// gone, too late to avoid it. Here a class can use no more than the node's CPU lasts for:
//
//   usable(m) = cards that m fits on, in 1/1000 card, but at most (free CPU / CPU of m) x what one m takes
//   waste(node) = sum over m of popularity x (idle - [(1 - c) x FGD's usable(m) + c x usable(m)])
//
// Popularity is over the classes that ask for cards: those that do not would only shift every score alike.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/view.h"
#include "core/workload.h"

namespace sluice::core {

struct OutlookSettings {
  double cpu_outlook = 0;  // c above, 0..1; 0 is FGD's measure
  double imbalance = 0;    // times |free memory - free compute| of each card, in 1/1000 card
};

// Not thread-safe: begin() keeps the node at hand.
class Outlook {
 public:
  Outlook(Workload workload, OutlookSettings settings);

  // Sets the node that growth() speaks about. Its view must live on. A node's cards are taken to be of one model.
  void begin(const NodeView& node, const ModelTable& models);

  // waste after `shape` went onto the cards of `mask` less waste before, in 1/1000 card.
  double growth(const Shape& shape, uint32_t mask);

  // How scarce the cards of the node at hand are: demand over supply of its model, with each class's demand spread over
  // the cards of all models that it allows, 1 where every class allows every model.
  double scarcity() const { return tables_->scarcity; }

 private:
  struct ClassOnModel {
    double popularity;
    double value_per_cpu;  // 1/1000 card that one milli CPU lasts for; large for classes without CPU
    int64_t cpu_milli;
    int32_t cards;
    uint32_t level;
  };
  // Levels (distinct needs per card) as columns, so that one card is held against all of them in a few instructions.
  struct ModelTables {
    int32_t total_units = 0;  // of one card: the same model may be cut into other units on another node
    bool memory_only = false;
    double scarcity = 1;
    std::vector<int32_t> level_units, level_core_milli;
    std::vector<ClassOnModel> classes;  // those that allow this model
  };
  struct PerLevel {
    std::vector<int32_t> fitting;  // cards that could take it
    std::vector<double> usable;    // what is free on them
  };

  const ModelTables& tables_for(const NodeView& node, const ModelTable& models);
  ModelTables build(const NodeView& node, const ModelTable& models) const;
  void count(PerLevel& levels, const CardView& card, int32_t sign) const;
  double waste(const PerLevel& levels, double idle, int64_t free_cpu_milli) const;

  Workload workload_;  // only classes that ask for cards, popularity scaled to 1
  OutlookSettings settings_;
  std::vector<std::vector<std::unique_ptr<ModelTables>>> by_model_;  // per model the variants seen, few
  uint64_t capacity_version_ = 0;
  const NodeView* node_ = nullptr;
  const ModelTables* tables_ = nullptr;
  double before_ = 0;
  PerLevel now_, then_;
};

}  // namespace sluice::core
