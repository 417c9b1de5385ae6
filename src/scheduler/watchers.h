// The scheduler's threads that talk to the API server on their own account: the watches that feed the state, and
// the loop that wakes refused pods when they would fit and writes events for pods that kube-scheduler never brings us.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kube/api_client.h"
#include "kube/reflector.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

class Watchers {
 public:
  Watchers(State& state, kube::Endpoint endpoint, std::string event_source, std::function<bool()> leading);
  ~Watchers();

  // Time since the API server was last heard from, by watch.
  std::vector<std::pair<const char*, int64_t>> ages_ms() const {
    return {{"nodes", nodes_->age_ms()}, {"pods", pods_->age_ms()}, {"poddisruptionbudgets", budgets_->age_ms()}};
  }
  uint64_t lists() const { return nodes_->lists() + pods_->lists() + budgets_->lists(); }
  uint64_t watch_errors() const { return nodes_->watch_errors() + pods_->watch_errors() + budgets_->watch_errors(); }
  uint64_t wakes() const { return wakes_.load(); }

 private:
  class NodeSink;
  class PodSink;
  class BudgetSink;
  void run();
  void wake(const State::Waiting& pod);
  void tell(const State::Unreached& pod);

  State& state_;
  kube::ApiClient api_;
  std::string event_source_;
  std::function<bool()> leading_;
  std::unique_ptr<NodeSink> node_sink_;
  std::unique_ptr<PodSink> pod_sink_;
  std::unique_ptr<BudgetSink> budget_sink_;
  std::unique_ptr<kube::Reflector> nodes_;
  std::unique_ptr<kube::Reflector> pods_;
  std::unique_ptr<kube::Reflector> budgets_;
  std::atomic<uint64_t> wakes_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice::scheduler
