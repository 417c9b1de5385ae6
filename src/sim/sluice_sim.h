// Shared by the two files of the tool.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/card.h"

namespace sluice::sim {

struct Arguments {
  std::vector<std::string> words;
  std::map<std::string, std::string> options;  // --name value, --name=value, --name
  bool has(const std::string& name) const { return options.count(name) != 0; }
  std::string option(const std::string& name, const std::string& fallback) const {
    const auto at = options.find(name);
    return at == options.end() ? fallback : at->second;
  }
};

uint64_t monotonic_ns();
std::optional<int64_t> parse_number(const std::string& text);
int print_log(const Arguments& arguments, Card& card);

}  // namespace sluice::sim
