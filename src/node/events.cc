#include "node/events.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "base/log.h"

namespace sluice::node {
namespace {

constexpr size_t kMaxQueued = 256;
constexpr size_t kMaxSaid = 4096;
constexpr int64_t kRepeatSeconds = 600;
constexpr size_t kMaxNoteBytes = 1000;                   // the API refuses messages of more than 1,024
constexpr auto kPause = std::chrono::milliseconds(100);  // between two events: at most ten a second

int64_t monotonic_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Events::Events(kube::Endpoint endpoint, std::string node_name)
    : api_(std::move(endpoint)), node_name_(std::move(node_name)), thread_([this] { run(); }) {
  api_.set_timeout(std::chrono::milliseconds(5000));
}

Events::~Events() {
  {
    std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Events::pod(const std::string& name_space, const std::string& name, const std::string& uid, bool warning,
                 const std::string& reason, const std::string& text) {
  post({{"Pod", name_space, name, uid}, warning, reason, text});
}

void Events::node(bool warning, const std::string& reason, const std::string& text) {
  // Events of nodes carry the node's name as UID, as the kubelet's own do.
  post({{"Node", "default", node_name_, node_name_}, warning, reason, text});
}

void Events::post(Item item) {
  const std::string key = item.about.uid + "\n" + item.text;
  const int64_t now = monotonic_seconds();
  std::lock_guard guard(mutex_);
  if (auto earlier = said_.find(key); earlier != said_.end() && now - earlier->second < kRepeatSeconds) return;
  if (said_.size() >= kMaxSaid)
    std::erase_if(said_, [&](const auto& one) { return now - one.second >= kRepeatSeconds; });
  if (said_.size() >= kMaxSaid || queue_.size() >= kMaxQueued) return;
  said_[key] = now;
  log::warning(item.text, {{"event", item.reason}, {"about", item.about.name}});
  queue_.push_back(std::move(item));
  wake_.notify_all();
}

void Events::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    write(item);
    lock.lock();
    if (stopping_) return;
    wake_.wait_for(lock, kPause, [this] { return stopping_; });
  }
}

void Events::write(const Item& item) {
  const std::time_t now = std::time(nullptr);
  const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  std::string text = item.text;
  if (text.size() > kMaxNoteBytes) text = text.substr(0, kMaxNoteBytes) + "...";
  const std::string name =
      fmt::format("{}.{:x}{:04x}", item.about.name.substr(0, 200), static_cast<uint64_t>(now), ++number_ & 0xffff);
  json::Object involved{{"kind", item.about.kind}, {"name", item.about.name}, {"uid", item.about.uid}};
  involved["apiVersion"] = "v1";
  if (item.about.kind == "Pod") involved["namespace"] = item.about.name_space;
  json::Object event{
      {"apiVersion", "v1"},
      {"kind", "Event"},
      {"metadata", json::Object{{"name", name}, {"namespace", item.about.name_space}}},
      {"involvedObject", std::move(involved)},
      {"type", item.warning ? "Warning" : "Normal"},
      {"reason", item.reason},
      {"message", text},
      {"source", json::Object{{"component", "sluice-agent"}, {"host", node_name_}}},
      {"firstTimestamp", time},
      {"lastTimestamp", time},
      {"count", 1},
  };
  const kube::ApiAnswer answer =
      api_.create(fmt::format("/api/v1/namespaces/{}/events", kube::url_encode(item.about.name_space)), event);
  if (!answer.ok()) log::warning("an event was not written", {{"reason", answer.to_error("event").message}});
}

}  // namespace sluice::node
