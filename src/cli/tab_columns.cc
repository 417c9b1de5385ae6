#include "cli/tab_columns.h"

#include <algorithm>
#include <vector>

namespace sluice::cli {
namespace {

constexpr size_t kPadding = 2;

using Line = std::vector<std::string_view>;  // the last one ends with the line, not with a tab

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(at, start);
    if (end == std::string_view::npos) {
      parts.push_back(text.substr(start));
      return parts;
    }
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
}

size_t width_of(std::string_view cell) {
  return static_cast<size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool has_column(const Line& line, size_t column) {
  return column + 1 < line.size();
}

}  // namespace

std::string align_tabs(std::string_view text) {
  std::vector<Line> lines;
  for (std::string_view line : split(text, '\n')) lines.push_back(split(line, '\t'));
  std::vector<std::vector<size_t>> widths(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) widths[i].resize(lines[i].size() - 1);
  size_t most = 0;
  for (const Line& line : lines) most = std::max(most, line.size());
  for (size_t column = 0; column + 1 < most; ++column) {
    for (size_t first = 0; first < lines.size();) {
      if (!has_column(lines[first], column)) {
        ++first;
        continue;
      }
      size_t end = first;
      size_t width = 0;
      for (; end < lines.size() && has_column(lines[end], column); ++end)
        width = std::max(width, width_of(lines[end][column]));
      for (; first < end; ++first) widths[first][column] = width + kPadding;
    }
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    for (size_t column = 0; column < lines[i].size(); ++column) {
      out += lines[i][column];
      if (has_column(lines[i], column)) out.append(widths[i][column] - width_of(lines[i][column]), ' ');
    }
  }
  return out;
}

}  // namespace sluice::cli
