// Line charts like the figures of the FGD paper, as SVG: a value against cumulative arrivals.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "replay/experiment.h"

namespace sluice::replay {

struct Curve {
  std::string name;
  const Outcome* outcome;
};

// x: requested, in percent of capacity; y, from 0: the mean of `value` per percent of x. Errors: those of svg::render
// (too many curves, no event).
Result<std::string> svg_chart(const std::string& title, const std::string& y_label, const std::vector<Curve>& curves,
                              double Event::* value);

}  // namespace sluice::replay
