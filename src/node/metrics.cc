#include "node/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "agent/metric_families.h"
#include "base/metrics_text.h"
#include "node/enforcement.h"

namespace sluice::node {
namespace {

using agent::CardFamily;
using agent::CardStatus;
using agent::GrantUse;
using agent::ProcessFamily;
using agent::ProcessStatus;

double number(int64_t value) {
  return static_cast<double>(value);
}

// NVIDIA's names and units.
constexpr CardFamily kDeviceFamilies[] = {
    {"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", [](const CardStatus& c) { return c.utilisation_percent; }},
    {"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).",
     [](const CardStatus& c) { return number(c.used_mib); }},
    {"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).",
     [](const CardStatus& c) { return number(std::max<int64_t>(c.memory_mib - c.used_mib, 0)); }},
};

// One container on one card.
struct Holding {
  const ContainerGrant* container;
  const ContainerCard* card;
  std::string index;
  std::string model;
  const GrantUse* use;  // nullptr: the agent has no grant for it
};

struct HoldingFamily {
  const char* name;
  const char* help;
  double (*value)(const Holding&);
};

constexpr HoldingFamily kHoldingFamilies[] = {
    {"DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "Compute granted to the container, 0 to 1; 0 = not limited.",
     [](const Holding& h) { return number(h.container->whole_cards ? 0 : h.card->core_percent) / 100; }},
    {"DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", "Memory granted to the container, MiB.",
     [](const Holding& h) { return number(h.card->memory_mib); }},
    {"sluice_container_units", "Memory units granted to the container.",
     [](const Holding& h) { return number(h.card->units); }},
};

// One process of a container on one card.
struct ProcessRow {
  const Holding* holding;
  const ProcessStatus* process;
  std::string pid;
};

class Writer {
 public:
  explicit Writer(const NodeSnapshot& snapshot) : in_(snapshot) {}

  std::string write() {
    agent_families();
    if (!in_.node.cards.empty()) {
      for (const CardFamily& family : agent::card_families()) card_family(family);
      for (const CardFamily& family : kDeviceFamilies) {
        if (in_.device_series) card_family(family);
      }
    }
    collect();
    for (const HoldingFamily& family : kHoldingFamilies) holding_family(family);
    for (const agent::UseFamily& family : agent::use_families()) use_family(family);
    enforcement_families();
    for (const ProcessFamily& family : agent::process_families()) process_family(family);
    strangers_family();
    return out_.text();
  }

 private:
  void agent_families() {
    out_.family("sluice_agent_info", "gauge", "The agent, the driver that it found and the node's mode.");
    out_.sample("sluice_agent_info",
                {{"version", in_.node.agent_version},
                 {"driver", in_.node.driver_version},
                 {"mode", in_.mode},
                 {"Hostname", in_.node_name},
                 {"node", in_.node_name}},
                1);
    out_.family("DCGM_CUSTOM_ALLOCATE_MODE", "gauge", "Of the node: 0 nothing runs, 1 exclusive, 2 shared.");
    out_.sample("DCGM_CUSTOM_ALLOCATE_MODE", {{"Hostname", in_.node_name}, {"node", in_.node_name}}, allocate_mode());
    for (const AgentFigure& figure : in_.figures) {
      out_.family(figure.name, figure.counter ? "counter" : "gauge", figure.help);
      out_.sample(figure.name, {{"Hostname", in_.node_name}, {"node", in_.node_name}}, figure.value);
    }
  }

  double allocate_mode() const {
    bool any = false;
    for (const ContainerGrant& container : in_.containers) {
      if (!container.whole_cards && !container.cards.empty()) return 2;
      any = any || !container.cards.empty();
    }
    return any ? 1 : 0;
  }

  void card_family(const CardFamily& family) {
    out_.family(family.name, "gauge", family.help);
    for (const CardStatus& card : in_.node.cards) {
      out_.sample(family.name,
                  {{"gpu", std::to_string(card.index)},
                   {"UUID", card.uuid},
                   {"modelName", card.model},
                   {"Hostname", in_.node_name},
                   {"node", in_.node_name}},
                  family.value(card));
    }
  }

  // A pod that is going and its successor of the same name may both be here; a series is written once, of the one that
  // the agent holds a grant for.
  void collect() {
    std::vector<const ContainerGrant*> order;
    for (const ContainerGrant& container : in_.containers) order.push_back(&container);
    std::stable_sort(order.begin(), order.end(), [this](const ContainerGrant* a, const ContainerGrant* b) {
      return (grant_status(*a, in_.node) != nullptr) > (grant_status(*b, in_.node) != nullptr);
    });
    std::set<std::tuple<std::string, std::string, std::string>> seen;
    for (const ContainerGrant* container : order) {
      if (!seen.emplace(container->name_space, container->pod, container->container).second) continue;
      containers_.push_back(container);
      for (const ContainerCard& card : container->cards) add_holding(*container, card);
    }
    holdings_.shrink_to_fit();
    for (const Holding& holding : holdings_) add_processes(holding);
  }

  void add_holding(const ContainerGrant& container, const ContainerCard& card) {
    Holding holding{&container, &card, std::to_string(card.index), "", nullptr};
    for (const CardStatus& status : in_.node.cards) {
      if (status.uuid == card.uuid) holding.model = status.model;
    }
    if (const agent::GrantStatus* grant = grant_status(container, in_.node); grant != nullptr) {
      for (size_t i = 0; i < grant->cards.size() && i < grant->use.size(); ++i) {
        if (grant->cards[i].uuid == card.uuid) holding.use = &grant->use[i];
      }
    }
    holdings_.push_back(std::move(holding));
  }

  void add_processes(const Holding& holding) {
    const agent::GrantStatus* grant = grant_status(*holding.container, in_.node);
    if (grant == nullptr) return;
    for (const ProcessStatus& process : grant->processes) {
      if (process.card_index != holding.card->index || process.pid <= 0) continue;
      // A pid stands in several slots of a card only when it lies: once all the same.
      if (pids_.emplace(holding.card->uuid, process.pid).second)
        processes_.push_back({&holding, &process, std::to_string(process.pid)});
    }
  }

  void holding_family(const HoldingFamily& family) {
    if (!holdings_.empty()) out_.family(family.name, "gauge", family.help);
    for (const Holding& holding : holdings_) sample(family.name, holding, family.value(holding));
  }

  void use_family(const agent::UseFamily& family) {
    const std::string name = fmt::format("sluice_container_{}", family.suffix);
    bool begun = false;
    for (const Holding& holding : holdings_) {
      if (holding.use == nullptr) continue;
      if (!begun) out_.family(name, family.type, family.help);
      begun = true;
      sample(name, holding, family.value(*holding.use));
    }
  }

  void sample(std::string_view name, const Holding& holding, double value) {
    out_.sample(name,
                {{"gpu", holding.index},
                 {"UUID", holding.card->uuid},
                 {"modelName", holding.model},
                 {"Hostname", in_.node_name},
                 {"node", in_.node_name},
                 {"namespace", holding.container->name_space},
                 {"pod", holding.container->pod},
                 {"container", holding.container->container}},
                value);
  }

  void enforcement_families() {
    if (containers_.empty()) return;
    std::vector<std::string> reasons;
    out_.family("sluice_enforced", "gauge", "1 while the container's limits are in force, 0 while they are not.");
    for (const ContainerGrant* container : containers_) {
      reasons.push_back(not_in_force(*container, in_.node, in_.strangers));
      out_.sample("sluice_enforced",
                  {{"Hostname", in_.node_name},
                   {"node", in_.node_name},
                   {"namespace", container->name_space},
                   {"pod", container->pod},
                   {"container", container->container}},
                  reasons.back().empty() ? 1 : 0);
    }
    bool begun = false;
    for (size_t i = 0; i < containers_.size(); ++i) {
      if (reasons[i].empty()) continue;
      if (!begun)
        out_.family("sluice_not_enforced_info", "gauge",
                    "Why a container's limits are not in force, while they are not.");
      begun = true;
      constexpr size_t kMaxReason = 200;
      out_.sample("sluice_not_enforced_info",
                  {{"Hostname", in_.node_name},
                   {"node", in_.node_name},
                   {"namespace", containers_[i]->name_space},
                   {"pod", containers_[i]->pod},
                   {"container", containers_[i]->container},
                   {"reason", std::string_view(reasons[i]).substr(0, kMaxReason)}},
                  1);
    }
  }

  void process_family(const ProcessFamily& family) {
    bool begun = false;
    for (const ProcessRow& row : processes_) {
      const double value = family.value(*row.process);
      if (value < 0) continue;  // the driver does not say
      if (!begun) out_.family(family.name, family.type, family.help);
      begun = true;
      out_.sample(family.name,
                  {{"gpu", row.holding->index},
                   {"UUID", row.holding->card->uuid},
                   {"modelName", row.holding->model},
                   {"Hostname", in_.node_name},
                   {"node", in_.node_name},
                   {"namespace", row.holding->container->name_space},
                   {"pod", row.holding->container->pod},
                   {"container", row.holding->container->container},
                   {"process_id", row.pid},
                   {"process_name", row.process->command},
                   {"process_type", "C"}},
                  value);
    }
  }

  void strangers_family() {
    if (in_.strangers.empty()) return;
    out_.family("sluice_stranger_memory_used_mib", "gauge",
                "Memory of a process that uses a card without a grant, MiB; 0 where the driver does not say.");
    for (const Stranger& stranger : in_.strangers) {
      out_.sample("sluice_stranger_memory_used_mib",
                  {{"gpu", std::to_string(stranger.card_index)},
                   {"UUID", stranger.card_uuid},
                   {"Hostname", in_.node_name},
                   {"node", in_.node_name},
                   {"namespace", stranger.name_space},
                   {"pod", stranger.pod},
                   {"container", stranger.container},
                   {"process_id", std::to_string(stranger.process.pid)},
                   {"process_name", stranger.process.command}},
                  number(std::max<int64_t>(stranger.used_mib, 0)));
    }
  }

  const NodeSnapshot& in_;
  MetricsText out_;
  std::vector<const ContainerGrant*> containers_;
  std::vector<Holding> holdings_;
  std::vector<ProcessRow> processes_;
  std::set<std::pair<std::string, int64_t>> pids_;
};

}  // namespace

std::string node_metrics_text(const NodeSnapshot& snapshot) {
  return Writer(snapshot).write();
}

}  // namespace sluice::node
