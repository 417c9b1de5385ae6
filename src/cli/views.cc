#include "cli/views.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "cli/table.h"

namespace sluice::cli {
namespace {

constexpr size_t kNameWidth = 32;
constexpr size_t kCommandWidth = 24;
constexpr int kBarWidth = 20;
constexpr int kCardBarWidth = 14;  // a card's line has two and fits 120 columns
constexpr size_t kTopEvents = 3;

std::string core_text(int64_t percent) {
  return percent == 0 ? "-" : fmt::format("{} %", percent);
}

std::string state_text(const agent::GrantStatus& grant) {
  if (grant.runner_pid == 0) return grant.processes.empty() ? "ending" : "left behind";
  if (grant.processes.empty()) return "no card use yet";
  return fmt::format("{} process{}", grant.processes.size(), grant.processes.size() == 1 ? "" : "es");
}

std::string flags_text(const agent::GrantStatus& grant) {
  std::string text = grant.whole_cards ? "whole card" : agent::policy_name(grant.policy);
  if (grant.weight != 1) text += fmt::format(" w{}", grant.weight);
  if (grant.high_priority) text += " first";
  return text;
}

std::vector<std::string> grant_row(const agent::GrantStatus& grant, size_t i, int64_t now_unix) {
  const agent::GrantCardAnswer& card = grant.cards[i];
  const agent::GrantUse use = i < grant.use.size() ? grant.use[i] : agent::GrantUse{};
  return {i == 0 ? fit(grant.name, kNameWidth) : "",
          i == 0 ? grant.id : "",
          fmt::format("{}", card.index),
          fmt::format("{}", use.used_mib),
          fmt::format("{}", card.memory_limit_mib),
          fmt::format("{:.1f} %", use.utilisation_percent),
          grant.whole_cards ? "100 %" : core_text(card.core_percent),
          i == 0 ? flags_text(grant) : "",
          i == 0 ? duration_text(now_unix - grant.started_unix) : "",
          i == 0 ? state_text(grant) : ""};
}

const std::vector<Column> kGrantColumns = {
    {"NAME"},      {"GRANT"},  {"CARD", true}, {"USED MiB", true}, {"LIMIT MiB", true}, {"BUSY", true},
    {"CAP", true}, {"POLICY"}, {"AGE"},        {"STATE"}};

size_t stranger_count(const agent::ListAnswer& list) {
  size_t count = 0;
  for (const agent::CardStatus& card : list.cards) count += card.strangers.size();
  return count;
}

std::string strangers_text(const agent::ListAnswer& list) {
  std::string text;
  for (const agent::CardStatus& card : list.cards) {
    for (const agent::ProcessStatus& process : card.strangers) {
      text +=
          fmt::format("card {}: process {} ({}) uses {} MiB without a grant; limits do not hold for it\n", card.index,
                      process.pid, process.command.empty() ? "of another user" : fit(process.command, kCommandWidth),
                      std::max<int64_t>(process.used_mib, 0));
    }
  }
  return text;
}

std::string card_line(const agent::CardStatus& card) {
  const double memory =
      card.memory_mib == 0 ? 0 : 100.0 * static_cast<double>(card.used_mib) / static_cast<double>(card.memory_mib);
  return fmt::format("card {} {:<24} busy [{}] {:5.1f} %   memory [{}] {}/{} MiB{}{}\n", card.index,
                     fit(card.model, 24), bar(card.utilisation_percent, kCardBarWidth), card.utilisation_percent,
                     bar(memory, kCardBarWidth), card.used_mib, card.memory_mib, card.turns ? "   turns" : "",
                     card.state == "ok" ? "" : "   " + card.state);
}

// One row of top's grant list, cut to the terminal by the caller.
std::vector<std::string> top_row(const agent::GrantStatus& grant, int64_t now_unix) {
  const GrantTotals sum = totals(grant);
  double waited = 0;
  int64_t refused = 0;
  for (const agent::ProcessStatus& process : grant.processes) waited += process.throttled_seconds;
  for (const agent::GrantUse& use : grant.use) refused += use.refused_allocations;
  std::string card_list;
  for (const agent::GrantCardAnswer& card : grant.cards)
    card_list += fmt::format("{}{}", card_list.empty() ? "" : ",", card.index);
  return {
      fit(grant.name, kNameWidth),
      card_list,
      fmt::format("[{}]", bar(sum.utilisation_percent / static_cast<double>(std::max<size_t>(grant.cards.size(), 1)),
                              kBarWidth)),
      fmt::format("{:.1f} %", sum.utilisation_percent),
      core_text(sum.core_percent),
      fmt::format("{}", sum.used_mib),
      fmt::format("{}", sum.limit_mib),
      fmt::format("{}", refused),
      fmt::format("{:.0f} s", waited),
      duration_text(now_unix - grant.started_unix),
      state_text(grant)};
}

}  // namespace

GrantTotals totals(const agent::GrantStatus& grant) {
  GrantTotals sum;
  for (const agent::GrantCardAnswer& card : grant.cards) {
    sum.limit_mib += card.memory_limit_mib;
    sum.core_percent += grant.whole_cards ? 100 : card.core_percent;
  }
  for (const agent::GrantUse& use : grant.use) {
    sum.used_mib += use.used_mib;
    sum.utilisation_percent += use.utilisation_percent;
  }
  return sum;
}

std::string ps_text(const agent::ListAnswer& list, int64_t now_unix) {
  if (list.grants.empty()) {
    return "no grants; `sluice run --gpu-mem N -- COMMAND` makes one\n" + strangers_text(list);
  }
  std::vector<std::vector<std::string>> rows;
  for (const agent::GrantStatus& grant : list.grants) {
    for (size_t i = 0; i < grant.cards.size(); ++i) rows.push_back(grant_row(grant, i, now_unix));
  }
  return table(kGrantColumns, rows) + strangers_text(list);
}

std::string cards_text(const agent::ListAnswer& list) {
  if (list.cards.empty()) return "no cards; `sluice doctor` says why\n";
  std::vector<std::vector<std::string>> rows;
  for (const agent::CardStatus& card : list.cards) {
    rows.push_back(
        {fmt::format("{}", card.index), fit(card.model, kNameWidth), card.uuid,
         fmt::format("{}/{}", card.units - card.free_units, card.units),
         fmt::format("{}/100 %", 100 - card.free_core_percent), fmt::format("{}/{}", card.used_mib, card.memory_mib),
         fmt::format("{:.0f} %", card.utilisation_percent), fmt::format("{}/{}", card.grants, card.max_grants),
         card.kind, agent::policy_name(card.policy), card.state});
  }
  const std::string unit = list.memory_unit.empty() ? "GiB" : list.memory_unit;
  return table({{"CARD", true},
                {"MODEL"},
                {"UUID"},
                {fmt::format("GRANTED {}", unit), true},
                {"GRANTED COMPUTE", true},
                {"USED MiB", true},
                {"BUSY", true},
                {"GRANTS", true},
                {"SERVES"},
                {"POLICY"},
                {"STATE"}},
               rows) +
         strangers_text(list);
}

std::string top_text(const agent::ListAnswer& list, int64_t now_unix, int rows, int columns) {
  const std::time_t now = static_cast<std::time_t>(now_unix);
  std::string text = fmt::format(
      "sluice top  {:%H:%M:%S}   agent {} (pid {}, {})   driver {}   {} card{}, {} grant{}{}\n\n", fmt::localtime(now),
      list.agent_version, list.agent_pid, list.run_directory, list.driver_version, list.cards.size(),
      list.cards.size() == 1 ? "" : "s", list.grants.size(), list.grants.size() == 1 ? "" : "s",
      stranger_count(list) == 0 ? "" : fmt::format(", {} without a grant", stranger_count(list)));
  for (const agent::CardStatus& card : list.cards) text += card_line(card);
  text += "\n";
  std::vector<std::vector<std::string>> grants;
  for (const agent::GrantStatus& grant : list.grants) grants.push_back(top_row(grant, now_unix));
  text += table({{"NAME"},
                 {"CARD"},
                 {"BUSY"},
                 {"", true},
                 {"CAP", true},
                 {"USED MiB", true},
                 {"LIMIT MiB", true},
                 {"REFUSED", true},
                 {"WAITED", true},
                 {"AGE"},
                 {"STATE"}},
                grants);
  text += strangers_text(list);
  if (!list.events.empty()) text += "\n";
  const size_t first = list.events.size() > kTopEvents ? list.events.size() - kTopEvents : 0;
  for (size_t i = first; i < list.events.size(); ++i) {
    const std::time_t when = static_cast<std::time_t>(list.events[i].unix_ms / 1000);
    text += fmt::format("{:%H:%M:%S} {}: {}\n", fmt::localtime(when), list.events[i].what, list.events[i].text);
  }

  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    lines.push_back(fit(text.substr(start, end - start), static_cast<size_t>(std::max(columns, 1))));
    start = end + 1;
  }
  const size_t most = static_cast<size_t>(std::max(rows, 2));
  if (lines.size() > most) {
    const size_t hidden = lines.size() - most + 1;
    lines.resize(most - 1);
    lines.push_back(fmt::format("... {} more lines", hidden));
  }
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

}  // namespace sluice::cli
