// The plugins of a node together: which resources are registered, and that they stay so. The kubelet forgets plugins
// when it starts (it removes every socket of the directory) and when a stream ends; pods that need two resources fail
// when only one is back. So all that have to register do it back to back, within milliseconds of kubelet.sock
// appearing: the directory is watched, and looked at once a second besides.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "node/plugin_server.h"

namespace sluice::node {

class PluginSet {
 public:
  explicit PluginSet(std::string directory);  // /var/lib/kubelet/device-plugins
  ~PluginSet();

  // From now on these resources, with these lists; others end. Lists may change in every call. An id that was in a
  // list is never withdrawn (offer.h says why): what is missing in a later one is Unhealthy there. An empty list takes
  // all ids back.
  struct Wanted {
    PluginCalls* calls = nullptr;
    std::vector<OfferedDevice> devices;
  };
  void want(const std::map<std::string, Wanted>& resources);

  // Registers what is not registered. Called often; returns at once when all is well. Backs off after refusals.
  void tend();

  // Every wanted resource is registered and the kubelet listens to it.
  bool complete() const;
  std::map<std::string, bool> registered() const;
  uint64_t registrations() const { return registrations_; }
  // Resources whose stream was ended again and again by another plugin of the same name.
  bool contested(const std::string& resource) const;

  // How long tend() has nothing to do: until the next try after a refusal, else `longest_ms`.
  int wait_ms(int longest_ms) const;

  // Becomes readable when the directory changes.
  int watch_fd() const { return watch_.get(); }
  void drain_watch();

 private:
  struct Entry {
    std::unique_ptr<PluginServer> server;
    bool served = false;
    std::vector<std::chrono::steady_clock::time_point> losses;  // of registrations, the kubelet being the same
    bool was_connected = false;
    std::set<std::string> listed;  // ids so far
  };
  void open_watch();
  void register_these(const std::vector<Entry*>& entries);

  std::string directory_;
  Fd watch_;
  int watch_descriptor_ = -1;
  std::map<std::string, Entry> entries_;
  uint64_t kubelet_inode_ = 0;
  std::chrono::steady_clock::time_point next_try_{};
  std::chrono::milliseconds backoff_{0};
  uint64_t registrations_ = 0;
};

}  // namespace sluice::node
