#include "cli/link.h"

#include <algorithm>

namespace sluice::cli {

const char* to_string(LinkState state) {
  switch (state) {
    case LinkState::kHolds:
      return "ok";
    case LinkState::kNote:
      return "note";
    case LinkState::kBroken:
      return "broken";
  }
  return "?";
}

json::Value to_json(const std::vector<Link>& links) {
  json::Array array;
  for (const Link& link : links) {
    array.push_back(json::Object{
        {"link", link.name}, {"state", to_string(link.state)}, {"found", link.found}, {"mend", link.mend}});
  }
  return array;
}

size_t count_broken(const std::vector<Link>& links) {
  return static_cast<size_t>(
      std::count_if(links.begin(), links.end(), [](const Link& link) { return link.state == LinkState::kBroken; }));
}

}  // namespace sluice::cli
