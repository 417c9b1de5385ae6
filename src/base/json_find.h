// Members of objects that others have written, where one that is missing or of another kind is simply not there: the
// Kubernetes API leaves empty members out. Where it has to be there, json.h's get_* say what is wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace sluice::json {

const Object* find_object(const Object& object, std::string_view key);  // nullptr: none
const Array* find_array(const Object& object, std::string_view key);
std::string find_text(const Object& object, std::string_view key);  // "": none
std::optional<int64_t> find_int(const Object& object, std::string_view key);

// The object at the end of a path of keys; nullptr where one of them is missing.
const Object* find_object(const Object& object, std::initializer_list<std::string_view> path);

}  // namespace sluice::json
