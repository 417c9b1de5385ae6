// The one place that meets Boost.JSON. Everything that parses or prints JSON goes through these few functions; the
// value type itself (boost::json::value) is used directly, it needs no wrapper of ours.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::json {

using Value = boost::json::value;
using Object = boost::json::object;
using Array = boost::json::array;

// Parses one JSON document. Errors name the offset and Boost's reason. Depth is bounded (32 levels).
Result<Value> parse(std::string_view text);
// The same into one growing block of memory that is freed with the last value out of it: for large documents that are
// read and dropped. Values changed or kept for long belong into the other kind.
Result<Value> parse_into_block(std::string_view text);

// Compact, one line.
std::string to_string(const Value& value);

// Appends the text as a JSON string, in quotes.
void append_quoted(std::string& out, std::string_view text);

// Indented by two spaces, for people; ends with a newline.
std::string to_pretty_string(const Value& value);

// Members of an object by kind; the error names the key, what was found and what was expected.
// `get_*` require the key, `get_*_or` fall back when it is absent or null.
Result<std::string> get_string(const Object& object, std::string_view key);
Result<int64_t> get_int(const Object& object, std::string_view key);
Result<double> get_double(const Object& object, std::string_view key);
Result<bool> get_bool(const Object& object, std::string_view key);
Result<std::string> get_string_or(const Object& object, std::string_view key, std::string fallback);
Result<int64_t> get_int_or(const Object& object, std::string_view key, int64_t fallback);
Result<double> get_double_or(const Object& object, std::string_view key, double fallback);
Result<bool> get_bool_or(const Object& object, std::string_view key, bool fallback);

}  // namespace sluice::json
