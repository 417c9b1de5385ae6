// The pods of this node as the API server shows them, kept by a watch: who asks for what, with which allocation, and
// how far its containers are. One owner of the copy; readers get values that do not change under them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kube/objects.h"
#include "kube/reflector.h"
#include "node/mode.h"

namespace sluice::node {

// A container's line in the pod's status.
struct ContainerState {
  std::string container_id;  // without "containerd://"; empty until the runtime has given one
  bool running = false;
  bool terminated = false;  // ended, and not to be started again where exit_code is 0 and it is an init container
  int64_t exit_code = 0;
  int64_t restarts = 0;
  bool cdi_refused = false;  // waits because the runtime did not find or take its CDI device
};

struct LocalPod {
  kube::Pod pod;
  core::PodRequest request;     // kNone: asks for no card. Only sums over its cards mean something (ids_wanted)
  std::string request_problem;  // why the request cannot be read
  std::map<std::string, ContainerState> states;
  struct Wishes {
    int64_t weight = 1;
    bool high_priority = false;
    bool no_limits = false;  // CGPU_DISABLE
  };
  std::map<std::string, Wishes> wishes;  // by container, from the env in the pod's spec

  PodKind kind() const;
  // Device ids of the resource that the container asks for: units or percent over all its cards, or whole cards.
  int64_t ids_wanted(const core::ContainerShare& share, const std::string& resource) const;
};
using LocalPodPtr = std::shared_ptr<const LocalPod>;

Result<LocalPod> decode_local_pod(const json::Value& object);

class LocalPods final : public kube::ReflectorSink {
 public:
  // changed: called after each change, from the watch's thread, without a lock held.
  explicit LocalPods(std::function<void()> changed = {}) : changed_(std::move(changed)) {}

  void replaced(json::Array items) override;
  void changed(json::Value object) override;
  void deleted(json::Value object) override;

  bool listed() const;  // the copy is whole: a pod that is not in it does not exist
  std::vector<LocalPodPtr> all() const;
  LocalPodPtr find(const std::string& uid) const;
  // The newest copy of the pod, where its containers ask as in this one; else this one: positions in the request must
  // not outlive it.
  LocalPodPtr newest(const LocalPodPtr& pod) const;
  // The pod of this name that is not terminal, waited for: the kubelet may start a pod before our watch has it.
  LocalPodPtr wait_for(const std::string& name_space, const std::string& name, int timeout_ms) const;

 private:
  void put(const json::Value& object);

  std::function<void()> changed_;
  mutable std::mutex mutex_;
  mutable std::condition_variable news_;
  bool listed_ = false;
  std::map<std::string, LocalPodPtr> pods_;  // by UID
};

}  // namespace sluice::node
