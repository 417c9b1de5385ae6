#include "kube/reflector.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "base/steady.h"

namespace sluice::kube {
namespace {

constexpr int kPageSize = 500;
constexpr std::chrono::milliseconds kListTimeout{60'000};
constexpr std::chrono::seconds kWorked{10};  // a watch that was silent for so long and then ended had worked

}  // namespace

Reflector::Reflector(Endpoint endpoint, ReflectorOptions options, ReflectorSink& sink)
    : options_(std::move(options)),
      sink_(sink),
      http_(std::move(endpoint)),
      backoff_(options_.backoff_min),
      random_state_(options_.seed | 1) {}

Reflector::~Reflector() {
  stop();
}

void Reflector::start() {
  heard();
  thread_ = std::thread([this] { run(); });
}

void Reflector::stop() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
}

int64_t Reflector::age_ms() const {
  return steady_ms() - heard_at_ms_.load();
}
void Reflector::heard() {
  heard_at_ms_.store(steady_ms());
}

// xorshift64: jitter needs no quality, only a seed.
uint64_t Reflector::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

void Reflector::run() {
  Outcome next = Outcome::kRelist;
  while (!stopping_.load()) {
    Outcome outcome = next == Outcome::kRelist ? list() : watch();
    if (outcome == Outcome::kStopped) return;
    if (outcome == Outcome::kFailed) {
      // The same step again: a failed watch is resumed from the same version.
      back_off(next == Outcome::kRelist ? options_.backoff_max : options_.resume_max);
      continue;
    }
    if (outcome == Outcome::kRelist && next != Outcome::kRelist) back_off(options_.backoff_max);
    next = outcome;
  }
}

void Reflector::back_off(std::chrono::milliseconds most) {
  auto now = std::chrono::steady_clock::now();
  if (healthy_since_ != std::chrono::steady_clock::time_point{} && now - healthy_since_ > options_.backoff_reset) {
    backoff_ = options_.backoff_min;
  }
  healthy_since_ = {};
  backoff_ = std::min(backoff_, most);
  auto jittered = backoff_ + std::chrono::milliseconds(random() % static_cast<uint64_t>(backoff_.count() + 1));
  backoff_ = std::min(backoff_ * 2, most);
  auto until = now + jittered;
  while (!stopping_.load() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string Reflector::query(bool watching) {
  std::string out = options_.path + "?";
  if (!options_.field_selector.empty()) out += "fieldSelector=" + url_encode(options_.field_selector) + "&";
  if (!options_.label_selector.empty()) out += "labelSelector=" + url_encode(options_.label_selector) + "&";
  if (!watching) return out + fmt::format("limit={}", kPageSize);
  uint64_t base = static_cast<uint64_t>(std::max(1, options_.watch_timeout_min_s));
  return out + fmt::format("watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
                           base + random() % base, url_encode(version_));
}

Reflector::Outcome Reflector::list() {
  json::Array items;
  std::string continuation;
  std::string version;
  do {
    HttpRequest request;
    request.path = query(false);
    if (!continuation.empty()) request.path += "&continue=" + url_encode(continuation);
    request.timeout = kListTimeout;
    request.cancelled = &stopping_;
    Result<HttpResponse> response = http_.send(request);
    if (stopping_.load()) return Outcome::kStopped;
    if (!response || response->status != 200) {
      // An expired continue token (410) starts over like any other failure: with the first page.
      log::warning("list failed",
                   {{"path", options_.path},
                    {"reason", response ? fmt::format("HTTP {}", response->status) : response.error().message}});
      return Outcome::kFailed;
    }
    Result<json::Value> body = json::parse(response->body);
    json::Value* page = body && body->is_object() ? body->get_object().if_contains("items") : nullptr;
    if (page == nullptr || !(page->is_array() || page->is_null())) {
      log::warning("list answered something that is no list", {{"path", options_.path}});
      return Outcome::kFailed;
    }
    if (page->is_array()) {
      for (json::Value& item : page->get_array()) items.push_back(std::move(item));
    }
    continuation.clear();
    if (const json::Value* metadata = body->get_object().if_contains("metadata"); metadata && metadata->is_object()) {
      if (auto text = json::get_string_or(metadata->get_object(), "continue", ""); text) continuation = *text;
      if (auto text = json::get_string_or(metadata->get_object(), "resourceVersion", ""); text) version = *text;
    }
    heard();
  } while (!continuation.empty());
  version_ = version;
  lists_.fetch_add(1);
  sink_.replaced(std::move(items));
  healthy_since_ = std::chrono::steady_clock::now();
  return Outcome::kResume;
}

// Returns false when the stream is over; `outcome` then says why.
bool Reflector::handle(WatchEvent& event, Outcome& outcome) {
  heard();
  if (event.type == WatchEventType::kError) {
    outcome = event.error_code == 410 ? Outcome::kRelist : Outcome::kFailed;
    if (outcome == Outcome::kFailed) watch_errors_.fetch_add(1);
    return false;
  }
  if (!event.resource_version.empty()) version_ = event.resource_version;
  switch (event.type) {
    case WatchEventType::kAdded:
    case WatchEventType::kModified:
      sink_.changed(std::move(event.object));
      break;
    case WatchEventType::kDeleted:
      sink_.deleted(std::move(event.object));
      break;
    default:
      break;
  }
  return true;
}

Reflector::Outcome Reflector::watch() {
  WatchDecoder decoder;
  Outcome outcome = Outcome::kResume;
  auto started = std::chrono::steady_clock::now();
  size_t seen = 0;
  HttpRequest request;
  request.path = query(true);
  request.timeout = std::chrono::milliseconds(0);
  request.cancelled = &stopping_;
  request.on_chunk = [&](std::string_view chunk) {
    std::vector<WatchEvent> events;
    Result<void> fed = decoder.feed(chunk, events);
    seen += events.size();
    for (WatchEvent& event : events) {
      if (!handle(event, outcome)) return false;
    }
    if (!fed) {
      log::warning("watch ended", {{"path", options_.path}, {"reason", fed.error().message}});
      watch_errors_.fetch_add(1);
      outcome = Outcome::kFailed;
      return false;
    }
    return !stopping_.load();
  };
  Result<HttpResponse> response = http_.send(request);
  if (stopping_.load()) return Outcome::kStopped;
  bool worked = seen > 0 || std::chrono::steady_clock::now() - started >= kWorked;
  if (worked && outcome != Outcome::kRelist) backoff_ = options_.backoff_min;
  if (outcome != Outcome::kResume) return outcome;
  if (!response) {
    watch_errors_.fetch_add(1);
    return Outcome::kFailed;
  }
  if (response->status == 410) return Outcome::kRelist;
  if (response->status != 200) {
    watch_errors_.fetch_add(1);
    return Outcome::kFailed;
  }
  heard();
  // A clean end is normal after minutes; a server that ends each watch at once must not be asked in a tight loop.
  bool at_once = seen == 0 && std::chrono::steady_clock::now() - started < std::chrono::seconds(1);
  return at_once ? Outcome::kFailed : Outcome::kResume;
}

}  // namespace sluice::kube
