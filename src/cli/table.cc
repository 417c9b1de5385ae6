#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sluice::cli {

std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns.size(); ++c) {
    size_t width = text::columns(columns[c].title);
    for (const auto& row : rows) width = std::max(width, c < row.size() ? text::columns(row[c]) : 0);
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](const auto& cell) {
    std::string whole;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string value = cell(c);
      const std::string space(widths[c] - text::columns(value), ' ');
      whole += c == 0 ? "" : "  ";
      whole += columns[c].right ? space + value : value + space;
    }
    whole.erase(whole.find_last_not_of(' ') + 1);
    out += whole + "\n";
  };
  line([&](size_t c) { return columns[c].title; });
  for (const auto& row : rows) line([&](size_t c) { return c < row.size() ? row[c] : std::string(); });
  return out;
}

std::string duration_text(int64_t seconds) {
  seconds = std::max<int64_t>(seconds, 0);
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{} d {} h", seconds / 86400, seconds / 3600 % 24);
}

std::string bar(double percent, int width) {
  const double part = std::clamp(percent, 0.0, 100.0) / 100;
  const int full = static_cast<int>(std::lround(part * width));
  return std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(width - full), '.');
}

}  // namespace sluice::cli
