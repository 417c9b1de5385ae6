#include "agent/metrics.h"

#include <fmt/format.h>

#include <functional>

#include "base/metrics_text.h"

namespace sluice::agent {
namespace {

// One family over all cards.
struct CardFamily {
  const char* name;
  const char* help;
  double (*value)(const CardStatus&);
};

double allocated_share(const CardStatus& card) {
  return card.units > 0 ? static_cast<double>(card.units - card.free_units) / static_cast<double>(card.units) : 0;
}
double allocate_mode(const CardStatus& card) {
  if (card.grants == 0) return 0;
  return card.kind == "whole" ? 1 : 2;
}

constexpr CardFamily kCardFamilies[] = {
    {"DCGM_CUSTOM_DEV_FB_TOTAL", "Memory of the card, MiB.",
     [](const CardStatus& c) { return static_cast<double>(c.memory_mib); }},
    {"DCGM_CUSTOM_DEV_FB_ALLOCATED", "Share of the card's memory that is granted, 0 to 1.", allocated_share},
    {"DCGM_CUSTOM_ALLOCATE_MODE", "0 nothing granted, 1 exclusive, 2 shared.", allocate_mode},
    {"sluice_card_up", "1 while the card answers and is ours.",
     [](const CardStatus& c) { return c.state == "ok" ? 1.0 : 0.0; }},
    {"sluice_card_memory_used_mib", "Memory in use on the card, by the driver, MiB.",
     [](const CardStatus& c) { return static_cast<double>(c.used_mib); }},
    {"sluice_card_utilisation_percent", "Busy time of the card, by the driver, percent.",
     [](const CardStatus& c) { return c.utilisation_percent; }},
    {"sluice_card_core_allocated_percent", "Compute of the card that is granted, percent.",
     [](const CardStatus& c) { return static_cast<double>(100 - c.free_core_percent); }},
    {"sluice_card_grants", "Grants on the card.", [](const CardStatus& c) { return static_cast<double>(c.grants); }},
    {"sluice_card_turns", "1 while containers take turns on the card.",
     [](const CardStatus& c) { return c.turns ? 1.0 : 0.0; }},
    {"sluice_card_strangers", "Processes that use the card without a grant.",
     [](const CardStatus& c) { return static_cast<double>(c.strangers.size()); }},
};

// One family over all grants and their cards.
struct GrantFamily {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const GrantStatus&, const GrantCardAnswer&, const GrantUse&);
};

constexpr GrantFamily kGrantFamilies[] = {
    {"DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", "gauge", "Memory granted, MiB.",
     [](const GrantStatus& g, const GrantCardAnswer& c, const GrantUse&) {
       return static_cast<double>(g.whole_cards ? c.card_memory_mib : c.memory_limit_mib);
     }},
    {"DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "gauge", "Compute granted, 0 to 1; 0 = not limited.",
     [](const GrantStatus&, const GrantCardAnswer& c, const GrantUse&) {
       return static_cast<double>(c.core_percent) / 100;
     }},
    {"sluice_grant_memory_used_mib", "gauge", "What the card spends on the grant, MiB.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) { return static_cast<double>(u.used_mib); }},
    {"sluice_grant_memory_reserved_mib", "gauge", "What the grant is charged, MiB.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) { return static_cast<double>(u.reserved_mib); }},
    {"sluice_grant_utilisation_percent", "gauge", "Share of the card over the last second, percent.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) { return u.utilisation_percent; }},
    {"sluice_grant_refused_allocations_total", "counter", "Allocations refused for the memory limit.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) {
       return static_cast<double>(u.refused_allocations);
     }},
    {"sluice_grant_overruns_total", "counter", "Turns that were not given back in time.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) { return static_cast<double>(u.overruns); }},
    {"sluice_grant_differences_total", "counter", "Differences found between the grant's pages and the card.",
     [](const GrantStatus&, const GrantCardAnswer&, const GrantUse& u) { return static_cast<double>(u.tampering); }},
};

// One family over all processes of grants.
struct ProcessFamily {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const ProcessStatus&);
};

constexpr ProcessFamily kProcessFamilies[] = {
    {"DCGM_CUSTOM_PROCESS_MEM_USED", "gauge", "Memory of the process by the driver, MiB.",
     [](const ProcessStatus& p) { return static_cast<double>(p.used_mib); }},
    {"DCGM_CUSTOM_PROCESS_SM_UTIL", "gauge", "Compute of the process by the driver's samples, percent.",
     [](const ProcessStatus& p) { return p.utilisation_percent; }},
    {"DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL", "gauge", "Memory traffic of the process by the driver's samples, percent.",
     [](const ProcessStatus& p) { return p.memory_copy_percent; }},
    {"DCGM_CUSTOM_PROCESS_ENCODE_UTIL", "gauge", "Video encoder use of the process, percent.",
     [](const ProcessStatus& p) { return p.encoder_percent; }},
    {"DCGM_CUSTOM_PROCESS_DECODE_UTIL", "gauge", "Video decoder use of the process, percent.",
     [](const ProcessStatus& p) { return p.decoder_percent; }},
    {"sluice_process_throttled_seconds_total", "counter", "Time that the process's threads waited at the gate.",
     [](const ProcessStatus& p) { return p.throttled_seconds; }},
};

void write_processes(MetricsText& out, const ListAnswer& node) {
  struct Row {
    std::string card, pid, container;
    const ProcessStatus* process;
  };
  std::vector<Row> rows;
  for (const GrantStatus& grant : node.grants) {
    for (const ProcessStatus& process : grant.processes) {
      rows.push_back({std::to_string(process.card_index), std::to_string(process.pid), grant.name, &process});
    }
  }
  // A pid may hold a slot on several cards, never two on one card, unless it lies: one sample per series all the same.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return std::tie(a.card, a.pid) < std::tie(b.card, b.pid); });
  rows.erase(std::unique(rows.begin(), rows.end(),
                         [](const Row& a, const Row& b) { return a.card == b.card && a.pid == b.pid; }),
             rows.end());
  if (rows.empty()) return;
  for (const ProcessFamily& family : kProcessFamilies) {
    out.family(family.name, family.type, family.help);
    for (const Row& row : rows) {
      const double value = family.value(*row.process);
      if (value < 0) continue;  // the driver does not say
      out.sample(family.name, {{"gpu", row.card}, {"process_id", row.pid}, {"container", row.container}}, value);
    }
  }
}

}  // namespace

std::string metrics_text(const ListAnswer& node, const std::string& host_name) {
  MetricsText out;
  out.family("sluice_agent_info", "gauge", "The agent and the driver that it found.");
  out.sample("sluice_agent_info",
             {{"version", node.agent_version}, {"driver", node.driver_version}, {"Hostname", host_name}}, 1);
  for (const CardFamily& family : kCardFamilies) {
    if (node.cards.empty()) break;
    out.family(family.name, "gauge", family.help);
    for (const CardStatus& card : node.cards) {
      out.sample(family.name,
                 {{"gpu", std::to_string(card.index)},
                  {"UUID", card.uuid},
                  {"modelName", card.model},
                  {"Hostname", host_name}},
                 family.value(card));
    }
  }
  for (const GrantFamily& family : kGrantFamilies) {
    if (node.grants.empty()) break;
    out.family(family.name, family.type, family.help);
    for (const GrantStatus& grant : node.grants) {
      for (size_t i = 0; i < grant.cards.size() && i < grant.use.size(); ++i) {
        const GrantCardAnswer& card = grant.cards[i];
        out.sample(family.name,
                   {{"gpu", std::to_string(card.index)},
                    {"UUID", card.uuid},
                    {"Hostname", host_name},
                    {"pod", grant.pod.empty() ? grant.name : grant.pod},
                    {"container", grant.name},
                    {"grant", grant.id}},
                   family.value(grant, card, grant.use[i]));
      }
    }
  }
  write_processes(out, node);
  return out.text();
}

}  // namespace sluice::agent
