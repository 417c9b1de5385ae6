// Writes the Prometheus text exposition format 0.0.4 from a snapshot at scrape time; nothing is counted here.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Starts a family: HELP and TYPE lines. type is "gauge", "counter" or "histogram"; samples of one family
  // stand together, and a histogram's are the caller's to sum (_bucket with label le, _sum, _count).
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, Labels labels, double value);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace sluice
