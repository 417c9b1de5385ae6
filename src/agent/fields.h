// Reads the members of a JSON object into struct fields: absent members keep the field's default, a member of the wrong
// kind or out of bounds is remembered as the first error. Keeps each codec of the protocol one line per member, with
// every bound beside it.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::agent {

class Fields {
 public:
  explicit Fields(const json::Object& object, std::string where = "") : object_(object), where_(std::move(where)) {}

  void text(const char* key, std::string& out, size_t max_bytes = 4096) {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    if (!value->is_string()) return fail(key, "a text");
    std::string found(value->get_string());
    if (found.size() > max_bytes) return fail(key, fmt::format("at most {} bytes", max_bytes));
    if (found.find('\0') != std::string::npos) return fail(key, "a text without NUL bytes");
    out = std::move(found);
  }

  void number(const char* key, int64_t& out, int64_t least = std::numeric_limits<int64_t>::min(),
              int64_t most = std::numeric_limits<int64_t>::max()) {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    int64_t found = 0;
    if (value->is_int64()) {
      found = value->get_int64();
    } else if (value->is_uint64() && value->get_uint64() <= static_cast<uint64_t>(most)) {
      found = static_cast<int64_t>(value->get_uint64());
    } else {
      return fail(key, fmt::format("a whole number of at most {}", most));
    }
    if (found < least || found > most) return fail(key, fmt::format("a whole number from {} to {}", least, most));
    out = found;
  }

  void number(const char* key, uint32_t& out, int64_t least, int64_t most) {
    int64_t wide = out;
    number(key, wide, least, most);
    out = static_cast<uint32_t>(wide);
  }

  void fraction(const char* key, double& out) {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    if (value->is_double())
      out = value->get_double();
    else if (value->is_int64())
      out = static_cast<double>(value->get_int64());
    else
      fail(key, "a number");
  }

  void flag(const char* key, bool& out) {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    if (!value->is_bool()) return fail(key, "true or false");
    out = value->get_bool();
  }

  void texts(const char* key, std::vector<std::string>& out, size_t most) {
    each(key, most, [&](const json::Value& item) {
      if (!item.is_string() || item.get_string().size() > 4096) return fail(key, "a list of texts");
      out.emplace_back(item.get_string());
    });
  }

  // A list of objects, each decoded by body(const Object&) -> Result<T>.
  template <typename T, typename Body>
  void objects(const char* key, std::vector<T>& out, size_t most, Body body) {
    each(key, most, [&](const json::Value& item) {
      if (!item.is_object()) return fail(key, "a list of objects");
      Result<T> decoded = body(item.get_object());
      if (decoded)
        out.push_back(std::move(*decoded));
      else if (!error_)
        error_ = std::move(decoded.error()).wrap(key);
    });
  }

  bool has(const char* key) const { return find(key) != nullptr; }
  void fail(const char* key, std::string_view expected) {
    if (!error_) error_ = invalid(fmt::format("{}{}: expected {}", where_, key, expected));
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const json::Value* find(const char* key) const {
    const json::Value* value = object_.if_contains(key);
    return value != nullptr && !value->is_null() ? value : nullptr;
  }
  template <typename Body>
  void each(const char* key, size_t most, Body body) {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array() || value->get_array().size() > most)
      return fail(key, fmt::format("a list of at most {}", most));
    for (const json::Value& item : value->get_array()) body(item);
  }

  const json::Object& object_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace sluice::agent
