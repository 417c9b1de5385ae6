// Gives cards to pods that were bound without us (spec.nodeName, another scheduler): a PATCH of the pod's annotations
// that carries its UID and the resourceVersion which the decision rests on, so that it changes exactly the pod that was
// looked at. Where no card fits the pod gets an event that says why, and is looked at again after every change.
//
// The annotations are the same as a Binding carries. Until the API server has said yes or no the pod is counted as it
// was, at its worst case, which covers whatever the PATCH may have written.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "kube/api_client.h"
#include "kube/signature.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

struct AdopterTimes {
  std::chrono::milliseconds period{100};
  std::chrono::milliseconds timeout{3'000};  // of one call
  std::chrono::milliseconds retry{1'000};    // after a PATCH that did not go through
};

class Adopter {
 public:
  // `may_write`: whether we lead, asked directly before each PATCH.
  Adopter(State& state, kube::Endpoint endpoint, kube::Signer signer, std::string event_source,
          std::function<bool()> may_write, AdopterTimes times = {});
  ~Adopter();

  uint64_t adopted() const { return adopted_.load(); }

 private:
  void run();
  void adopt(const State::Orphan& orphan);
  void pause(std::chrono::milliseconds time);

  State& state_;
  kube::ApiClient api_;
  kube::Signer signer_;
  std::string event_source_;
  std::function<bool()> may_write_;
  AdopterTimes times_;
  std::atomic<uint64_t> adopted_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice::scheduler
