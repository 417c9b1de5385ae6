// Line plots as SVG text, for reports that programs write by themselves (utilisation over time, placement curves). A
// plotting library would bring an interpreter or a graphics stack for what is a hundred lines of text; viewers and
// rsvg-convert turn the result into whatever else is needed.
//
// Pure: values in, text out. Fonts are named, not embedded ("sans-serif").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::svg {

struct Point {
  double x;
  double y;
};

struct Series {
  std::string name;  // in the legend; empty: no entry
  std::vector<Point> points = {};
  bool step = false;  // hold each value until the next point instead of connecting points
};

// A horizontal rule across the plot, for a limit or a target.
struct Rule {
  double y;
  std::string name;
};

struct Plot {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<Series> series = {};
  std::vector<Rule> rules = {};
  std::optional<double> y_least = {};  // default: from the values
  std::optional<double> y_most = {};
  int width = 960;   // pixels, 200 to 10000
  int height = 420;  // pixels, 150 to 10000
};

// At most so many series and points per series; more is an error, not a slow plot.
inline constexpr size_t kMostSeries = 32;
inline constexpr size_t kMostPoints = 200000;

// A complete SVG document. Errors: no point at all, a value that is not finite, sizes or counts out of range.
Result<std::string> render(const Plot& plot);

// Values for the marks of an axis from `least` to `most`: multiples of 1, 2 or 5 times a power of ten, about `wanted`.
std::vector<double> axis_marks(double least, double most, int wanted);

}  // namespace sluice::svg
