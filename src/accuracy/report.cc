#include "accuracy/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "accuracy/ideal.h"
#include "accuracy/measure.h"
#include "accuracy/world.h"
#include "base/svg_plot.h"

namespace sluice::accuracy {

namespace {

constexpr size_t kWarmUpMs = 2000;
constexpr double kUncappedSeconds = 8;  // of the run without the library: its shares do not drift

size_t end_ms(const Scenario& scenario, const ContainerSpec& spec) {
  double end_s = scenario.seconds;
  if (spec.stop_s) end_s = std::min(end_s, *spec.stop_s);
  if (spec.kill_s) end_s = std::min(end_s, *spec.kill_s);
  if (spec.freeze_s) end_s = std::min(end_s, *spec.freeze_s);
  return static_cast<size_t>(end_s * 1000);
}

size_t begin_ms(const ContainerSpec& spec) {
  return static_cast<size_t>(spec.start_s * 1000) + kWarmUpMs;
}

// A stretch of the run in which a container's target is one and the same. After an uncapped one the first second is not
// held to the new target: what was launched before is still queued.
struct Phase {
  size_t from_ms;
  size_t to_ms;
  double quota_percent;
  double target_percent;
};

std::vector<Phase> phases_of(const Scenario& scenario, const ContainerSpec& spec, const ContainerFigures& figures) {
  std::vector<Phase> phases = {{begin_ms(spec), end_ms(scenario, spec), figures.quota_percent, figures.target_percent}};
  for (const ContainerSpec::Change& change : spec.changes) {
    const size_t at = static_cast<size_t>(change.at_s * 1000);
    Phase& last = phases.back();
    if (at >= last.to_ms) break;
    const size_t queued_ms = last.quota_percent == 0 ? 1000 : 0;
    const size_t end = last.to_ms;
    last.to_ms = at;
    phases.push_back({std::max(at + queued_ms, begin_ms(spec)), end, change.percent,
                      change.percent == 0 ? figures.uncapped_percent : change.percent});
  }
  std::erase_if(phases, [](const Phase& phase) { return phase.from_ms + 1000 > phase.to_ms; });
  return phases;
}

struct Uncapped {
  double mean_percent = 0;
  double least_100ms = 0;
};

// The container's programs alone on the card, without the library.
Result<Uncapped> run_uncapped(const Scenario& scenario, const ContainerSpec& spec) {
  Scenario alone = scenario;
  alone.seconds = std::min(scenario.seconds, kUncappedSeconds);
  alone.containers = {spec};
  ContainerSpec& only = alone.containers[0];
  only.start_s = 0;
  only.stop_s.reset();
  only.kill_s.reset();
  only.freeze_s.reset();
  Result<std::unique_ptr<World>> world = World::create(alone, false);
  if (!world) return world.error();
  (*world)->run();
  const World::Bins bins = (*world)->container_bins(0);
  Uncapped result;
  result.mean_percent = mean_percent(bins.occupied_ns, kWarmUpMs, bins.occupied_ns.size());
  result.least_100ms = least_share_100ms(bins.occupied_ns, kWarmUpMs, bins.occupied_ns.size());
  return result;
}

// Targets of all containers: the quota where the program alone keeps the card busy enough, else what an ideal bucket
// gives it; uncapped ones share by weight what the capped leave.
void set_targets(const Scenario& scenario, std::vector<ContainerFigures>& figures, const std::vector<double>& least) {
  double capped = 0;
  double weights = 0;
  for (size_t i = 0; i < figures.size(); ++i) {
    ContainerFigures& one = figures[i];
    if (one.quota_percent == 0) {
      weights += scenario.containers[i].weight;
      continue;
    }
    one.saturated = least[i] >= std::min(99.0, one.quota_percent + 5);
    one.target_percent = scenario.containers[i].lies ? 0 : one.quota_percent;
    if (!one.saturated && !scenario.containers[i].lies) {
      // The model of the program is held against the program itself, run without the library.
      const ContainerSpec& spec = scenario.containers[i];
      const double model = ideal_percent(spec, 0, scenario.seconds, scenario.seed);
      const double bucket = ideal_percent(spec, one.quota_percent, scenario.seconds, scenario.seed);
      if (model > 0) one.target_percent = std::min(one.quota_percent, bucket * one.uncapped_percent / model);
    }
    capped += one.target_percent;
  }
  for (size_t i = 0; i < figures.size(); ++i) {
    ContainerFigures& one = figures[i];
    if (one.quota_percent != 0) continue;
    const double left = std::max(0.0, 100 - capped) * scenario.containers[i].weight / weights;
    one.target_percent = scenario.gated ? std::min(one.uncapped_percent, left) : one.uncapped_percent;
    one.saturated = one.uncapped_percent >= left + 5;
  }
}

// The worst of all phases; means over all of them.
void add_windows(const World::Bins& bins, const std::vector<Phase>& phases, ContainerFigures& one) {
  double total_ms = 0;
  double target = 0;
  for (const Phase& phase : phases) {
    const double limit = phase.quota_percent == 0 ? 100 : phase.quota_percent;
    const WindowFigures second = windows(bins.occupied_ns, phase.from_ms, phase.to_ms, 1000, phase.target_percent);
    const WindowFigures ten = windows(bins.occupied_ns, phase.from_ms, phase.to_ms, 10000, phase.target_percent);
    const double length = static_cast<double>(phase.to_ms - phase.from_ms);
    total_ms += length;
    target += phase.target_percent * length;
    one.mean_percent += second.mean_percent * length;
    one.executing_percent += mean_percent(bins.executing_ns, phase.from_ms, phase.to_ms) * length;
    one.worst_1s_points = std::max(one.worst_1s_points, second.worst_points);
    one.worst_10s_points = std::max(one.worst_10s_points, ten.worst_points);
    one.over_1s_points =
        std::max(one.over_1s_points, windows(bins.occupied_ns, phase.from_ms, phase.to_ms, 1000, limit).over_points);
    one.over_10s_points =
        std::max(one.over_10s_points, windows(bins.occupied_ns, phase.from_ms, phase.to_ms, 10000, limit).over_points);
  }
  if (total_ms == 0) return;
  one.mean_percent /= total_ms;
  one.executing_percent /= total_ms;
  one.target_percent = target / total_ms;
  one.delivered_of_target = one.target_percent > 0 ? one.mean_percent / one.target_percent : 0;
}

}  // namespace

Result<Figures> run_scenario(const Scenario& scenario) {
  Result<std::unique_ptr<World>> made = World::create(scenario, true);
  if (!made) return made.error();
  World& world = **made;
  world.run();
  Figures figures;
  const World::Bins card = world.card_bins();
  figures.card_busy = mean_percent(card.occupied_ns, kWarmUpMs, card.occupied_ns.size()) / 100;
  std::vector<core::ShareRequest> requests;
  for (const ContainerSpec& spec : scenario.containers) {
    requests.push_back({static_cast<uint32_t>(spec.percent * 10 + 0.5), spec.weight, spec.high_priority});
  }
  const std::vector<uint32_t> shares = core::shares_of(scenario.policy, scenario.max_containers, requests);
  std::vector<double> least;
  for (size_t i = 0; i < scenario.containers.size(); ++i) {
    const ContainerSpec& spec = scenario.containers[i];
    ContainerFigures one;
    one.name = spec.name;
    one.quota_percent = scenario.gated ? shares[i] / 10.0 : 0;
    Result<Uncapped> uncapped = spec.lies ? Uncapped{} : run_uncapped(scenario, spec);
    if (!uncapped) return uncapped.error();
    one.uncapped_percent = uncapped->mean_percent;
    least.push_back(uncapped->least_100ms);
    figures.containers.push_back(one);
  }
  set_targets(scenario, figures.containers, least);
  for (size_t i = 0; i < scenario.containers.size(); ++i) {
    const ContainerSpec& spec = scenario.containers[i];
    ContainerFigures& one = figures.containers[i];
    const World::Bins bins = world.container_bins(i);
    add_windows(bins, phases_of(scenario, spec, one), one);
    for (const std::unique_ptr<ProgramProcess>& process : world.processes()) {
      if (process->container == i) one.worst_wait_ms = std::max(one.worst_wait_ms, process->longest_wait_ms);
    }
    double logged = 0;
    for (const uint32_t ns : bins.occupied_ns) logged += ns;
    const double settled = static_cast<double>(world.pages(i).usage->cards[0].account.busy_total_ns.load());
    one.settled_error = logged > 0 ? settled / logged - 1 : 0;
    for (const StreamSpec& stream : spec.streams) {
      one.longest_unit_us =
          std::max(one.longest_unit_us, stream.kernel_us.largest() * std::max(1u, stream.graph_nodes));
    }
    for (size_t ms = 0; ms + 1000 <= bins.occupied_ns.size(); ms += 1000) {
      one.shares_1s.push_back(mean_percent(bins.occupied_ns, ms, ms + 1000));
    }
  }
  if (world.keeper() != nullptr) {
    for (const agent::TurnReport& report : world.keeper()->report()) {
      figures.turns_per_s += static_cast<double>(report.counters.turns) / scenario.seconds;
      figures.overruns += static_cast<double>(report.counters.overruns);
    }
  }
  return figures;
}

Result<Figures> run_seeds(const Scenario& scenario, int seeds) {
  Figures worst;
  for (int i = 0; i < seeds; ++i) {
    Scenario one = scenario;
    one.seed = scenario.seed + static_cast<uint64_t>(i);
    Result<Figures> figures = run_scenario(one);
    if (!figures) return figures.error();
    if (i == 0) {
      worst = *figures;
      continue;
    }
    worst.card_busy = std::min(worst.card_busy, figures->card_busy);
    for (size_t c = 0; c < worst.containers.size(); ++c) {
      ContainerFigures& w = worst.containers[c];
      const ContainerFigures& f = figures->containers[c];
      w.worst_1s_points = std::max(w.worst_1s_points, f.worst_1s_points);
      w.worst_10s_points = std::max(w.worst_10s_points, f.worst_10s_points);
      w.over_1s_points = std::max(w.over_1s_points, f.over_1s_points);
      w.over_10s_points = std::max(w.over_10s_points, f.over_10s_points);
      w.worst_wait_ms = std::max(w.worst_wait_ms, f.worst_wait_ms);
      w.longest_unit_us = std::max(w.longest_unit_us, f.longest_unit_us);
      if (std::abs(f.settled_error) > std::abs(w.settled_error)) w.settled_error = f.settled_error;
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
    object["settled_error"] = rounded(one.settled_error);
    object["longest_unit_us"] = rounded(one.longest_unit_us);
    object["saturated"] = one.saturated;
    containers.push_back(object);
  }
  json::Object result;
  result["name"] = scenario.name;
  result["host"] = scenario.host;
  result["card"] = scenario.card;
  result["seconds"] = scenario.seconds;
  result["seed"] = scenario.seed;
  result["card_busy"] = rounded(figures.card_busy);
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
        one.over_1s_points, one.delivered_of_target, one.uncapped_percent, one.worst_wait_ms, one.settled_error * 100);
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
