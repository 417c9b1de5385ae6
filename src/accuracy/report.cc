#include "accuracy/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "accuracy/measure.h"
#include "accuracy/targets.h"
#include "accuracy/world.h"
#include "base/svg_plot.h"
#include "governor/account.h"

namespace sluice::accuracy {

namespace {

constexpr double kUncappedSeconds = 8;  // of the run without the library of a program that keeps the card busy
constexpr double kKeepsBusyPercent = 97;

// The container's programs alone on the card, without the library.
Result<Uncapped> run_uncapped(const Scenario& scenario, const ContainerSpec& spec, double seconds) {
  Scenario alone = scenario;
  alone.seconds = std::min(scenario.seconds, seconds);
  alone.containers = {spec};
  ContainerSpec& only = alone.containers[0];
  only.start_s = 0;
  only.lives_s = 0;
  only.stop_s.reset();
  only.kill_s.reset();
  only.freeze_s.reset();
  for (StreamSpec& stream : only.streams) stream.hangs_after = 0;
  Result<std::unique_ptr<World>> world = World::create(alone, false);
  if (!world) return world.error();
  (*world)->run();
  const World::Bins bins = (*world)->container_bins(0);
  Uncapped result;
  result.mean_percent = mean_percent(bins.occupied_ns, kWarmUpMs, bins.occupied_ns.size());
  result.least_100ms = least_share_100ms(bins.occupied_ns, kWarmUpMs, bins.occupied_ns.size());
  for (const auto& process : (*world)->processes()) result.units_per_s += static_cast<double>(process->units);
  result.units_per_s /= alone.seconds - kWarmUpMs / 1000.0;
  return result;
}

void raise(double& figure, double found) {
  figure = std::max(figure, found);
}

// The worst of all phases; means over all of them.
void add_windows(const World::Bins& bins, const std::vector<Phase>& phases, ContainerFigures& one) {
  double total_ms = 0;
  ContainerFigures sums;
  for (const Phase& phase : phases) {
    const double limit = phase.quota_percent == 0 ? 100 : phase.quota_percent;
    const auto figures = [&](size_t window_ms, double target) {
      return windows(bins.occupied_ns, phase.from_ms, phase.to_ms, window_ms, target);
    };
    const double length = static_cast<double>(phase.to_ms - phase.from_ms);
    total_ms += length;
    sums.target_percent += phase.target_percent * length;
    sums.mean_percent += mean_percent(bins.occupied_ns, phase.from_ms, phase.to_ms) * length;
    sums.executing_percent += mean_percent(bins.executing_ns, phase.from_ms, phase.to_ms) * length;
    raise(one.worst_1s_points, figures(1000, phase.target_percent).worst_points);
    raise(one.worst_10s_points, figures(10'000, phase.target_percent).worst_points);
    raise(one.worst_300s_points, figures(300'000, phase.target_percent).worst_points);
    raise(one.over_1s_points, figures(1000, limit).over_points);
    raise(one.over_10s_points, figures(10'000, limit).over_points);
    raise(one.longest_pause_ms, longest_gap_ms(bins.occupied_ns, phase.from_ms, phase.to_ms));
  }
  if (total_ms == 0) return;
  const double delivered = sums.target_percent > 0 ? sums.mean_percent / sums.target_percent : 0;
  if (one.measured && delivered >= one.delivered_of_target) return;  // a better card of the same container
  one.measured = true;
  one.target_percent = sums.target_percent / total_ms;
  one.mean_percent = sums.mean_percent / total_ms;
  one.executing_percent = sums.executing_percent / total_ms;
  one.delivered_of_target = delivered;
}

// It was there for less than the warm-up and a second, or comes and goes: its mean over the time from its start.
void add_mean(const Scenario& scenario, const ContainerSpec& spec, const World::Bins& bins, ContainerFigures& one) {
  const size_t from = static_cast<size_t>(spec.start_s * 1000);
  const size_t to = static_cast<size_t>(std::min(scenario.seconds, spec.stop_s.value_or(scenario.seconds)) * 1000);
  one.mean_percent = mean_percent(bins.occupied_ns, from, to);
  one.executing_percent = mean_percent(bins.executing_ns, from, to);
}

double percentile(std::vector<float>& values, double part) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

// What the container's own programs saw.
void add_programs(World& world, size_t index, const Uncapped& uncapped, ContainerFigures& one) {
  std::vector<float> latencies;
  double units = 0;
  for (const std::unique_ptr<ProgramProcess>& process : world.processes()) {
    if (process->container != index) continue;
    raise(one.worst_wait_ms, process->longest_wait_ms);
    units += static_cast<double>(process->units);
    latencies.insert(latencies.end(), process->latency_ms.begin(), process->latency_ms.end());
  }
  one.latency_p50_ms = percentile(latencies, 0.50);
  one.latency_p99_ms = percentile(latencies, 0.99);
  const double seconds = world.scenario().seconds - kWarmUpMs / 1000.0;
  one.slowdown = units > 0 ? uncapped.units_per_s / (units / seconds) : 0;
}

// Up to where a container's account is settled, in ms of card time: what is in flight when the run ends is not in it.
double settled_ms(World& world, size_t index, uint32_t card) {
  const std::vector<std::unique_ptr<Pages>>& lives = world.pages(index);
  const double end_ms = world.scenario().seconds * 1000;
  if (lives.size() != 1) return end_ms;
  const uint64_t now_ns = world.fibres().now_ns();
  const governor::Credit credit = governor::load_credit(lives.back()->usage->cards[card].account);
  return credit.settled_ns == 0
             ? end_ms
             : end_ms - static_cast<double>(now_ns - std::min(now_ns, governor::settled_time(credit, now_ns))) / 1e6;
}

double logged_until(const World::Bins& bins, double until_ms) {
  double sum = 0;
  for (size_t ms = 0; ms < bins.occupied_ns.size(); ++ms) {
    sum += bins.occupied_ns[ms] * std::clamp(until_ms - static_cast<double>(ms), 0.0, 1.0);
  }
  return sum;
}

void add_settled(World& world, size_t index, double logged_ns, ContainerFigures& one) {
  double settled = 0;
  for (const std::unique_ptr<Pages>& pages : world.pages(index)) {
    for (uint32_t card = 0; card < world.scenario().containers[index].cards; ++card) {
      settled += static_cast<double>(pages->usage->cards[card].account.busy_total_ns.load());
    }
  }
  if (logged_ns > 0 && settled > 0) one.settled_error = settled / logged_ns - 1;
}

double longest_unit_us(World& world, const ContainerSpec& spec) {
  double longest = 0;
  const sim::ProfileData& profile = world.card().profile();
  for (const StreamSpec& stream : spec.streams) {
    const double per_wave = profile.sms * std::max(1.0, profile.threads_per_sm / 128.0);
    const double waves = stream.per_block ? std::ceil(stream.grid.largest() / per_wave) : 1;
    longest = std::max(longest, stream.kernel_us.largest() * waves * std::max(1u, stream.graph_nodes));
  }
  return longest;
}

ContainerFigures container_figures(World& world, size_t index, const std::vector<Uncapped>& uncapped) {
  const Scenario& scenario = world.scenario();
  const ContainerSpec& spec = scenario.containers[index];
  ContainerFigures one;
  one.name = spec.name;
  one.uncapped_percent = uncapped[index].mean_percent;
  one.longest_unit_us = longest_unit_us(world, spec);
  double logged = 0;
  for (uint32_t card = 0; card < spec.cards; ++card) {
    const World::Bins bins = world.container_bins(index, card);
    const std::vector<Phase> phases = phases_of(scenario, index, card, uncapped);
    add_windows(bins, phases, one);
    if (phases.empty() && card == 0) add_mean(scenario, spec, bins, one);
    if (!phases.empty() && card == 0) {
      one.quota_percent = phases.front().quota_percent;
      one.saturated = phases.front().saturated;
    }
    logged += logged_until(bins, settled_ms(world, index, card));
    for (size_t ms = 0; card == 0 && ms + 1000 <= bins.occupied_ns.size(); ms += 1000) {
      one.shares_1s.push_back(mean_percent(bins.occupied_ns, ms, ms + 1000));
    }
  }
  if (one.quota_percent == 0 && scenario.gated && !one.measured) one.quota_percent = spec.percent;
  add_programs(world, index, uncapped[index], one);
  add_settled(world, index, logged, one);
  return one;
}

// Renews what is known of the programs alone for this scenario's seed. What a program does that keeps the card busy
// does not depend on it; one that pauses draws the same pauses alone and beside others, and some hundred of them would
// be off by a hundredth: it is run at full length for each seed.
Result<void> run_all_uncapped(const Scenario& scenario, std::vector<Uncapped>& uncapped) {
  const bool first = uncapped.empty();
  uncapped.resize(scenario.containers.size());
  for (size_t i = 0; i < uncapped.size(); ++i) {
    const ContainerSpec& spec = scenario.containers[i];
    if (spec.lies != Lie::kNone) continue;
    if (first) {
      Result<Uncapped> alone = run_uncapped(scenario, spec, kUncappedSeconds);
      if (!alone) return alone.error();
      uncapped[i] = *alone;
    }
    if (uncapped[i].mean_percent >= kKeepsBusyPercent) continue;
    Result<Uncapped> alone = run_uncapped(scenario, spec, scenario.seconds);
    if (!alone) return alone.error();
    uncapped[i] = *alone;
  }
  return {};
}

Result<Figures> run_scenario(const Scenario& scenario, const std::vector<Uncapped>& uncapped) {
  Result<std::unique_ptr<World>> made = World::create(scenario, true);
  if (!made) return made.error();
  World& world = **made;
  world.run();
  Figures figures;
  figures.card_busy = 1;
  for (uint32_t card = 0; card < world.card_count(); ++card) {
    const World::Bins bins = world.card_bins(card);
    const size_t end = bins.occupied_ns.size();
    figures.card_busy = std::min(figures.card_busy, mean_percent(bins.occupied_ns, kWarmUpMs, end) / 100);
    raise(figures.longest_idle_ms, longest_gap_ms(bins.occupied_ns, kWarmUpMs, end));
  }
  for (size_t i = 0; i < scenario.containers.size(); ++i) {
    figures.containers.push_back(container_figures(world, i, uncapped));
  }
  for (uint32_t card = 0; card < world.card_count(); ++card) {
    for (const agent::TurnReport& report : world.turns(card)) {
      figures.turns_per_s += static_cast<double>(report.counters.turns) / scenario.seconds;
      figures.overruns += static_cast<double>(report.counters.overruns);
      ContainerFigures& one = figures.containers[World::container_of(report.id)];
      one.turn_percent += static_cast<double>(report.counters.wall_ns) / (scenario.seconds * 1e7);
    }
  }
  return figures;
}

}  // namespace

Result<Figures> run_seeds(const Scenario& scenario, int seeds) {
  std::vector<Uncapped> uncapped;
  Figures worst;
  for (int i = 0; i < seeds; ++i) {
    Scenario one = scenario;
    one.seed = scenario.seed + static_cast<uint64_t>(i);
    if (Result<void> alone = run_all_uncapped(one, uncapped); !alone) return alone.error();
    Result<Figures> figures = run_scenario(one, uncapped);
    if (!figures) return figures.error();
    if (i == 0) {
      worst = *figures;
      continue;
    }
    worst.card_busy = std::min(worst.card_busy, figures->card_busy);
    raise(worst.longest_idle_ms, figures->longest_idle_ms);
    raise(worst.overruns, figures->overruns);
    for (size_t c = 0; c < worst.containers.size(); ++c) {
      ContainerFigures& w = worst.containers[c];
      const ContainerFigures& f = figures->containers[c];
      raise(w.worst_1s_points, f.worst_1s_points);
      raise(w.worst_10s_points, f.worst_10s_points);
      raise(w.worst_300s_points, f.worst_300s_points);
      raise(w.over_1s_points, f.over_1s_points);
      raise(w.over_10s_points, f.over_10s_points);
      raise(w.worst_wait_ms, f.worst_wait_ms);
      raise(w.latency_p50_ms, f.latency_p50_ms);
      raise(w.latency_p99_ms, f.latency_p99_ms);
      raise(w.longest_pause_ms, f.longest_pause_ms);
      raise(w.slowdown, f.slowdown);
      raise(w.turn_percent, f.turn_percent);
      raise(w.longest_unit_us, f.longest_unit_us);
      if (std::abs(f.settled_error.value_or(0)) > std::abs(w.settled_error.value_or(0))) {
        w.settled_error = f.settled_error;
      }
      if (f.delivered_of_target < w.delivered_of_target) {
        w.delivered_of_target = f.delivered_of_target;
        w.mean_percent = f.mean_percent;
        w.target_percent = f.target_percent;
        w.executing_percent = f.executing_percent;
      }
    }
  }
  return worst;
}

json::Object to_json(const Scenario& scenario, const Figures& figures) {
  const auto rounded = [](double value) { return std::round(value * 1e5) / 1e5; };
  json::Array containers;
  for (const ContainerFigures& one : figures.containers) {
    json::Object object;
    object["name"] = one.name;
    object["quota_percent"] = one.quota_percent;
    object["target_percent"] = rounded(one.target_percent);
    object["mean_percent"] = rounded(one.mean_percent);
    object["executing_percent"] = rounded(one.executing_percent);
    object["worst_1s_points"] = rounded(one.worst_1s_points);
    object["worst_10s_points"] = rounded(one.worst_10s_points);
    object["over_1s_points"] = rounded(one.over_1s_points);
    object["over_10s_points"] = rounded(one.over_10s_points);
    object["delivered_of_target"] = rounded(one.delivered_of_target);
    object["uncapped_percent"] = rounded(one.uncapped_percent);
    object["worst_wait_ms"] = rounded(one.worst_wait_ms);
    object["worst_300s_points"] = rounded(one.worst_300s_points);
    object["latency_p50_ms"] = rounded(one.latency_p50_ms);
    object["latency_p99_ms"] = rounded(one.latency_p99_ms);
    object["longest_pause_ms"] = rounded(one.longest_pause_ms);
    object["slowdown"] = rounded(one.slowdown);
    object["turn_percent"] = rounded(one.turn_percent);
    object["settled_error"] = one.settled_error ? json::Value(rounded(*one.settled_error)) : json::Value(nullptr);
    object["longest_unit_us"] = rounded(one.longest_unit_us);
    object["saturated"] = one.saturated;
    object["measured"] = one.measured;
    containers.push_back(object);
  }
  json::Object result;
  result["name"] = scenario.name;
  result["host"] = scenario.host;
  result["card"] = scenario.card;
  result["seconds"] = scenario.seconds;
  result["seed"] = scenario.seed;
  result["card_busy"] = rounded(figures.card_busy);
  result["longest_idle_ms"] = rounded(figures.longest_idle_ms);
  result["turns_per_s"] = rounded(figures.turns_per_s);
  result["overruns"] = figures.overruns;
  result["containers"] = containers;
  return result;
}

std::string to_text(const Figures& figures) {
  std::string text =
      fmt::format("{:<12} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}\n", "container", "quota",
                  "target", "mean", "worst 1s", "worst10s", "over 1s", "delivered", "uncapped", "wait ms", "settled");
  for (const ContainerFigures& one : figures.containers) {
    text += fmt::format(
        "{:<12} {:>7.1f} {:>7.2f} {:>7.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>9.4f} {:>9.2f} {:>9.1f} {:>+8.3f}%\n",
        one.name, one.quota_percent, one.target_percent, one.mean_percent, one.worst_1s_points, one.worst_10s_points,
        one.over_1s_points, one.delivered_of_target, one.uncapped_percent, one.worst_wait_ms,
        one.settled_error.value_or(0) * 100);
  }
  text += fmt::format("card busy {:.4f}, {:.1f} turns/s, {} overruns\n", figures.card_busy, figures.turns_per_s,
                      figures.overruns);
  return text;
}

Result<std::string> to_plot(const Scenario& scenario, const Figures& figures) {
  svg::Plot plot;
  plot.title = scenario.name.empty() ? "share of the card, each second" : scenario.name;
  plot.x_label = "s";
  plot.y_label = "% of the card";
  plot.y_least = 0;
  plot.y_most = 100;
  for (const ContainerFigures& one : figures.containers) {
    svg::Series series;
    series.name = one.name;
    series.step = true;
    for (size_t s = 0; s < one.shares_1s.size(); ++s)
      series.points.push_back({static_cast<double>(s), one.shares_1s[s]});
    plot.series.push_back(series);
    if (one.quota_percent > 0) plot.rules.push_back({one.quota_percent, fmt::format("{} %", one.quota_percent)});
  }
  return svg::render(plot);
}

}  // namespace sluice::accuracy
