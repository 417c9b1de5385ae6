#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/stream_parser.hpp>
#include <cmath>

namespace sluice::json {
namespace {

std::string_view kind_name(const Value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return "null";
    case boost::json::kind::bool_:
      return "a boolean";
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
    case boost::json::kind::double_:
      return "a number";
    case boost::json::kind::string:
      return "a string";
    case boost::json::kind::array:
      return "a list";
    case boost::json::kind::object:
      return "an object";
  }
  return "unknown";
}

Error wrong_kind(std::string_view key, const Value* found, std::string_view expected) {
  if (found == nullptr) return invalid(fmt::format("'{}' is missing, expected {}", key, expected));
  return invalid(fmt::format("'{}' is {}, expected {}", key, kind_name(*found), expected));
}

// Absent and null are the same to a reader of configuration.
const Value* present(const Object& object, std::string_view key) {
  const Value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::string> as_string(std::string_view key, const Value* value) {
  if (value == nullptr || !value->is_string()) return wrong_kind(key, value, "a string");
  return std::string(value->get_string());
}

Result<int64_t> as_int(std::string_view key, const Value* value) {
  if (value != nullptr && value->is_int64()) return value->get_int64();
  if (value != nullptr && value->is_double() && std::trunc(value->get_double()) == value->get_double() &&
      std::fabs(value->get_double()) < 9e15) {
    return static_cast<int64_t>(value->get_double());
  }
  return wrong_kind(key, value, "a whole number");
}

Result<double> as_double(std::string_view key, const Value* value) {
  if (value == nullptr || !value->is_number()) return wrong_kind(key, value, "a number");
  return value->to_number<double>();
}

Result<bool> as_bool(std::string_view key, const Value* value) {
  if (value == nullptr || !value->is_bool()) return wrong_kind(key, value, "true or false");
  return value->get_bool();
}

void print(const Value& value, int depth, std::string& out) {
  std::string indent(static_cast<size_t>(depth) * 2, ' ');
  if (value.is_object() && !value.get_object().empty()) {
    out += "{\n";
    bool first = true;
    for (const auto& member : value.get_object()) {
      if (!first) out += ",\n";
      first = false;
      out += indent + "  " + boost::json::serialize(Value(member.key())) + ": ";
      print(member.value(), depth + 1, out);
    }
    out += "\n" + indent + "}";
  } else if (value.is_array() && !value.get_array().empty()) {
    out += "[\n";
    bool first = true;
    for (const Value& item : value.get_array()) {
      if (!first) out += ",\n";
      first = false;
      out += indent + "  ";
      print(item, depth + 1, out);
    }
    out += "\n" + indent + "]";
  } else {
    out += boost::json::serialize(value);
  }
}

Result<Value> parse_with(std::string_view text, boost::json::storage_ptr storage) {
  boost::json::stream_parser parser;
  parser.reset(std::move(storage));
  boost::system::error_code code;
  size_t used = parser.write_some(text.data(), text.size(), code);
  if (!code && used < text.size() && text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) {
    return invalid(fmt::format("not valid JSON at byte {}: more text after the document's end", used));
  }
  if (!code) parser.finish(code);
  if (code) return invalid(fmt::format("not valid JSON at byte {}: {}", used, code.message()));
  return parser.release();
}

}  // namespace

Result<Value> parse(std::string_view text) {
  return parse_with(text, {});
}

Result<Value> parse_into_block(std::string_view text) {
  // Values take about twice their text: 16 bytes each, strings in blocks of their own.
  size_t first = std::max<size_t>(4096, text.size() * 2);
  return parse_with(text, boost::json::make_shared_resource<boost::json::monotonic_resource>(first));
}

std::string to_string(const Value& value) {
  return boost::json::serialize(value);
}

void append_quoted(std::string& out, std::string_view text) {
  bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f && c != '"' && c != '\\';
  });
  if (!plain) {
    out += boost::json::serialize(Value(text));
    return;
  }
  out += '"';
  out += text;
  out += '"';
}

std::string to_pretty_string(const Value& value) {
  std::string out;
  print(value, 0, out);
  return out + "\n";
}

Result<std::string> get_string(const Object& object, std::string_view key) {
  return as_string(key, present(object, key));
}
Result<int64_t> get_int(const Object& object, std::string_view key) {
  return as_int(key, present(object, key));
}
Result<double> get_double(const Object& object, std::string_view key) {
  return as_double(key, present(object, key));
}
Result<bool> get_bool(const Object& object, std::string_view key) {
  return as_bool(key, present(object, key));
}

Result<std::string> get_string_or(const Object& object, std::string_view key, std::string fallback) {
  const Value* value = present(object, key);
  if (value == nullptr) return fallback;
  return as_string(key, value);
}
Result<int64_t> get_int_or(const Object& object, std::string_view key, int64_t fallback) {
  const Value* value = present(object, key);
  if (value == nullptr) return fallback;
  return as_int(key, value);
}
Result<double> get_double_or(const Object& object, std::string_view key, double fallback) {
  const Value* value = present(object, key);
  if (value == nullptr) return fallback;
  return as_double(key, value);
}
Result<bool> get_bool_or(const Object& object, std::string_view key, bool fallback) {
  const Value* value = present(object, key);
  if (value == nullptr) return fallback;
  return as_bool(key, value);
}

}  // namespace sluice::json
