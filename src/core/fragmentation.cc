#include "core/fragmentation.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice::core {
namespace {

// The published code's buckets, in its order of summation; kSatisfied is what the measure leaves out.
enum Bucket { kLacksBoth, kLacksCards, kSatisfied, kLacksCpu, kNoCardAsked, kNoCardAskedLacksCpu, kNoAccess, kBuckets };

double skew_of(const CardView& card, bool memory_only) {
  if (memory_only || card.total_units == 0) return 0;
  return std::abs(1000.0 * card.units / card.total_units - card.core_milli);
}

}  // namespace

Fragmentation::Fragmentation(Workload workload, double imbalance)
    : workload_(std::move(workload)), imbalance_(imbalance), by_model_(ModelTable::kMaxModels) {}

const Fragmentation::ModelTables& Fragmentation::tables(const NodeView& node, const ModelTable& models) {
  const uint8_t model = node.card_count > 0 ? node.cards[0].model : uint8_t{0};
  const int32_t total_units = node.card_count > 0 ? node.cards[0].total_units : 0;
  for (const auto& known : by_model_[model])
    if (known->total_units == total_units) return *known;
  by_model_[model].push_back(std::make_unique<ModelTables>());
  ModelTables& tables = *by_model_[model].back();
  tables.total_units = total_units;
  const std::string name = model < models.size() ? models.name(model) : "";
  for (const TaskClass& task : workload_.classes) {
    const Request& request = task.request;
    Card card;
    card.model = name;
    card.units = total_units;
    CardNeed need = card_need(card, request);
    Level level{need.units, need.core_milli};
    auto known = std::find(tables.levels.begin(), tables.levels.end(), level);
    if (known == tables.levels.end()) known = tables.levels.insert(known, level);
    bool allowed =
        request.models.empty() || std::find(request.models.begin(), request.models.end(), name) != request.models.end();
    tables.classes.push_back({task.popularity, request.cpu_milli, request.cards,
                              static_cast<uint16_t>(known - tables.levels.begin()), allowed});
  }
  return tables;
}

void Fragmentation::count(std::vector<PerLevel>& levels, const CardView& card, int sign) const {
  for (size_t i = 0; i < levels.size(); ++i) {
    const Level& level = tables_->levels[i];
    const bool fits = card.open && card.units >= level.units && card.core_milli >= level.core_milli;
    levels[i].fitting += fits ? sign : 0;
    levels[i].unusable += fits ? 0.0 : sign * card.value;
  }
}

double Fragmentation::sum(const std::vector<PerLevel>& levels, double idle, double skew, int64_t free_cpu_milli) const {
  std::array<double, kBuckets> buckets{};
  for (const ClassOnModel& task : tables_->classes) {
    const bool cpu = free_cpu_milli >= task.cpu_milli;
    const PerLevel& level = levels[task.level];
    Bucket bucket;
    double fragment = idle;
    if (task.cards == 0) {
      bucket = cpu ? kNoCardAsked : kNoCardAskedLacksCpu;
    } else if (!task.allowed) {
      bucket = kNoAccess;
    } else if (level.fitting < task.cards) {
      bucket = cpu ? kLacksCards : kLacksBoth;
    } else if (!cpu) {
      bucket = kLacksCpu;
    } else {
      bucket = kLacksCards;
      fragment = level.unusable;
    }
    buckets[bucket] += task.popularity * fragment;
  }
  double total = 0;
  for (double bucket : buckets) total += bucket;
  return imbalance_ == 0 ? total : total + imbalance_ * skew;
}

void Fragmentation::begin(const NodeView& node, const ModelTable& models) {
  node_ = &node;
  tables_ = &tables(node, models);
  now_.assign(tables_->levels.size(), {});
  for (int32_t i = 0; i < node.card_count; ++i) count(now_, node.cards[static_cast<size_t>(i)], 1);
}

double Fragmentation::of() const {
  double skew = 0;
  if (imbalance_ != 0)
    for (int32_t i = 0; i < node_->card_count; ++i)
      skew += skew_of(node_->cards[static_cast<size_t>(i)], node_->memory_only);
  return sum(now_, node_->free_value, skew, node_->free_cpu_milli);
}

double Fragmentation::after(const Shape& shape, uint32_t mask) {
  then_ = now_;
  double idle = node_->free_value;
  double skew = 0;
  for (int32_t i = 0; i < node_->card_count; ++i) {
    const CardView& before = node_->cards[static_cast<size_t>(i)];
    if ((mask >> i & 1) == 0) {
      if (imbalance_ != 0) skew += skew_of(before, node_->memory_only);
      continue;
    }
    CardView card = before;
    CardNeed need = shape.need(card);
    card.units -= static_cast<int32_t>(need.units);
    card.core_milli -= need.core_milli;
    card.value = card_value(card.units, card.total_units, card.core_milli, node_->memory_only);
    count(then_, before, -1);
    count(then_, card, 1);
    idle += card.value - before.value;
    if (imbalance_ != 0) skew += skew_of(card, node_->memory_only);
  }
  return sum(then_, idle, skew, node_->free_cpu_milli - shape.cpu_milli);
}

}  // namespace sluice::core
