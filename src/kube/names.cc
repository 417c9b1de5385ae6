#include "kube/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace sluice::kube {
namespace {

constexpr size_t kMaxLabelBytes = 63;
constexpr size_t kMaxSubdomainBytes = 253;
constexpr size_t kMaxShownBytes = 80;

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}
bool is_letter_or_digit(char c) {
  return is_lower_or_digit(c) || (c >= 'A' && c <= 'Z');
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kMaxLabelBytes && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_lower_or_digit(c) || c == '-'; });
}

// The parts of a subdomain follow a label's rules but for its length.
bool is_subdomain(std::string_view text) {
  if (text.size() > kMaxSubdomainBytes) return false;
  for (size_t start = 0;;) {
    const size_t dot = std::min(text.find('.', start), text.size());
    const std::string_view part = text.substr(start, dot - start);
    if (part.empty() || part.front() == '-' || part.back() == '-' ||
        !std::all_of(part.begin(), part.end(), [](char c) { return is_lower_or_digit(c) || c == '-'; }))
      return false;
    if (dot == text.size()) return true;
    start = dot + 1;
  }
}

bool is_qualified(std::string_view text) {
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    if (!is_subdomain(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return !text.empty() && text.size() <= kMaxLabelBytes && is_letter_or_digit(text.front()) &&
         is_letter_or_digit(text.back()) && std::all_of(text.begin(), text.end(), [](char c) {
           return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
         });
}

Result<void> answer(bool good, std::string_view what, std::string_view text, std::string_view expected) {
  if (good) return {};
  return invalid(fmt::format("{} '{}': expected {}", what, text::fit(text, kMaxShownBytes), expected));
}

}  // namespace

Result<void> check_label_name(std::string_view what, std::string_view text) {
  return answer(is_label(text), what, text, "1 to 63 lower-case letters, digits and '-' (none at the ends)");
}

Result<void> check_subdomain_name(std::string_view what, std::string_view text) {
  return answer(is_subdomain(text), what, text,
                "up to 253 lower-case letters, digits, '-' and '.', each part between dots beginning and ending with a "
                "letter or digit");
}

Result<void> check_qualified_name(std::string_view what, std::string_view text) {
  return answer(is_qualified(text), what, text,
                "a key such as example.com/gpu: [DOMAIN/]NAME, NAME of up to 63 letters, digits, '-', '_' and '.'");
}

}  // namespace sluice::kube
