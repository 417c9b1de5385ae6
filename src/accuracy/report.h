// Runs scenarios and reports figures: text for people, JSON for scripts, a plot.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accuracy/scenario.h"
#include "base/json.h"

namespace sluice::accuracy {

struct ContainerFigures {
  std::string name;
  double quota_percent = 0;  // 0: none
  double target_percent = 0;
  double mean_percent = 0;
  double executing_percent = 0;
  double worst_1s_points = 0;
  double worst_10s_points = 0;
  double worst_300s_points = 0;
  double over_1s_points = 0;  // above the quota
  double over_10s_points = 0;
  double delivered_of_target = 0;
  double uncapped_percent = 0;
  double worst_wait_ms = 0;   // longest launch
  double latency_p50_ms = 0;  // from the first launch of a step to the end of its synchronisation
  double latency_p99_ms = 0;
  double longest_pause_ms = 0;          // longest time without the card
  double slowdown = 0;                  // units per second alone and without the library / with both; 0: no units
  double turn_percent = 0;              // of the wall time, its turns
  std::optional<double> settled_error;  // busy time as the account has it / the log's, minus 1; none: was not measured
  double longest_unit_us = 0;           // drawn
  bool saturated = false;
  bool measured = false;          // it was there for long enough; else only mean and uncapped say anything
  std::vector<double> shares_1s;  // for plots: consecutive seconds
};

// With several cards, of each figure the worst card's.
struct Figures {
  double card_busy = 0;  // 0..1, from 2 s on
  double longest_idle_ms = 0;
  double turns_per_s = 0;
  double overruns = 0;
  std::vector<ContainerFigures> containers;
};

// Runs seeds scenario.seed .. + seeds - 1; of each figure the worst.
Result<Figures> run_seeds(const Scenario& scenario, int seeds);

json::Object to_json(const Scenario& scenario, const Figures& figures);
std::string to_text(const Figures& figures);
Result<std::string> to_plot(const Scenario& scenario, const Figures& figures);

int accuracy_main(int argc, char** argv);

}  // namespace sluice::accuracy
