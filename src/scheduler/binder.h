// Turns a placement into a Binding at the API server: one object that carries node, preconditions and all allocation
// annotations, which the server applies in one step (true of Kubernetes 1.25 to 1.37). Nothing is annotated before and
// nothing after, so a crash anywhere leaves the pod either unbound or bound with its record.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kube/api_client.h"
#include "kube/signature.h"
#include "scheduler/extender.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

// ApiClients for threads that come and go; each has a connection of its own that is kept.
class ClientPool {
 public:
  ClientPool(kube::Endpoint endpoint, std::chrono::milliseconds timeout)
      : endpoint_(std::move(endpoint)), timeout_(timeout) {}
  class Lease {
   public:
    Lease(ClientPool& pool, std::unique_ptr<kube::ApiClient> client) : pool_(pool), client_(std::move(client)) {}
    ~Lease();
    kube::ApiClient* operator->() { return client_.get(); }

   private:
    ClientPool& pool_;
    std::unique_ptr<kube::ApiClient> client_;
  };
  Lease take();

 private:
  kube::Endpoint endpoint_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // idle_
  std::vector<std::unique_ptr<kube::ApiClient>> idle_;
};

struct BinderTimes {
  std::chrono::milliseconds timeout{3'000};  // of one call; under kube-scheduler's own 5 s, with room for a GET
  // A Binding that got no answer may still be applied for this long; afterwards a GET that shows an unbound pod is
  // final.
  std::chrono::milliseconds doubt{10'000};
};

class Binder {
 public:
  // `may_bind`: whether we lead, asked directly before each Binding is sent.
  Binder(State& state, kube::Endpoint endpoint, kube::Signer signer, std::function<bool()> may_bind,
         BinderTimes times = {});
  ~Binder();

  // Empty on success, else the reason for kube-scheduler.
  std::string bind(const BindRequest& request);

  uint64_t bound() const { return bound_.load(); }
  uint64_t conflicts() const { return conflicts_.load(); }
  uint64_t unknown() const { return unknown_.load(); }

 private:
  enum class Seen { kBoundHere, kNotBoundHere, kUnknown };
  struct Doubt {
    BindRequest request;
    std::chrono::steady_clock::time_point since;
  };
  Seen look(const BindRequest& request);
  kube::ApiAnswer send(const BindRequest& request, std::string version,
                       const std::map<std::string, std::string>& annotations);
  std::string finish(const BindRequest& request, const kube::ApiAnswer& answer);
  void resolve_doubts();

  State& state_;
  ClientPool clients_;
  kube::Signer signer_;
  std::function<bool()> may_bind_;
  BinderTimes times_;
  std::atomic<uint64_t> bound_{0};
  std::atomic<uint64_t> conflicts_{0};
  std::atomic<uint64_t> unknown_{0};
  std::mutex mutex_;  // doubts_
  std::deque<Doubt> doubts_;
  std::atomic<bool> stopping_{false};
  std::thread resolver_;
};

}  // namespace sluice::scheduler
