#include "replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice::replay {
namespace {

constexpr int kAllocColumns[] = {80, 90, 100, 120, 130};
constexpr int kFragColumns[] = {100, 130};

double two_decimals(double value) {
  return std::round(value * 100) / 100;
}

json::Value percent(double value) {
  return std::isnan(value) ? json::Value(nullptr) : json::Value(two_decimals(value));
}

double decision_us(const Outcome& outcome) {
  return outcome.events.empty() ? 0 : 1e6 * outcome.decide_seconds / static_cast<double>(outcome.events.size());
}

struct Line {
  std::string trace, policy, seed;
  double alloc_100, alloc_130, frag_130, memory, core, accepted, refused, microseconds;
};

Line line_of(const Row& row) {
  const Outcome& o = row.outcome;
  const Event last = o.events.empty() ? Event{} : o.events.back();
  return {row.trace,
          row.policy,
          std::to_string(row.seed),
          at_requested(o, 100, &Event::allocated_pct),
          at_requested(o, 130, &Event::allocated_pct),
          at_requested(o, 130, &Event::fragment_pct),
          last.memory_pct,
          last.core_pct,
          static_cast<double>(o.accepted),
          static_cast<double>(o.refused),
          decision_us(o)};
}

std::string print(const Line& line) {
  return fmt::format("{:<14} {:<9} {:>5} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>9.0f} {:>8.0f} {:>8.1f}\n",
                     line.trace, line.policy, line.seed, line.alloc_100, line.alloc_130, line.frag_130, line.memory,
                     line.core, line.accepted, line.refused, line.microseconds);
}

Line mean_of(const std::vector<Line>& lines) {
  Line mean = lines[0];
  mean.seed = "mean";
  const double count = static_cast<double>(lines.size());
  for (double Line::* field : {&Line::alloc_100, &Line::alloc_130, &Line::frag_130, &Line::memory, &Line::core,
                               &Line::accepted, &Line::refused, &Line::microseconds}) {
    double sum = 0;
    for (const Line& line : lines) sum += line.*field;
    mean.*field = sum / count;
  }
  return mean;
}

}  // namespace

json::Object to_json(const Row& row) {
  json::Object object;
  object["trace"] = row.trace;
  object["policy"] = row.policy;
  object["seed"] = row.seed;
  for (int column : kAllocColumns)
    object[fmt::format("alloc_pct_{}", column)] = percent(at_requested(row.outcome, column, &Event::allocated_pct));
  for (int column : kFragColumns)
    object[fmt::format("frag_pct_of_total_{}", column)] =
        percent(at_requested(row.outcome, column, &Event::fragment_pct));
  for (int column : kFragColumns)
    object[fmt::format("frag_pct_of_idle_{}", column)] = percent(idle_fragment_at(row.outcome, column));
  const Event last = row.outcome.events.empty() ? Event{} : row.outcome.events.back();
  object["set"] = row.set;
  object["synthetic"] = row.set != "one-dimensional";
  object["accepted"] = row.outcome.accepted;
  object["refused"] = row.outcome.refused;
  object["memory_pct"] = percent(last.memory_pct);
  object["core_pct"] = percent(last.core_pct);
  object["min_pct"] = percent(std::min(last.memory_pct, last.core_pct));
  object["mean_pct"] = percent(0.5 * (last.memory_pct + last.core_pct));
  object["decision_us_mean"] = two_decimals(decision_us(row.outcome));
  object["memory_bytes"] = static_cast<int64_t>(row.outcome.memory_bytes);
  return object;
}

json::Object to_json(const ChurnOutcome& churn, const std::string& trace, const std::string& policy, int64_t seed) {
  json::Object object;
  object["trace"] = trace;
  object["policy"] = policy;
  object["seed"] = seed;
  object["churn"] = true;
  object["time_divisor"] = two_decimals(churn.time_divisor);
  object["offered_pct"] = percent(churn.offered_pct);
  object["allocated_pct"] = percent(churn.allocated_pct);
  object["allocated_busy_pct"] = percent(churn.allocated_busy_pct);
  object["accepted"] = churn.accepted;
  object["refused"] = churn.refused;
  object["refused_demand_pct"] = percent(churn.refused_demand_pct);
  object["decision_us_mean"] =
      two_decimals(churn.decisions == 0 ? 0 : 1e6 * churn.decide_seconds / static_cast<double>(churn.decisions));
  return object;
}

std::string table(const std::vector<Row>& rows) {
  std::string text =
      fmt::format("{:<14} {:<9} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}\n", "trace", "policy", "seed",
                  "alloc100", "alloc130", "frag130", "memory", "compute", "accepted", "refused", "us/pod");
  for (size_t i = 0; i < rows.size();) {
    std::vector<Line> group;
    const size_t first = i;
    for (; i < rows.size() && rows[i].trace == rows[first].trace && rows[i].policy == rows[first].policy; ++i) {
      group.push_back(line_of(rows[i]));
      text += print(group.back());
    }
    if (group.size() > 1) text += print(mean_of(group));
  }
  return text;
}

}  // namespace sluice::replay
