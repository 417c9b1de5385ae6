#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "base/text.h"

namespace sluice::yaml {
namespace {

constexpr size_t kMaxBytes = 4u << 20;
constexpr int kMaxDepth = 64;
constexpr int kMaxDocuments = 1000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Text that a number of YAML's core schema could begin with; from_chars alone would also take "inf" and "nan", which
// are names of things.
bool looks_like_a_number(std::string_view text) {
  if (text.front() == '-') text.remove_prefix(1);
  return !text.empty() && (is_digit(text[0]) || (text[0] == '.' && text.size() > 1 && is_digit(text[1])));
}

// "010": YAML 1.1, by which Kubernetes reads, means 8; YAML 1.2 means 10.
bool has_two_readings(std::string_view text) {
  if (text.front() == '-') text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && std::all_of(text.begin(), text.end(), is_digit);
}

Result<json::Value> scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return json::Value(text);  // quoted
  for (const char* word : {"", "~", "null", "Null", "NULL"}) {
    if (text == word) return json::Value(nullptr);
  }
  if (text == "true" || text == "True" || text == "TRUE") return json::Value(true);
  if (text == "false" || text == "False" || text == "FALSE") return json::Value(false);
  if (!looks_like_a_number(text)) return json::Value(text);
  if (has_two_readings(text)) {
    return invalid(
        fmt::format("line {}: {} is octal to some readers (Kubernetes among them) and decimal to others; "
                    "write it without the leading 0, or in quotes where text is meant",
                    node.Mark().line + 1, text));
  }
  int64_t whole = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (code == std::errc() && end == text.data() + text.size()) return json::Value(whole);
  double real = 0;
  auto [real_end, real_code] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (real_code == std::errc() && real_end == text.data() + text.size()) return json::Value(real);
  return json::Value(text);
}

// yaml-cpp guesses the encoding and makes question marks of what it cannot read; a file in the wrong one is to be said.
Result<void> check_encoding(std::string_view text) {
  constexpr std::string_view kUtf16Marks[] = {"\xff\xfe", "\xfe\xff"};
  const bool marked = text.starts_with(kUtf16Marks[0]) || text.starts_with(kUtf16Marks[1]);
  const size_t good = text::utf8_prefix(text);
  const size_t nul = text.find('\0');
  if (marked || (nul != std::string_view::npos && nul < 4))
    return invalid("this is UTF-16 or UTF-32 text, or no text at all; save it as UTF-8");
  const size_t wrong = std::min(good, nul);
  if (wrong >= text.size()) return {};
  return invalid(fmt::format(
      "line {}: {}", 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(wrong), '\n'),
      wrong == nul ? "a NUL byte, which no text holds" : "a byte that is no UTF-8; save the file as UTF-8"));
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
  if (Result<void> fine = check_encoding(text); !fine) return std::move(fine).error();
  std::vector<json::Value> documents;
  try {
    take_census(std::string(text));
    for (const YAML::Node& node : YAML::LoadAll(std::string(text))) {
      if (!node.IsDefined() || node.IsNull()) continue;
      Result<json::Value> value = convert(node, 0);
      if (!value) return std::move(value).error();
      documents.push_back(*std::move(value));
    }
  } catch (const YAML::DeepRecursion& error) {
    return invalid(
        fmt::format("line {}: nested too deeply; at most {} levels are read", error.mark.line + 1, kMaxDepth));
  } catch (const YAML::Exception& error) {
    return invalid(fmt::format("line {}, column {}: {}", error.mark.line + 1, error.mark.column + 1, error.msg));
  }
  return documents;
}

}  // namespace sluice::yaml
