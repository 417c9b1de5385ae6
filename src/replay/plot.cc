#include "replay/plot.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/svg_plot.h"

namespace sluice::replay {
namespace {

std::vector<svg::Point> per_percent(const Outcome& outcome, double Event::* value) {
  std::map<int, std::pair<double, int>> sums;
  for (const Event& event : outcome.events) {
    auto& [sum, count] = sums[static_cast<int>(std::nearbyint(event.requested_pct))];
    sum += event.*value;
    ++count;
  }
  std::vector<svg::Point> means;
  for (const auto& [percent, sum] : sums) means.push_back({static_cast<double>(percent), sum.first / sum.second});
  return means;
}

}  // namespace

Result<std::string> svg_chart(const std::string& title, const std::string& y_label, const std::vector<Curve>& curves,
                              double Event::* value) {
  svg::Plot plot{.title = title, .x_label = "requested, % of the cluster's cards", .y_label = y_label, .y_least = 0.0};
  for (const Curve& curve : curves) plot.series.push_back({curve.name, per_percent(*curve.outcome, value)});
  return svg::render(plot);
}

}  // namespace sluice::replay
