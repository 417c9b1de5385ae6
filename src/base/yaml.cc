#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cctype>
#include <charconv>
#include <sstream>

namespace sluice::yaml {
namespace {

constexpr size_t kMaxBytes = 4u << 20;
constexpr int kMaxDepth = 64;
constexpr int kMaxDocuments = 1000;

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

// Walks a text before any of it is built. Aliases are refused, since a few lines of them stand for gigabytes; so are
// endless documents, which yaml-cpp sees where a stray comma begins one.
class Census final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > kMaxDocuments) {
      throw YAML::ParserException(
          mark, fmt::format("more than {} documents, or text that none can begin with", kMaxDocuments));
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw YAML::ParserException(mark, "YAML aliases (*name) are not read; write the value out");
  }
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int documents_ = 0;
};

void take_census(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Census census;
  while (parser.HandleNextDocument(census)) {
  }
}

// Texts that some reader of YAML 1.1 or 1.2 takes for a boolean, a null or a number.
bool needs_quotes(std::string_view text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text.front())) == 0) return true;
  for (char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::string_view("_./-").find(c) == std::string_view::npos)
      return true;
  }
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}) {
    if (lower == word) return true;
  }
  return false;
}

void emit(YAML::Emitter& out, const json::Value& value) {
  if (value.is_object()) {
    if (value.get_object().empty()) out << YAML::Flow;
    out << YAML::BeginMap;
    for (const auto& member : value.get_object()) {
      out << YAML::Key << std::string(member.key()) << YAML::Value;
      emit(out, member.value());
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    if (value.get_array().empty()) out << YAML::Flow;
    out << YAML::BeginSeq;
    for (const json::Value& item : value.get_array()) emit(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    const std::string text(value.get_string());
    if (needs_quotes(text)) out << YAML::DoubleQuoted;
    out << text;
  } else if (value.is_null()) {
    out << YAML::Null;
  } else if (value.is_double()) {
    out << fmt::format("{}", value.get_double());
  } else {
    out << json::to_string(value);  // whole numbers and booleans are written alike
  }
}

}  // namespace

std::string to_string(const json::Value& value) {
  YAML::Emitter out;
  emit(out, value);
  return std::string(out.c_str()) + "\n";
}

Result<std::vector<json::Value>> parse_documents(std::string_view text) {
  if (text.size() > kMaxBytes)
    return invalid(fmt::format("{} bytes of YAML, at most {} are read", text.size(), kMaxBytes));
  std::vector<json::Value> documents;
  try {
    take_census(std::string(text));
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
