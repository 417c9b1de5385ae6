// Line charts as self-contained SVG, like the figures of the FGD paper: a value against cumulative arrivals.
#pragma once

#include <string>
#include <vector>

#include "replay/experiment.h"

namespace sluice::replay {

struct Curve {
  std::string name;
  const Outcome* outcome;
};

// x: requested, in percent of capacity; y: the mean of `value` per percent of x. At most eight curves have their own
// colour. `title` and `y_label` are plain text.
std::string svg_chart(const std::string& title, const std::string& y_label, const std::vector<Curve>& curves,
                      double Event::* value);

}  // namespace sluice::replay
