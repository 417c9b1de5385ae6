#include "base/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::svg {
namespace {

// Colours that differ for colour-blind readers too (Okabe and Ito, 2008); repeated with dashes beyond seven series.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"};
constexpr int kColourCount = 7;
constexpr int kLeft = 70;
constexpr int kRight = 24;
constexpr int kTop = 44;
constexpr int kBottom = 56;
constexpr int kLegendRow = 18;
constexpr double kLetterWidth = 7;  // generous for 12-pixel sans-serif

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  // A range without extent gets one, so that a constant series is a line in the middle.
  void widen() {
    if (least < most) return;
    const double half = least == 0 ? 0.5 : std::abs(least) / 2;
    least -= half;
    most += half;
  }
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) result += c;
    }
  }
  return result;
}

// Where values lie on the picture.
struct Frame {
  Range x;
  Range y;
  double left;
  double top;
  double width;
  double height;
  double at_x(double value) const { return left + (value - x.least) / (x.most - x.least) * width; }
  double at_y(double value) const {
    const double inside = std::clamp(value, y.least, y.most);
    return top + height - (inside - y.least) / (y.most - y.least) * height;
  }
};

Result<void> check(const Plot& plot) {
  if (plot.width < 200 || plot.width > 10000 || plot.height < 150 || plot.height > 10000) {
    return invalid(fmt::format("a plot of {} x {} pixels; 200 to 10000 wide and 150 to 10000 high are possible",
                               plot.width, plot.height));
  }
  if (plot.series.size() > kMostSeries) {
    return invalid(fmt::format("{} series in one plot, at most {} are possible", plot.series.size(), kMostSeries));
  }
  size_t points = 0;
  for (const Series& series : plot.series) {
    if (series.points.size() > kMostPoints) {
      return invalid(fmt::format("series '{}' has {} points, at most {} are possible", series.name,
                                 series.points.size(), kMostPoints));
    }
    for (const Point& point : series.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) {
        return invalid(fmt::format("series '{}' has a value that is not a number", series.name));
      }
    }
    points += series.points.size();
  }
  if (points == 0) return invalid(fmt::format("nothing to plot in '{}': no series has a point", plot.title));
  return {};
}

struct LegendEntry {
  size_t index;  // of the series
  double x;
  double y;
};

// Named series in rows between title and frame.
std::vector<LegendEntry> legend(const Plot& plot) {
  std::vector<LegendEntry> entries;
  double x = kLeft;
  double y = kTop;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    if (plot.series[i].name.empty()) continue;
    const double width = 44 + kLetterWidth * static_cast<double>(plot.series[i].name.size());
    if (x > kLeft && x + width > plot.width - kRight) {
      x = kLeft;
      y += kLegendRow;
    }
    entries.push_back({i, x, y});
    x += width;
  }
  return entries;
}

Frame frame_of(const Plot& plot) {
  Frame frame{};
  frame.left = kLeft;
  const std::vector<LegendEntry> entries = legend(plot);
  frame.top = entries.empty() ? kTop : entries.back().y + 10;
  frame.width = plot.width - kLeft - kRight;
  frame.height = std::max(plot.height - frame.top - kBottom, 20.0);
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      frame.x.take(point.x);
      frame.y.take(point.y);
    }
  }
  for (const Rule& rule : plot.rules) frame.y.take(rule.y);
  if (plot.y_least) frame.y.least = *plot.y_least;
  if (plot.y_most) frame.y.most = *plot.y_most;
  frame.x.widen();
  frame.y.widen();
  return frame;
}

void draw_axes(std::string& out, const Plot& plot, const Frame& frame) {
  const double bottom = frame.top + frame.height;
  for (const double mark : axis_marks(frame.y.least, frame.y.most, 6)) {
    const double y = frame.at_y(mark);
    out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n",
                       frame.left, y, frame.left + frame.width, y);
    out +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", frame.left - 6, y + 4, mark);
  }
  for (const double mark : axis_marks(frame.x.least, frame.x.most, 10)) {
    const double x = frame.at_x(mark);
    out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#666666\"/>\n", x,
                       bottom, x, bottom + 5);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>\n", x, bottom + 19, mark);
  }
  out += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"#666666\"/>\n",
      frame.left, frame.top, frame.width, frame.height);
  out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", frame.left + frame.width / 2,
                     plot.height - 14, escaped(plot.x_label));
  out += fmt::format(
      "<text x=\"18\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {0:.1f})\">{1}</text>\n",
      frame.top + frame.height / 2, escaped(plot.y_label));
}

void draw_series(std::string& out, const Series& series, size_t index, const Frame& frame) {
  if (series.points.empty()) return;
  out += "<path fill=\"none\" stroke-width=\"1.6\" stroke-linejoin=\"round\" stroke=\"";
  out += kColours[index % kColourCount];
  out += index >= kColourCount ? "\" stroke-dasharray=\"6 3\" d=\"" : "\" d=\"";
  for (size_t i = 0; i < series.points.size(); ++i) {
    const double x = frame.at_x(series.points[i].x);
    const double y = frame.at_y(series.points[i].y);
    if (i == 0) {
      out += fmt::format("M{:.1f} {:.1f}", x, y);
    } else if (series.step) {
      out += fmt::format("H{:.1f}V{:.1f}", x, y);
    } else {
      out += fmt::format("L{:.1f} {:.1f}", x, y);
    }
  }
  out += "\"/>\n";
}

void draw_rules(std::string& out, const Plot& plot, const Frame& frame) {
  for (const Rule& rule : plot.rules) {
    const double y = frame.at_y(rule.y);
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#444444\" stroke-dasharray=\"4 4\"/>\n",
        frame.left, y, frame.left + frame.width, y);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#444444\">{}</text>\n",
                       frame.left + frame.width - 6, y - 5, escaped(rule.name));
  }
}

void draw_legend(std::string& out, const Plot& plot) {
  for (const LegendEntry& entry : legend(plot)) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"{3}\" stroke-width=\"3\"/>\n",
        entry.x, entry.y - 4, entry.x + 22, kColours[entry.index % kColourCount]);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", entry.x + 28, entry.y,
                       escaped(plot.series[entry.index].name));
  }
}

}  // namespace

std::vector<double> axis_marks(double least, double most, int wanted) {
  std::vector<double> marks;
  if (!(least < most) || wanted < 1) return marks;
  const double rough = (most - least) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  const auto first = std::ceil(least / step - 1e-9);
  constexpr int kMostMarks = 100;
  for (int i = 0; i < kMostMarks; ++i) {
    const double mark = (first + i) * step;
    if (mark > most + step * 1e-9) break;
    marks.push_back(mark == 0 ? 0 : mark);  // never -0
  }
  return marks;
}

Result<std::string> render(const Plot& plot) {
  if (auto checked = check(plot); !checked) return std::move(checked).error();
  const Frame frame = frame_of(plot);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      plot.width, plot.height);
  out += fmt::format("<text x=\"{:.1f}\" y=\"26\" text-anchor=\"middle\" font-size=\"15\">{}</text>\n",
                     frame.left + frame.width / 2, escaped(plot.title));
  draw_axes(out, plot, frame);
  draw_rules(out, plot, frame);
  for (size_t i = 0; i < plot.series.size(); ++i) draw_series(out, plot.series[i], i, frame);
  draw_legend(out, plot);
  out += "</svg>\n";
  return out;
}

}  // namespace sluice::svg
