#include "common/report.h"

#include <cmath>
#include <cstdio>

namespace workloads {

std::string json_quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

void Report::number(const char* name, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  fields_.emplace_back(name, std::isfinite(value) ? text : "null");
}

void Report::count(const char* name, uint64_t value) {
  fields_.emplace_back(name, std::to_string(value));
}

void Report::text(const char* name, std::string_view value) {
  fields_.emplace_back(name, json_quote(value));
}

void Report::raw(const char* name, std::string json) {
  fields_.emplace_back(name, std::move(json));
}

std::string Report::to_json() const {
  std::string line = "{";
  for (const auto& [name, value] : fields_) {
    if (line.size() > 1) line += ',';
    line += json_quote(name) + ':' + value;
  }
  return line + '}';
}

void Report::print(bool as_json) const {
  if (as_json) {
    std::printf("%s\n", to_json().c_str());
  } else {
    for (const auto& [name, value] : fields_) std::printf("%-24s %s\n", name.c_str(), value.c_str());
  }
  std::fflush(stdout);
}

}  // namespace workloads
