// The node in Prometheus text format, and a local port to fetch it from. The text is made from a snapshot at scrape
// time. Names: those of ACK's exporter where they mean something on one machine, ours under sluice_ for the rest.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "agent/protocol.h"
#include "base/connections.h"
#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

std::string metrics_text(const ListAnswer& node, const std::string& host_name);

// kInvalid where the text is no IP:PORT.
Result<void> check_listen_address(const std::string& text);

// Serves GET /metrics, /healthz and /readyz over HTTP/1.1, one request per connection, a thread for each.
class MetricsServer {
 public:
  MetricsServer() = default;
  ~MetricsServer() { stop(); }
  // address: "127.0.0.1:9401", "[::1]:9401"; port 0 takes a free one. kInvalid: no such address; kExists: taken.
  // ready: answers /readyz; empty: always.
  Result<void> start(const std::string& address, std::function<std::string()> text, std::function<bool()> ready = {});
  int port() const { return port_; }
  void stop();

  static constexpr size_t kMaxConnections = 16;

 private:
  void loop();
  void answer(int fd, Connections::Id id);

  std::function<std::string()> text_;
  std::function<bool()> ready_;
  std::mutex asking_;  // text_ and ready_ are called by one thread at a time
  Fd listener_;
  Fd stop_event_;
  int port_ = 0;
  std::thread thread_;
  Connections connections_{kMaxConnections};
};

}  // namespace sluice::agent
