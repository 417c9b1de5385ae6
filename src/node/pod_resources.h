// The kubelet's record of which container holds which devices (its pod-resources socket). The other place that meets
// gRPC. Both calls are bounded in time, and the kubelet answers at most 100 of them a second (burst of 10).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::node {

struct RecordedContainer {
  std::string name;
  std::map<std::string, std::vector<std::string>> ids;  // by resource, sorted
  bool operator==(const RecordedContainer&) const = default;
};

// Names only: the record carries no UID.
struct RecordedPod {
  std::string name_space, name;
  std::vector<RecordedContainer> containers;
  bool operator==(const RecordedPod&) const = default;
};

// As an interface, so that owners can be found in tests without a kubelet.
class PodRecords {
 public:
  virtual ~PodRecords() = default;
  // Errors of both: kUnavailable (no kubelet, a time-out), kExhausted (its rate limit: again a little later).
  // One pod's record; nullopt: the kubelet does not have the pod. kInvalid: this kubelet has no such call (up to 1.33).
  virtual Result<std::optional<RecordedPod>> get(const std::string& name_space, const std::string& name) = 0;
  // All pods. The call itself makes kubelets rebuild what they count as taken, losing ids of an Allocate in flight:
  // never while one is open nor within 50 ms after it.
  virtual Result<std::vector<RecordedPod>> list() = 0;
};

// socket: /var/lib/kubelet/pod-resources/kubelet.sock. It need not be there yet.
std::unique_ptr<PodRecords> open_pod_records(const std::string& socket);

}  // namespace sluice::node
