#include "base/json_find.h"

namespace sluice::json {

const Object* find_object(const Object& object, std::string_view key) {
  const Value* value = object.if_contains(key);
  return value != nullptr ? value->if_object() : nullptr;
}

const Array* find_array(const Object& object, std::string_view key) {
  const Value* value = object.if_contains(key);
  return value != nullptr ? value->if_array() : nullptr;
}

std::string find_text(const Object& object, std::string_view key) {
  const Value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

std::optional<int64_t> find_int(const Object& object, std::string_view key) {
  const Value* value = object.if_contains(key);
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  return value->get_int64();
}

const Object* find_object(const Object& object, std::initializer_list<std::string_view> path) {
  const Object* at = &object;
  for (const std::string_view key : path) {
    at = find_object(*at, key);
    if (at == nullptr) return nullptr;
  }
  return at;
}

}  // namespace sluice::json
