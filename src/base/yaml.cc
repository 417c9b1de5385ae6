#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <sstream>

namespace sluice::yaml {
namespace {

constexpr size_t kMaxBytes = 4u << 20;
constexpr int kMaxDepth = 64;

json::Value scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return json::Value(text);  // quoted
  if (text.empty() || text == "~" || text == "null") return nullptr;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  int64_t whole = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (code == std::errc() && end == text.data() + text.size()) return whole;
  double real = 0;
  auto [real_end, real_code] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (real_code == std::errc() && real_end == text.data() + text.size()) return real;
  return json::Value(text);
}

Result<json::Value> convert(const YAML::Node& node, int depth) {
  if (depth > kMaxDepth) return invalid(fmt::format("more than {} levels of nesting", kMaxDepth));
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return json::Value(nullptr);
    case YAML::NodeType::Scalar:
      return scalar(node);
    case YAML::NodeType::Sequence: {
      json::Array array;
      for (const YAML::Node& item : node) {
        Result<json::Value> value = convert(item, depth + 1);
        if (!value) return value;
        array.push_back(*std::move(value));
      }
      return json::Value(std::move(array));
    }
    case YAML::NodeType::Map: {
      json::Object object;
      for (const auto& member : node) {
        if (!member.first.IsScalar()) {
          return invalid(fmt::format("line {}: a key that is not plain text", member.first.Mark().line + 1));
        }
        if (object.contains(member.first.Scalar())) {
          return invalid(
              fmt::format("line {}: key '{}' stands twice", member.first.Mark().line + 1, member.first.Scalar()));
        }
        Result<json::Value> value = convert(member.second, depth + 1);
        if (!value) return value;
        object[member.first.Scalar()] = *std::move(value);
      }
      return json::Value(std::move(object));
    }
  }
  return internal("unknown YAML node");
}

bool has_alias(std::string_view text) {
  // yaml-cpp resolves aliases while loading; finding the marker at a value's start is enough to refuse them.
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    size_t star = line.find(": *");
    size_t item = line.find("- *");
    if (star != std::string::npos || item != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<json::Value>> parse_documents(std::string_view text) {
  if (text.size() > kMaxBytes)
    return invalid(fmt::format("{} bytes of YAML, at most {} are read", text.size(), kMaxBytes));
  if (has_alias(text)) return invalid("YAML aliases (*name) are not read; write the value out");
  std::vector<json::Value> documents;
  try {
    for (const YAML::Node& node : YAML::LoadAll(std::string(text))) {
      if (!node.IsDefined() || node.IsNull()) continue;
      Result<json::Value> value = convert(node, 0);
      if (!value) return std::move(value).error();
      documents.push_back(*std::move(value));
    }
  } catch (const YAML::Exception& error) {
    return invalid(fmt::format("line {}, column {}: {}", error.mark.line + 1, error.mark.column + 1, error.msg));
  }
  return documents;
}

}  // namespace sluice::yaml
