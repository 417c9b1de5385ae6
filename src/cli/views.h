// What ps, cards and top show, as text, from the agent's own list. Pure, so that every layout is tested without an
// agent.
#pragma once

#include <cstdint>
#include <string>

#include "agent/protocol.h"

namespace sluice::cli {

// One line per grant and card. now_unix: seconds, for ages.
std::string ps_text(const agent::ListAnswer& list, int64_t now_unix);

// One line per card.
std::string cards_text(const agent::ListAnswer& list);

// A page for a terminal of this size: cards with bars, grants below, the last events. At most `rows` lines; what does
// not fit is counted in the last one. No control sequences.
std::string top_text(const agent::ListAnswer& list, int64_t now_unix, int rows, int columns);

// The sums that matter for one grant's JSON and lines: over its cards.
struct GrantTotals {
  int64_t used_mib = 0;
  int64_t limit_mib = 0;
  double utilisation_percent = 0;
  int64_t core_percent = 0;
};
GrantTotals totals(const agent::GrantStatus& grant);

}  // namespace sluice::cli
