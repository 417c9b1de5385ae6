// One link of a chain that `sluice doctor` and `sluice verify` walk along, and how it is shown.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace sluice::cli {

enum class LinkState {
  kHolds,
  kNote,  // works, but the user should know
  kBroken,
};
const char* to_string(LinkState state);

struct Link {
  std::string name;  // "driver", "kernel: futex"
  LinkState state = LinkState::kHolds;
  std::string found;  // one sentence or less
  std::string mend;   // not empty unless kHolds
};

// [{"link", "state", "found", "mend"}, ...]
json::Value to_json(const std::vector<Link>& links);

size_t count_broken(const std::vector<Link>& links);

}  // namespace sluice::cli
