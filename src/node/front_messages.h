// What the two processes of a node's agent say to each other: JSON objects, one per line, over a socket pair. The front
// keeps the kubelet's connection, the worker does everything else (front.h says why they are two). Both are always the
// same build, so a message that cannot be read is a fault of ours. Pure, apart from the socket in LineChannel.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "node/plugin_server.h"

namespace sluice::node {

using DeviceLists = std::map<std::string, std::vector<OfferedDevice>>;  // by resource

// Worker to front: what is offered from now on.
struct OfferMessage {
  DeviceLists resources;
  bool keep_others = false;  // resources that are not named stay as they are (a worker that has just started)
  bool operator==(const OfferMessage&) const = default;
};

// Front to worker: a call of the kubelet. The same one may come again, to a new worker.
struct CallMessage {
  uint64_t id = 0;
  bool pre_start = false;  // else Allocate
  std::string resource;
  std::vector<std::string> ids;
  bool operator==(const CallMessage&) const = default;
};

// Worker to front.
struct ReplyMessage {
  uint64_t id = 0;
  bool done = true;
  Error error;  // of the call, when it is not done
  ContainerAnswer answer;
};

// Front to worker, after each change.
struct PluginStatus {
  std::map<std::string, bool> connected;  // resources and whether the kubelet listens
  std::set<std::string> contested;        // another plugin registers them again and again
  uint64_t registrations = 0;
  uint64_t worker_restarts = 0;  // after a worker was killed or crashed
  bool operator==(const PluginStatus&) const = default;
};

using FrontMessage = std::variant<OfferMessage, CallMessage, ReplyMessage, PluginStatus>;

json::Object to_json(const FrontMessage& message);
Result<FrontMessage> read_message(const json::Value& value);

// One end of the pair. Sending is safe from several threads; one thread receives.
class LineChannel {
 public:
  explicit LineChannel(Fd socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }

  // kUnavailable: the other end is gone, or has not read for as long as the socket's time-out says; after that the
  // channel is broken for good.
  Result<void> send(const FrontMessage& message);
  bool broken() const { return broken_; }
  // What has come; without waiting. An error: the other end is gone, or says what cannot be read.
  Result<std::vector<FrontMessage>> receive();

 private:
  Fd socket_;
  std::mutex sending_;
  std::atomic<bool> broken_{false};
  std::string begun_;  // of a line
};

}  // namespace sluice::node
