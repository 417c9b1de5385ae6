// Leader election over a coordination.k8s.io/v1 Lease: 15 s lease, 10 s to renew, tries every 2 s (the values that
// Kubernetes' own components use). Expiry is judged by our own monotonic clock since the last change that we saw, never
// by timestamps of another machine. A lease is no fence: whoever leads must still be refused by preconditions.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "kube/api_client.h"

namespace sluice::kube {

struct LeaseOptions {
  std::string name_space = "kube-system";
  std::string name;
  std::string identity;  // unique per replica; followers read it, e.g. to forward: put the address in
  std::chrono::milliseconds duration{15'000};
  std::chrono::milliseconds renew_deadline{10'000};
  std::chrono::milliseconds retry{2'000};
};

// The decision apart from the clock and the API: what to do with the lease as last seen. Pure.
enum class LeaseStep { kCreate, kTake, kRenew, kWait };
struct LeaseView {
  bool exists = false;
  std::string holder;
  std::chrono::milliseconds unchanged_for{0};  // since the record last changed, as we saw it
  std::chrono::milliseconds duration{15'000};  // as the record says
};
LeaseStep decide_lease(const LeaseView& view, const std::string& identity);

class LeaderElection {
 public:
  LeaderElection(Endpoint endpoint, LeaseOptions options);
  ~LeaderElection();  // stops; gives the lease back if held

  void start();
  void stop();

  // True only while the lease was renewed within the renew deadline, by the monotonic clock.
  bool leading() const;
  // Identity of whoever holds the lease as last seen; empty when unknown.
  std::string holder() const;

 private:
  void run();
  void step();
  void remember(const json::Value& lease);
  json::Value record(const std::string& holder, bool taking) const;

  LeaseOptions options_;
  ApiClient api_;
  std::string path_;
  json::Value seen_;
  std::chrono::steady_clock::time_point seen_at_{};
  std::atomic<int64_t> renewed_at_ms_{0};  // 0: not held
  mutable std::mutex mutex_;               // holder_ only
  std::string holder_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice::kube
