// The control socket: one thread accepts, one thread per connection reads requests and answers them in order. Peers are
// known by SO_PEERCRED. Everything is bounded: connections in total and per user, line length, the time that a
// half-sent line or an unread answer may take. What a request does is the handler's (Node's) business.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "agent/node.h"
#include "agent/protocol.h"
#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

struct ServerOptions {
  int directory = -1;  // the run directory, open
  std::string run_directory;
  bool all_users = false;  // a root agent serves everybody: 0666; else 0600 and the agent's own user (and root)
  int max_connections = 256;
  int max_connections_per_user = 64;  // root and the agent's user: no limit of their own
  int line_timeout_ms = 10000;
};

class Server {
 public:
  Server(ServerOptions options, Node& node, std::function<void()> shutdown_asked);
  ~Server();

  Result<void> start();
  // Nobody is connected.
  bool idle();
  // Leaves the socket: removes its name, then hangs up on whoever came in between. Such a peer has not been answered
  // (hello comes first) and starts over. False, and nothing changed, when somebody is connected or has a grant.
  bool leave_if_idle();
  // Hangs up on everybody and joins all threads.
  void stop();

 private:
  void accept_loop();
  void serve(Fd socket, Peer peer);
  bool handle(int fd, const Peer& peer, std::string_view line, bool& keep);
  Result<json::Object> perform(const Peer& peer, const RequestFrame& frame);
  bool watch(int fd, const Peer& peer, const RequestFrame& frame);
  bool send_all(int fd, std::string_view text);
  Result<void> admit(const Peer& peer);  // an error without words: hang up without an answer

  ServerOptions options_;
  Node& node_;
  std::function<void()> shutdown_asked_;
  Fd listener_;
  Fd stop_event_;
  std::thread acceptor_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int connections_ = 0;
  std::map<int64_t, int> per_user_;
  bool leaving_ = false;
  bool stopped_ = false;
};

}  // namespace sluice::agent
