// The one place that meets yaml-cpp: YAML text becomes JSON values, so that the rest of the program knows one tree
// type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::yaml {

// Every document of a (possibly multi-document) YAML text in UTF-8, with or without a byte order mark, empty documents
// left out. Plain scalars become numbers, booleans or null by YAML's core rules; quoted ones stay strings. Numbers with
// a leading 0 are refused: half of the readers take them for octal. Errors name line and column. Bounds: 4 MiB of text,
// 64 levels of nesting; aliases are refused (a small file could expand without end).
Result<std::vector<json::Value>> parse_documents(std::string_view text);

// One document in block style, keys in the value's order; strings that a reader could take for another kind are quoted.
// Ends with a newline.
std::string to_string(const json::Value& value);

}  // namespace sluice::yaml
