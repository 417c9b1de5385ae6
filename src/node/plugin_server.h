// One resource's device plugin: the server that the kubelet talks to, on a socket of its own. The one place, with
// pod_resources.h, that meets gRPC; none of its headers come with this one.
//
// Facts: the kubelet dials back inside Register, so serve first; one socket per resource, because Allocate does not say
// which resource it is about; a new socket name for each start, because up to 1.36 the end of an old stream closes the
// client of whoever has the name now, and because an old instance that exits late unlinks its socket. A finished stream
// makes every device of the resource unhealthy until the plugin registers anew.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::node {

struct OfferedDevice {
  std::string id;  // at most 63 characters, unique over all resources of the node
  bool healthy = true;
  bool operator==(const OfferedDevice&) const = default;
};

struct PluginMount {
  std::string container_path, host_path;
  bool read_only = true;
  bool operator==(const PluginMount&) const = default;
};

struct PluginDeviceNode {
  std::string container_path, host_path;
  std::string permissions = "rw";
  bool operator==(const PluginDeviceNode&) const = default;
};

// What one container gets. Kubelets merge the answers of several resources with the first value winning, in random
// order: only one of a container's answers may carry anything.
struct ContainerAnswer {
  std::map<std::string, std::string> environment;
  std::vector<PluginMount> mounts;
  std::vector<PluginDeviceNode> device_nodes;
  std::vector<std::string> cdi_devices;  // "sluice.dev/grant=g0123456789abcdef"
  bool operator==(const ContainerAnswer&) const = default;
};

// Called from the server's threads, several at a time.
class PluginCalls {
 public:
  virtual ~PluginCalls() = default;
  // An error is final for the pod (Failed, UnexpectedAdmissionError).
  virtual Result<ContainerAnswer> allocate(const std::vector<std::string>& ids) = 0;
  // An error is a config error of the container, which the kubelet tries again. At most 30 s.
  virtual Result<void> pre_start(const std::vector<std::string>& ids) = 0;
};

class PluginServer {
 public:
  PluginServer(std::string resource, PluginCalls& calls);
  ~PluginServer();  // stops
  PluginServer(const PluginServer&) = delete;
  PluginServer& operator=(const PluginServer&) = delete;

  const std::string& resource() const { return resource_; }

  // Listens on directory/NAME, NAME new for each call; what was served before ends. The list as last set is offered.
  Result<void> serve(const std::string& directory);
  // Announces the socket to directory/kubelet.sock. kUnavailable: the kubelet is not there or said no.
  Result<void> announce(const std::string& directory);
  // Ends the streams and the server.
  void stop();

  // The whole list, sent to every open stream when it differs from the one before.
  void offer(std::vector<OfferedDevice> devices);

  // True between an announce and the end of the last stream that followed: false means register again.
  bool connected() const;
  // Whether the socket file is still the one that was made (a starting kubelet removes all sockets of the directory).
  bool socket_in_place() const;

 private:
  struct Inner;
  std::string resource_;
  PluginCalls& calls_;
  std::unique_ptr<Inner> inner_;
};

}  // namespace sluice::node
