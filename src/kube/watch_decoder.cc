#include "kube/watch_decoder.h"

#include <fmt/format.h>

namespace sluice::kube {
namespace {

Result<WatchEvent> decode_line(std::string_view line) {
  Result<json::Value> value = json::parse(line);
  if (!value) return std::move(value).error().wrap("watch event");
  if (!value->is_object()) return invalid("watch event: expected an object");
  json::Object& root = value->get_object();
  Result<std::string> type = json::get_string(root, "type");
  if (!type) return std::move(type).error().wrap("watch event");
  static constexpr std::pair<std::string_view, WatchEventType> kTypes[] = {
      {"ADDED", WatchEventType::kAdded},     {"MODIFIED", WatchEventType::kModified},
      {"DELETED", WatchEventType::kDeleted}, {"BOOKMARK", WatchEventType::kBookmark},
      {"ERROR", WatchEventType::kError},
  };
  WatchEvent event;
  bool known = false;
  for (const auto& [name, kind] : kTypes) {
    if (name != *type) continue;
    event.type = kind;
    known = true;
  }
  if (!known) return invalid(fmt::format("watch event: unknown type '{}'", *type));
  json::Value* object = root.if_contains("object");
  if (object == nullptr || !object->is_object()) return invalid("watch event: 'object' is missing or no object");
  const json::Object& body = object->get_object();
  if (event.type == WatchEventType::kError) {
    event.error_code =
        static_cast<int>(json::get_int_or(body, "code", 0).ok() ? *json::get_int_or(body, "code", 0) : 0);
    std::string reason = json::get_string_or(body, "reason", "").ok() ? *json::get_string_or(body, "reason", "") : "";
    // Servers before 1.19 say "Gone", later ones "Expired"; both mean 410.
    if (event.error_code == 0 && (reason == "Expired" || reason == "Gone")) event.error_code = 410;
  } else if (const json::Value* metadata = body.if_contains("metadata"); metadata != nullptr && metadata->is_object()) {
    if (Result<std::string> version = json::get_string(metadata->get_object(), "resourceVersion"); version) {
      event.resource_version = *std::move(version);
    }
  }
  event.object = std::move(*object);
  return event;
}

}  // namespace

Result<void> WatchDecoder::feed(std::string_view chunk, std::vector<WatchEvent>& events) {
  while (!chunk.empty()) {
    size_t newline = chunk.find('\n');
    if (newline == std::string_view::npos) {
      rest_ += chunk;
      if (rest_.size() > kMaxLineBytes) return invalid(fmt::format("watch event longer than {} bytes", kMaxLineBytes));
      return {};
    }
    rest_ += chunk.substr(0, newline);
    chunk.remove_prefix(newline + 1);
    if (rest_.find_first_not_of(" \t\r") != std::string::npos) {
      Result<WatchEvent> event = decode_line(rest_);
      if (!event) return std::move(event).error();
      events.push_back(*std::move(event));
    }
    rest_.clear();
  }
  return {};
}

}  // namespace sluice::kube
