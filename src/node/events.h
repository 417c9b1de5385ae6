// Events for people (`kubectl describe pod`, `kubectl describe node`), written by a thread of their own so that no
// caller waits for the API server. News only: nothing depends on one, and what does not fit is dropped. The same
// sentence about the same object is written once in ten minutes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "kube/api_client.h"

namespace sluice::node {

struct EventAbout {
  std::string kind;  // "Pod" or "Node"
  std::string name_space, name, uid;
};

class Events {
 public:
  Events(kube::Endpoint endpoint, std::string node_name);
  ~Events();  // what is queued is tried once more, briefly

  // reason: one word in CamelCase. warning: type Warning, else Normal.
  void pod(const std::string& name_space, const std::string& name, const std::string& uid, bool warning,
           const std::string& reason, const std::string& text);
  void node(bool warning, const std::string& reason, const std::string& text);

 private:
  struct Item {
    EventAbout about;
    bool warning = true;
    std::string reason, text;
  };
  void post(Item item);
  void run();
  void write(const Item& item);

  kube::ApiClient api_;
  std::string node_name_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<Item> queue_;
  std::map<std::string, int64_t> said_;  // text about object -> seconds, monotonic
  uint64_t number_ = 0;
  std::thread thread_;
};

}  // namespace sluice::node
