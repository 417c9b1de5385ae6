#include "base/metrics_text.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice {
namespace {

std::string escape(std::string_view text, bool quotes) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

}  // namespace

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escape(help, false), name, type);
}

void MetricsText::sample(std::string_view name, Labels labels, double value) {
  text_ += name;
  if (labels.size() > 0) {
    text_ += '{';
    bool first = true;
    for (const auto& [key, label] : labels) {
      text_ += fmt::format("{}{}=\"{}\"", first ? "" : ",", key, escape(label, true));
      first = false;
    }
    text_ += '}';
  }
  if (std::isnan(value))
    text_ += " NaN\n";
  else if (std::isinf(value))
    text_ += value > 0 ? " +Inf\n" : " -Inf\n";
  else
    text_ += fmt::format(" {}\n", value);
}

}  // namespace sluice
