#include "replay/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice::replay {
namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 64, kRight = 150, kTop = 40, kBottom = 52;
// Distinguishable also by people who do not tell red from green (Okabe and Ito's palette).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000", "#999999"};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

std::map<int, double> per_percent(const Outcome& outcome, double Event::* value) {
  std::map<int, std::pair<double, int>> sums;
  for (const Event& event : outcome.events) {
    auto& [sum, count] = sums[static_cast<int>(std::nearbyint(event.requested_pct))];
    sum += event.*value;
    ++count;
  }
  std::map<int, double> means;
  for (const auto& [percent, sum] : sums) means[percent] = sum.first / sum.second;
  return means;
}

// 1, 2 or 5 times a power of ten, so that there are four to ten marks.
double step_for(double range) {
  double step = std::pow(10, std::floor(std::log10(std::max(range, 1e-9))));
  for (double factor : {0.1, 0.2, 0.5, 1.0})
    if (range / (step * factor) <= 10) return step * factor;
  return step;
}

}  // namespace

std::string svg_chart(const std::string& title, const std::string& y_label, const std::vector<Curve>& curves,
                      double Event::* value) {
  std::vector<std::map<int, double>> points;
  double x_max = 10, y_max = 1;
  for (const Curve& curve : curves) {
    points.push_back(per_percent(*curve.outcome, value));
    for (const auto& [x, y] : points.back()) {
      x_max = std::max(x_max, static_cast<double>(x));
      y_max = std::max(y_max, y);
    }
  }
  const double x_step = step_for(x_max), y_step = step_for(y_max);
  y_max = std::ceil(y_max / y_step) * y_step;
  auto px = [&](double x) { return kLeft + x / x_max * (kWidth - kLeft - kRight); };
  auto py = [&](double y) { return kHeight - kBottom - y / y_max * (kHeight - kTop - kBottom); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3}</text>\n",
      kWidth, kHeight, kLeft, escaped(title));
  for (double x = 0; x <= x_max + 1e-9; x += x_step)
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        px(x), kTop, kHeight - kBottom, kHeight - kBottom + 18, x);
  for (double y = 0; y <= y_max + 1e-9; y += y_step)
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft, py(y), kWidth - kRight, kLeft - 6, py(y) + 4, y);
  svg +=
      fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">requested, % of the cluster's cards</text>\n",
                  (kLeft + kWidth - kRight) / 2, kHeight - 12);
  svg += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kHeight - kBottom) / 2, escaped(y_label));
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    std::string path;
    for (const auto& [x, y] : points[i]) path += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"/>\n", colour, path);
    const double y = kTop + 10 + 18 * static_cast<double>(i);
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
        "stroke-width=\"3\"/><text x=\"{4:.1f}\" y=\"{5:.1f}\">{6}</text>\n",
        kWidth - kRight + 12, kWidth - kRight + 32, y, colour, kWidth - kRight + 38, y + 4, escaped(curves[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace sluice::replay
