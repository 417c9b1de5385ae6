// The scheduler's routes and metrics: which path is answered by whom, leader or follower.
//
// A follower is ready and forwards what needs the leader (binds and everything that leads to one) to it.
//
// Whoever may call bind decides where pods run, so the extender's verbs can be kept to clients with a certificate. The
// webhook (API servers show none unless told to), probes, metrics and what `sluice explain` reads stay open.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kube/http_client.h"
#include "scheduler/adopter.h"
#include "scheduler/binder.h"
#include "scheduler/extender.h"
#include "scheduler/forwarder.h"
#include "scheduler/state.h"
#include "scheduler/watchers.h"
#include "scheduler/webhook.h"

namespace sluice::scheduler {

inline constexpr std::array<double, 10> kLatencyBounds_s = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 5};

struct VerbMetrics {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> microseconds{0};
  std::array<std::atomic<uint64_t>, kLatencyBounds_s.size()> buckets{};  // not cumulative
};

class Service {
 public:
  struct Parts {
    State& state;
    Extender& extender;
    Webhook& webhook;
    const Watchers& watchers;
    const Binder& binder;
    const Adopter& adopter;
    std::function<bool()> leading;
    std::function<std::string()> leader_url;  // empty: unknown or ourselves
    kube::Endpoint forward_template;          // certificates for talking to the leader; its server is filled in
    bool known_clients_only = false;          // the extender's verbs want a client certificate
    std::vector<std::string> client_names;    // its common name is one of these; empty: any that the CA has signed
  };
  explicit Service(Parts parts) : parts_(std::move(parts)), forwarder_(parts_.forward_template) {}

  ServerResponse handle(const ServerRequest& request);

 private:
  enum Verb { kFilter, kPrioritize, kBind, kPreempt, kWebhook, kVerbs };
  ServerResponse verb(Verb verb, const ServerRequest& request);
  bool may_call(Verb verb, const std::string& peer) const;
  ServerResponse metrics() const;
  ServerResponse explain(const std::string& target);

  Parts parts_;
  Forwarder forwarder_;
  std::array<VerbMetrics, kVerbs> metrics_;
};

}  // namespace sluice::scheduler
