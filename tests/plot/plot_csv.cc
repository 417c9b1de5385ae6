// Draws a CSV table as a line plot: the first column is x, every further column a series named by its header. Reads
// standard input, writes SVG to standard output. For scripts, which have numbers but no plotting.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "base/svg_plot.h"

namespace {

using sluice::svg::Plot;

std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  std::stringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) result.push_back(cell);
  return result;
}

// Appends the rows to the plot's series; an empty cell leaves a point out.
sluice::Result<void> read_table(std::istream& input, Plot& plot) {
  std::string line;
  if (!std::getline(input, line)) return sluice::invalid("no header line on standard input; expected x,name,...");
  const std::vector<std::string> header = cells(line);
  for (size_t i = 1; i < header.size(); ++i) plot.series.push_back({.name = header[i], .points = {}});
  for (size_t number = 2; std::getline(input, line); ++number) {
    const std::vector<std::string> row = cells(line);
    if (row.size() > header.size()) {
      return sluice::invalid(fmt::format("line {}: {} cells, the header has {}", number, row.size(), header.size()));
    }
    for (size_t i = 1; i < row.size(); ++i) {
      if (row[i].empty()) continue;
      char* x_end = nullptr;
      char* y_end = nullptr;
      const double x = std::strtod(row[0].c_str(), &x_end);
      const double y = std::strtod(row[i].c_str(), &y_end);
      if (row[0].empty() || *x_end != '\0' || *y_end != '\0') {
        return sluice::invalid(fmt::format("line {}: '{},{}' are not two numbers", number, row[0], row[i]));
      }
      plot.series[i - 1].points.push_back({x, y});
    }
  }
  return {};
}

int fail(const sluice::Error& error) {
  std::fprintf(stderr, "plot_csv: %s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Plot plot;
  double y_least = 0;
  double y_most = 0;
  std::vector<std::string> rules;
  CLI::App app("Draws a CSV table from standard input as SVG on standard output.", "plot_csv");
  app.add_option("--title", plot.title, "line above the plot");
  app.add_option("--x-label", plot.x_label, "below the x axis");
  app.add_option("--y-label", plot.y_label, "beside the y axis");
  const auto* least = app.add_option("--y-least", y_least, "lower end of the y axis");
  const auto* most = app.add_option("--y-most", y_most, "upper end of the y axis");
  app.add_option("--rule", rules, "horizontal rule, VALUE=NAME; repeatable");
  app.add_option("--width", plot.width, "pixels");
  app.add_option("--height", plot.height, "pixels");
  CLI11_PARSE(app, argc, argv);
  if (least->count() > 0) plot.y_least = y_least;
  if (most->count() > 0) plot.y_most = y_most;
  for (const std::string& rule : rules) {
    const size_t equals = rule.find('=');
    char* end = nullptr;
    const double value = std::strtod(rule.c_str(), &end);
    if (equals == std::string::npos || end != rule.c_str() + equals) {
      return fail(sluice::invalid(fmt::format("--rule {}: expected VALUE=NAME, as in 30=limit", rule)));
    }
    plot.rules.push_back({value, rule.substr(equals + 1)});
  }
  if (auto read = read_table(std::cin, plot); !read) return fail(read.error());
  auto text = sluice::svg::render(plot);
  if (!text) return fail(text.error());
  std::fwrite(text->data(), 1, text->size(), stdout);
  return 0;
}
