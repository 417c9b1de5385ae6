#include "core/outlook.h"

#include <algorithm>
#include <cmath>

namespace sluice::core {
namespace {

bool allows(const Request& request, const std::string& model) {
  return request.models.empty() ||
         std::find(request.models.begin(), request.models.end(), model) != request.models.end();
}

double skew_of(const CardView& card, bool memory_only) {
  if (memory_only || card.total_units == 0) return 0;
  return std::abs(1000.0 * card.units / card.total_units - card.core_milli);
}

// Cards asked for, in 1/1000; a share counts as its compute, or as a whole card where it asks for none.
double demand(const TaskClass& task) {
  const int32_t core = task.request.core_milli > 0 ? task.request.core_milli : 1000;
  return task.popularity * task.request.cards * core;
}

// Demand over supply of one model, relative to the whole cluster's.
double scarcity_of(const std::string& model, const Workload& workload, const ModelTable& models) {
  double all_cards = 0, all_demand = 0, scarcity = 0;
  for (size_t id = 0; id < models.size(); ++id) all_cards += static_cast<double>(models.cards(id));
  for (const TaskClass& task : workload.classes) all_demand += demand(task);
  if (all_cards <= 0 || all_demand <= 0) return 1;
  for (const TaskClass& task : workload.classes) {
    if (!allows(task.request, model)) continue;
    double allowed_cards = 0;
    for (size_t id = 0; id < models.size(); ++id)
      if (allows(task.request, models.name(id))) allowed_cards += static_cast<double>(models.cards(id));
    if (allowed_cards > 0) scarcity += demand(task) / all_demand * all_cards / allowed_cards;
  }
  return scarcity;
}

}  // namespace

Outlook::Outlook(Workload workload, OutlookSettings settings) : settings_(settings) {
  double popularity = 0;
  for (TaskClass& task : workload.classes) {
    if (task.request.cards == 0) continue;
    popularity += task.popularity;
    workload_.classes.push_back(std::move(task));
  }
  for (TaskClass& task : workload_.classes) task.popularity /= popularity;
  by_model_.resize(ModelTable::kMaxModels);
}

Outlook::ModelTables Outlook::build(const NodeView& node, const ModelTable& models) const {
  const std::string& name = models.name(node.cards[0].model);
  const int32_t total_units = node.cards[0].total_units;
  ModelTables tables;
  tables.total_units = total_units;
  tables.memory_only = node.memory_only;
  tables.scarcity = scarcity_of(name, workload_, models);
  for (const TaskClass& task : workload_.classes) {
    const Request& request = task.request;
    if (!allows(request, name)) continue;
    Card card;
    card.model = name;
    card.units = total_units;
    const CardNeed need = card_need(card, request);
    const int32_t units = static_cast<int32_t>(need.units);
    size_t level = 0;
    while (level < tables.level_units.size() &&
           (tables.level_units[level] != units || tables.level_core_milli[level] != need.core_milli))
      ++level;
    if (level == tables.level_units.size()) {
      tables.level_units.push_back(units);
      tables.level_core_milli.push_back(need.core_milli);
    }
    const double value = card_value(need.units, total_units, need.core_milli, node.memory_only) * request.cards;
    const double cpu = static_cast<double>(std::max<int64_t>(request.cpu_milli, 1));
    const ClassOnModel entry{task.popularity, value / cpu, request.cpu_milli, request.cards,
                             static_cast<uint32_t>(level)};
    // Classes that differ only in the other models they allow are one class here.
    auto same = std::find_if(tables.classes.begin(), tables.classes.end(), [&](const ClassOnModel& other) {
      return other.cpu_milli == entry.cpu_milli && other.cards == entry.cards && other.level == entry.level;
    });
    if (same == tables.classes.end())
      tables.classes.push_back(entry);
    else
      same->popularity += entry.popularity;
  }
  return tables;
}

const Outlook::ModelTables& Outlook::tables_for(const NodeView& node, const ModelTable& models) {
  static const ModelTables kNoCards;
  if (capacity_version_ != models.capacity_version()) {
    for (auto& variants : by_model_) variants.clear();
    capacity_version_ = models.capacity_version();
  }
  if (node.card_count == 0) return kNoCards;
  auto& variants = by_model_[node.cards[0].model];
  for (const auto& known : variants)
    if (known->total_units == node.cards[0].total_units && known->memory_only == node.memory_only) return *known;
  variants.push_back(std::make_unique<ModelTables>(build(node, models)));
  return *variants.back();
}

void Outlook::count(PerLevel& levels, const CardView& card, int32_t sign) const {
  if (!card.open) return;
  const size_t count = tables_->level_units.size();
  const int32_t* units = tables_->level_units.data();
  const int32_t* core_milli = tables_->level_core_milli.data();
  int32_t* fitting = levels.fitting.data();
  double* usable = levels.usable.data();
  const double value = sign * card.value;
  // No branch: which levels fit changes from card to card, and processors guess it badly.
  for (size_t i = 0; i < count; ++i) {
    const int32_t fits =
        static_cast<int32_t>(card.units >= units[i]) & static_cast<int32_t>(card.core_milli >= core_milli[i]);
    fitting[i] += fits * sign;
    usable[i] += fits * value;
  }
}

double Outlook::waste(const PerLevel& levels, double idle, int64_t free_cpu_milli) const {
  const double cpu = static_cast<double>(free_cpu_milli);
  double used = 0;
  for (const ClassOnModel& task : tables_->classes) {
    const bool fits = levels.fitting[task.level] >= task.cards && free_cpu_milli >= task.cpu_milli;
    const double usable = fits ? levels.usable[task.level] : 0.0;
    const double lasting = std::min(usable, cpu * task.value_per_cpu);
    used += task.popularity * (usable + settings_.cpu_outlook * (lasting - usable));
  }
  // Popularities sum to 1, those without access have nothing to use.
  return idle - used;
}

void Outlook::begin(const NodeView& node, const ModelTable& models) {
  node_ = &node;
  tables_ = &tables_for(node, models);
  now_.fitting.assign(tables_->level_units.size(), 0);
  now_.usable.assign(tables_->level_units.size(), 0.0);
  for (int32_t i = 0; i < node.card_count; ++i) count(now_, node.cards[static_cast<size_t>(i)], 1);
  before_ = waste(now_, node.free_value, node.free_cpu_milli);
}

double Outlook::growth(const Shape& shape, uint32_t mask) {
  then_ = now_;
  double idle = node_->free_value;
  double skew = 0;
  for (int32_t i = 0; i < node_->card_count; ++i) {
    if ((mask >> i & 1) == 0) continue;
    const CardView& before = node_->cards[static_cast<size_t>(i)];
    CardView card = before;
    const CardNeed need = shape.need(card);
    card.units -= static_cast<int32_t>(need.units);
    card.core_milli -= need.core_milli;
    card.value = card_value(card.units, card.total_units, card.core_milli, node_->memory_only);
    count(then_, before, -1);
    count(then_, card, 1);
    idle += card.value - before.value;
    skew += skew_of(card, node_->memory_only) - skew_of(before, node_->memory_only);
  }
  const double after = waste(then_, idle, node_->free_cpu_milli - shape.cpu_milli);
  return after - before_ + settings_.imbalance * skew;
}

}  // namespace sluice::core
