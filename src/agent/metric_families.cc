#include "agent/metric_families.h"

namespace sluice::agent {
namespace {

double number(int64_t value) {
  return static_cast<double>(value);
}

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
    {"sluice_card_grants", "Grants (in a cluster: containers) that hold a part of the card.",
     [](const CardStatus& c) { return number(c.grants); }},
    {"sluice_card_turns", "1 while containers take turns on the card.",
     [](const CardStatus& c) { return c.turns ? 1.0 : 0.0; }},
    {"sluice_card_strangers", "Processes that use the card without a grant.",
     [](const CardStatus& c) { return number(static_cast<int64_t>(c.strangers.size())); }},
};

constexpr UseFamily kUseFamilies[] = {
    {"memory_used_mib", "gauge", "What the card spends on it, MiB.",
     [](const GrantUse& u) { return number(u.used_mib); }},
    {"memory_reserved_mib", "gauge", "What it is charged, MiB.",
     [](const GrantUse& u) { return number(u.reserved_mib); }},
    {"utilisation_percent", "gauge", "Share of the card over the last second, percent.",
     [](const GrantUse& u) { return u.utilisation_percent; }},
    {"refused_allocations_total", "counter", "Allocations refused for the memory limit.",
     [](const GrantUse& u) { return number(u.refused_allocations); }},
    {"overruns_total", "counter", "Turns that were not given back in time.",
     [](const GrantUse& u) { return number(u.overruns); }},
    {"differences_total", "counter", "Differences found between its pages and the card.",
     [](const GrantUse& u) { return number(u.tampering); }},
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

}  // namespace

std::span<const CardFamily> card_families() {
  return kCardFamilies;
}
std::span<const UseFamily> use_families() {
  return kUseFamilies;
}
std::span<const ProcessFamily> process_families() {
  return kProcessFamilies;
}

}  // namespace sluice::agent
