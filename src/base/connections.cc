#include "base/connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace sluice {

Connections::Id Connections::enter(int fd) {
  std::unique_lock lock(mutex_);
  if (open_.size() >= most_) {
    auto longest = std::find_if(open_.begin(), open_.end(), [](const One& one) { return !one.answering && !one.shut; });
    if (longest == open_.end()) return 0;
    longest->shut = true;
    ::shutdown(longest->fd, SHUT_RDWR);
    if (!left_.wait_for(lock, std::chrono::seconds(1), [this] { return open_.size() < most_; })) return 0;
  }
  open_.push_back({++last_, fd, false, false});
  return last_;
}

void Connections::set_answering(Id id, bool answering) {
  std::lock_guard lock(mutex_);
  auto one = std::find_if(open_.begin(), open_.end(), [id](const One& entry) { return entry.id == id; });
  if (one == open_.end() || one->answering == answering) return;
  one->answering = answering;
  open_.splice(open_.end(), open_, one);
}

void Connections::leave(Id id) {
  std::lock_guard lock(mutex_);
  open_.remove_if([id](const One& one) { return one.id == id; });
  left_.notify_all();
}

void Connections::end_all() {
  std::unique_lock lock(mutex_);
  for (const One& one : open_) {
    if (!one.answering) ::shutdown(one.fd, SHUT_RDWR);
  }
  left_.wait(lock, [this] { return open_.empty(); });
}

}  // namespace sluice
