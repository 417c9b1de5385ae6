#include "node/plugin_set.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/log.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kFirstBackoff = std::chrono::milliseconds(20);  // its socket is there a little before it listens
constexpr auto kLongestBackoff = std::chrono::milliseconds(5000);
constexpr size_t kContestedLosses = 3;
constexpr auto kContestedWithin = std::chrono::seconds(120);

uint64_t inode_of(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

PluginSet::PluginSet(std::string directory)
    : directory_(std::move(directory)), watch_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  open_watch();
}

PluginSet::~PluginSet() = default;

void PluginSet::open_watch() {
  if (watch_descriptor_ >= 0 || !watch_.valid()) return;
  watch_descriptor_ = ::inotify_add_watch(watch_.get(), directory_.c_str(),
                                          IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF);
}

void PluginSet::drain_watch() {
  alignas(inotify_event) std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(watch_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      if ((event->mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) != 0) watch_descriptor_ = -1;
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
}

void PluginSet::want(const std::map<std::string, Wanted>& resources) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (resources.contains(entry->first)) {
      ++entry;
      continue;
    }
    log::info("resource no longer offered", {{"resource", entry->first}});
    entry = entries_.erase(entry);
  }
  for (const auto& [resource, wanted] : resources) {
    Entry& entry = entries_[resource];
    if (!entry.server) entry.server = std::make_unique<PluginServer>(resource, *wanted.calls);
    std::vector<OfferedDevice> devices = wanted.devices;
    std::set<std::string> missing = std::exchange(entry.listed, {});
    for (const OfferedDevice& device : wanted.devices) {
      missing.erase(device.id);
      entry.listed.insert(device.id);
    }
    if (!devices.empty()) {
      for (const std::string& id : missing) devices.push_back({id, false});
      entry.listed.merge(missing);
    }
    entry.server->offer(std::move(devices));
  }
}

void PluginSet::tend() {
  open_watch();
  const auto now = Clock::now();
  const uint64_t inode = inode_of(directory_ + "/kubelet.sock");
  const bool other_kubelet = inode != kubelet_inode_;
  if (other_kubelet) {
    kubelet_inode_ = inode;
    next_try_ = now;
    backoff_ = std::chrono::milliseconds(0);
    for (auto& [resource, entry] : entries_) entry.losses.clear();
  }
  std::vector<Entry*> missing;
  for (auto& [resource, entry] : entries_) {
    const bool connected = entry.server->connected() && entry.server->socket_in_place();
    if (entry.was_connected && !connected && !other_kubelet) entry.losses.push_back(now);
    std::erase_if(entry.losses, [&](auto at) { return now - at > kContestedWithin; });
    entry.was_connected = connected;
    if (!connected || (other_kubelet && inode != 0)) missing.push_back(&entry);
  }
  if (missing.empty()) backoff_ = std::chrono::milliseconds(0);
  if (missing.empty() || inode == 0 || now < next_try_) return;
  register_these(missing);
}

void PluginSet::register_these(const std::vector<Entry*>& entries) {
  auto fail = [this](const Error& error) {
    backoff_ = std::clamp<std::chrono::milliseconds>(backoff_ * 2, kFirstBackoff, kLongestBackoff);
    next_try_ = Clock::now() + backoff_;
    log::warning("the kubelet has not taken the node's cards yet", {{"reason", error.message}});
  };
  for (Entry* entry : entries) {
    if (Result<void> served = entry->server->serve(directory_); !served) return fail(served.error());
  }
  for (Entry* entry : entries) {
    if (Result<void> announced = entry->server->announce(directory_); !announced) return fail(announced.error());
    ++registrations_;
    entry->was_connected = true;
    log::info("registered with the kubelet", {{"resource", entry->server->resource()}});
  }
  backoff_ = std::chrono::milliseconds(0);
}

int PluginSet::wait_ms(int longest_ms) const {
  if (backoff_.count() == 0) return longest_ms;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next_try_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 1, longest_ms));
}

bool PluginSet::complete() const {
  return !entries_.empty() && std::all_of(entries_.begin(), entries_.end(),
                                          [](const auto& entry) { return entry.second.server->connected(); });
}

std::map<std::string, bool> PluginSet::registered() const {
  std::map<std::string, bool> out;
  for (const auto& [resource, entry] : entries_) out[resource] = entry.server->connected();
  return out;
}

bool PluginSet::contested(const std::string& resource) const {
  auto entry = entries_.find(resource);
  return entry != entries_.end() && entry->second.losses.size() >= kContestedLosses;
}

}  // namespace sluice::node
