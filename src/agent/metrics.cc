#include "agent/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "agent/metric_families.h"
#include "base/metrics_text.h"

namespace sluice::agent {
namespace {

double allocate_mode(const CardStatus& card) {
  if (card.grants == 0) return 0;
  return card.kind == "whole" ? 1 : 2;
}

// What one machine alone has: in a cluster it is a matter of the node.
constexpr CardFamily kAllocateMode = {"DCGM_CUSTOM_ALLOCATE_MODE", "0 nothing granted, 1 exclusive, 2 shared.",
                                      allocate_mode};

// One family over all grants and their cards.
struct GrantFamily {
  const char* name;
  const char* help;
  double (*value)(const GrantStatus&, const GrantCardAnswer&);
};

constexpr GrantFamily kGrantFamilies[] = {
    {"DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", "Memory granted, MiB.",
     [](const GrantStatus& g, const GrantCardAnswer& c) {
       return static_cast<double>(g.whole_cards ? c.card_memory_mib : c.memory_limit_mib);
     }},
    {"DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "Compute granted, 0 to 1; 0 = not limited.",
     [](const GrantStatus&, const GrantCardAnswer& c) { return static_cast<double>(c.core_percent) / 100; }},
};

class Writer {
 public:
  Writer(const ListAnswer& node, const std::string& host_name) : node_(node), host_name_(host_name) {}

  std::string write() {
    out_.family("sluice_agent_info", "gauge", "The agent and the driver that it found.");
    out_.sample("sluice_agent_info",
                {{"version", node_.agent_version}, {"driver", node_.driver_version}, {"Hostname", host_name_}}, 1);
    if (!node_.cards.empty()) {
      card_family(kAllocateMode);
      for (const CardFamily& family : card_families()) card_family(family);
    }
    if (!node_.grants.empty()) {
      for (const GrantFamily& family : kGrantFamilies) {
        out_.family(family.name, "gauge", family.help);
        each_holding([&](const GrantStatus& grant, const GrantCardAnswer& card, const GrantUse&) {
          sample(family.name, grant, card, family.value(grant, card));
        });
      }
      for (const UseFamily& family : use_families()) {
        const std::string name = fmt::format("sluice_grant_{}", family.suffix);
        out_.family(name, family.type, family.help);
        each_holding([&](const GrantStatus& grant, const GrantCardAnswer& card, const GrantUse& use) {
          sample(name, grant, card, family.value(use));
        });
      }
    }
    write_processes();
    return out_.text();
  }

 private:
  void card_family(const CardFamily& family) {
    out_.family(family.name, "gauge", family.help);
    for (const CardStatus& card : node_.cards) {
      out_.sample(family.name,
                  {{"gpu", std::to_string(card.index)},
                   {"UUID", card.uuid},
                   {"modelName", card.model},
                   {"Hostname", host_name_}},
                  family.value(card));
    }
  }

  template <typename Each>
  void each_holding(Each each) const {
    for (const GrantStatus& grant : node_.grants) {
      for (size_t i = 0; i < grant.cards.size() && i < grant.use.size(); ++i) each(grant, grant.cards[i], grant.use[i]);
    }
  }

  void sample(const std::string& name, const GrantStatus& grant, const GrantCardAnswer& card, double value) {
    out_.sample(name,
                {{"gpu", std::to_string(card.index)},
                 {"UUID", card.uuid},
                 {"Hostname", host_name_},
                 {"pod", grant.pod.empty() ? grant.name : grant.pod},
                 {"container", grant.name},
                 {"grant", grant.id}},
                value);
  }

  void write_processes();

  const ListAnswer& node_;
  const std::string& host_name_;
  MetricsText out_;
};

void Writer::write_processes() {
  struct Row {
    std::string card, pid, container;
    const ProcessStatus* process;
  };
  std::vector<Row> rows;
  for (const GrantStatus& grant : node_.grants) {
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
  for (const ProcessFamily& family : process_families()) {
    out_.family(family.name, family.type, family.help);
    for (const Row& row : rows) {
      const double value = family.value(*row.process);
      if (value < 0) continue;  // the driver does not say
      out_.sample(family.name, {{"gpu", row.card}, {"process_id", row.pid}, {"container", row.container}}, value);
    }
  }
}

}  // namespace

std::string metrics_text(const ListAnswer& node, const std::string& host_name) {
  return Writer(node, host_name).write();
}

}  // namespace sluice::agent
