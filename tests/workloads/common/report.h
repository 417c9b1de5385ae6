// What a workload prints at its end: named figures in order, as one line of JSON (--json) or one line each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace workloads {

class Report {
 public:
  explicit Report(const char* workload) { text("workload", workload); }
  void number(const char* name, double value);  // printed with 6 significant digits; not finite becomes null
  void count(const char* name, uint64_t value);
  void text(const char* name, std::string_view value);
  void raw(const char* name, std::string json);  // a JSON value built by the caller

  void print(bool as_json) const;
  std::string to_json() const;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

// A JSON string with its quotes; control characters are escaped.
std::string json_quote(std::string_view text);

}  // namespace workloads
