// The worker's end of its tie to the front (front.h): what is offered goes out, the kubelet's calls come in, each on a
// thread of its own, and what is registered is known.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "node/front_messages.h"

namespace sluice::node {

class PluginLink {
 public:
  using Serve = std::function<ReplyMessage(const CallMessage&)>;

  // Reads from the socket at once; calls wait until serve(). changed: after each change of what is registered; lost:
  // the front is gone. Both on the reading thread.
  PluginLink(Fd socket, std::function<void()> changed, std::function<void()> lost);
  ~PluginLink();  // waits for the calls that are being answered
  PluginLink(const PluginLink&) = delete;
  PluginLink& operator=(const PluginLink&) = delete;

  // Answers calls from now on, several at a time.
  void serve(Serve answer);

  // From now on these resources, with these lists; others end unless keep_others. Sent when it differs.
  void want(DeviceLists resources, bool keep_others = false);

  // The kubelet listens to every resource that is wanted, and there is one.
  bool complete() const;
  bool contested(const std::string& resource) const;
  uint64_t registrations() const;
  uint64_t worker_restarts() const;

 private:
  void read_loop();
  void start_answering(CallMessage call);  // with mutex_

  LineChannel channel_;
  std::function<void()> changed_, lost_;
  Fd stop_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  Serve serve_;
  std::vector<CallMessage> waiting_;  // until serve()
  int open_calls_ = 0;
  OfferMessage offered_;
  bool offered_once_ = false;
  PluginStatus status_;
  std::thread reader_;
};

}  // namespace sluice::node
