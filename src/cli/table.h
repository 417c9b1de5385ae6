// Columns of text for people, counted as a terminal shows them: as wide as their widest cell, two spaces between,
// numbers to the right. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"

namespace sluice::cli {

struct Column {
  std::string title;
  bool right = false;  // numbers
};

// Rows may be shorter than the columns. Every line ends with a newline and has no spaces at its end.
std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows);

// "2 h 5 min", "41 s": the two largest parts.
std::string duration_text(int64_t seconds);

// A bar of `width` cells for 0..100 percent, ASCII only: "######......".
std::string bar(double percent, int width);

using text::fit;

}  // namespace sluice::cli
