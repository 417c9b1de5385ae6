#include "node/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/metrics_text.h"
#include "node/enforcement.h"

namespace sluice::node {
namespace {

using agent::CardStatus;
using agent::GrantUse;
using agent::ProcessStatus;

double number(int64_t value) {
  return static_cast<double>(value);
}

// One family over all cards.
struct CardFamily {
  const char* name;
  const char* help;
  double (*value)(const CardStatus&);
};

constexpr CardFamily kCardFamilies[] = {
    {"DCGM_CUSTOM_DEV_FB_TOTAL", "Memory of the card, MiB.", [](const CardStatus& c) { return number(c.memory_mib); }},
    {"DCGM_CUSTOM_DEV_FB_ALLOCATED", "Share of the card's memory that is granted, 0 to 1.",
     [](const CardStatus& c) { return c.units > 0 ? number(c.units - c.free_units) / number(c.units) : 0; }},
    {"sluice_card_up", "1 while the card answers and is this agent's.",
     [](const CardStatus& c) { return c.state == "ok" ? 1.0 : 0.0; }},
    {"sluice_card_units", "Memory units of the card.", [](const CardStatus& c) { return number(c.units); }},
    {"sluice_card_units_allocated", "Memory units of the card that are granted.",
     [](const CardStatus& c) { return number(c.units - c.free_units); }},
    {"sluice_card_core_allocated_percent", "Compute of the card that is granted, percent.",
     [](const CardStatus& c) { return number(100 - c.free_core_percent); }},
    {"sluice_card_memory_used_mib", "Memory in use on the card, by the driver, MiB.",
     [](const CardStatus& c) { return number(c.used_mib); }},
    {"sluice_card_utilisation_percent", "Busy time of the card, by the driver, percent.",
     [](const CardStatus& c) { return c.utilisation_percent; }},
    {"sluice_card_grants", "Containers that hold a part of the card.",
     [](const CardStatus& c) { return number(c.grants); }},
    {"sluice_card_turns", "1 while containers take turns on the card.",
     [](const CardStatus& c) { return c.turns ? 1.0 : 0.0; }},
    {"sluice_card_strangers", "Processes that use the card without a grant.",
     [](const CardStatus& c) { return number(static_cast<int64_t>(c.strangers.size())); }},
};

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
  const char* type;
  const char* help;
  double (*value)(const Holding&);
  bool needs_use;
};

constexpr HoldingFamily kHoldingFamilies[] = {
    {"DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "gauge", "Compute granted to the container, 0 to 1; 0 = not limited.",
     [](const Holding& h) { return number(h.container->whole_cards ? 0 : h.card->core_percent) / 100; }, false},
    {"DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", "gauge", "Memory granted to the container, MiB.",
     [](const Holding& h) { return number(h.card->memory_mib); }, false},
    {"sluice_container_units", "gauge", "Memory units granted to the container.",
     [](const Holding& h) { return number(h.card->units); }, false},
    {"sluice_container_memory_used_mib", "gauge", "What the card spends on the container, MiB.",
     [](const Holding& h) { return number(h.use->used_mib); }, true},
    {"sluice_container_memory_reserved_mib", "gauge", "What the container is charged, MiB.",
     [](const Holding& h) { return number(h.use->reserved_mib); }, true},
    {"sluice_container_utilisation_percent", "gauge", "Share of the card over the last second, percent.",
     [](const Holding& h) { return h.use->utilisation_percent; }, true},
    {"sluice_container_refused_allocations_total", "counter", "Allocations refused for the memory limit.",
     [](const Holding& h) { return number(h.use->refused_allocations); }, true},
    {"sluice_container_overruns_total", "counter", "Turns that were not given back in time.",
     [](const Holding& h) { return number(h.use->overruns); }, true},
    {"sluice_container_differences_total", "counter", "Differences found between the container's pages and the card.",
     [](const Holding& h) { return number(h.use->tampering); }, true},
};

// One process of a container on one card.
struct ProcessRow {
  const Holding* holding;
  const ProcessStatus* process;
  std::string pid;
};

struct ProcessFamily {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const ProcessStatus&);
};

constexpr ProcessFamily kProcessFamilies[] = {
    {"DCGM_CUSTOM_PROCESS_SM_UTIL", "gauge", "Compute of the process by the driver's samples, percent.",
     [](const ProcessStatus& p) { return p.utilisation_percent; }},
    {"DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL", "gauge", "Memory traffic of the process by the driver's samples, percent.",
     [](const ProcessStatus& p) { return p.memory_copy_percent; }},
    {"DCGM_CUSTOM_PROCESS_ENCODE_UTIL", "gauge", "Video encoder use of the process, percent.",
     [](const ProcessStatus& p) { return p.encoder_percent; }},
    {"DCGM_CUSTOM_PROCESS_DECODE_UTIL", "gauge", "Video decoder use of the process, percent.",
     [](const ProcessStatus& p) { return p.decoder_percent; }},
    {"DCGM_CUSTOM_PROCESS_MEM_USED", "gauge", "Memory of the process by the driver, MiB.",
     [](const ProcessStatus& p) { return number(p.used_mib); }},
    {"sluice_process_launches_total", "counter", "Units of work that the process has launched.",
     [](const ProcessStatus& p) { return number(p.launches); }},
    {"sluice_process_throttled_seconds_total", "counter", "Time that the process's threads waited at the gate.",
     [](const ProcessStatus& p) { return p.throttled_seconds; }},
};

class Writer {
 public:
  explicit Writer(const NodeSnapshot& snapshot) : in_(snapshot) {}

  std::string write() {
    agent_families();
    if (!in_.node.cards.empty()) {
      for (const CardFamily& family : kCardFamilies) card_family(family);
      for (const CardFamily& family : kDeviceFamilies) {
        if (in_.device_series) card_family(family);
      }
    }
    collect();
    for (const HoldingFamily& family : kHoldingFamilies) holding_family(family);
    enforcement_families();
    for (const ProcessFamily& family : kProcessFamilies) process_family(family);
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
    bool begun = false;
    for (const Holding& holding : holdings_) {
      if (family.needs_use && holding.use == nullptr) continue;
      if (!begun) out_.family(family.name, family.type, family.help);
      begun = true;
      out_.sample(family.name,
                  {{"gpu", holding.index},
                   {"UUID", holding.card->uuid},
                   {"modelName", holding.model},
                   {"Hostname", in_.node_name},
                   {"node", in_.node_name},
                   {"namespace", holding.container->name_space},
                   {"pod", holding.container->pod},
                   {"container", holding.container->container}},
                  family.value(holding));
    }
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
