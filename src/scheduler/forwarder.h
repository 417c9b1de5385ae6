// What a follower does with a call that needs the leader: sends it on over kept connections and hands back the answer.
// One connection per call in flight; all are dropped when the leader changes.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kube/http_client.h"
#include "scheduler/http_server.h"

namespace sluice::scheduler {

class Forwarder {
 public:
  // `certificates`: for talking to other replicas; its server is filled in. The deadline stays under kube-scheduler's
  // own 5 s.
  explicit Forwarder(kube::Endpoint certificates, std::chrono::milliseconds timeout = std::chrono::milliseconds(4'500))
      : certificates_(std::move(certificates)), timeout_(timeout) {}

  // Without an answer of the leader: 503 that closes the connection, since kube-scheduler's HTTP client would otherwise
  // stay with this replica. A call that was sent on to us goes no further.
  ServerResponse forward(const ServerRequest& request, const std::string& leader_url);

 private:
  std::unique_ptr<kube::HttpClient> take(const std::string& url);
  void give_back(std::unique_ptr<kube::HttpClient> client);

  kube::Endpoint certificates_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // idle_, all of them connected to url_
  std::string url_;
  std::vector<std::unique_ptr<kube::HttpClient>> idle_;
};

}  // namespace sluice::scheduler
