// The caller's end of the control protocol: finds the agent of this machine, starts one when there is none, calls it.
// Not thread-safe; one connection per object. The grant made over a connection does not need it to stay open: it lives
// with the runner process and the processes that use the card (docs/agent-protocol.md, "How long a grant lives").
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/protocol.h"
#include "agent/run_directory.h"
#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

struct ConnectOptions {
  // Empty: SLUICE_RUN_DIR, else the root agent's /run/sluice when it answers, else this user's own directory.
  std::string run_directory;
  bool start = false;                        // start an agent when none answers
  std::string agent_program;                 // empty: SLUICE_AGENT, `sluice-agent` beside this program, then in PATH
  std::vector<std::string> agent_arguments;  // beyond --run-dir
  int timeout_ms = 10000;                    // for connecting and for each call
};

class Client {
 public:
  // Connects and says hello. Without an agent: kUnavailable, a sentence that names the socket. A running agent that is
  // just leaving is waited for and replaced (start) or reported as absent.
  static Result<Client> connect(const ConnectOptions& options);

  const HelloAnswer& agent() const { return hello_; }
  const std::string& run_directory() const { return run_directory_; }
  // True after a call during which the agent ended: the next one may have written down what was asked.
  bool hung_up() const { return hung_up_; }

  Result<GrantAnswer> grant(const GrantRequest& request);
  // `grant` is an id or a unique name, here and below. Release is for uid 0 and the grant's owner; processes that still
  // hold the card make it fail with kExists unless `force`, which closes the grant for new processes all the same.
  Result<void> release(const std::string& grant, bool force = false);
  // Keeps the grant alive as long as this process lives too. Only processes of the grant's owner.
  Result<void> attach(const std::string& grant, int64_t pid);
  Result<ListAnswer> list();
  Result<GrantStatus> set(const SetRequest& request);
  Result<void> set_policy(const SetPolicyRequest& request);
  // Calls back with each snapshot, every interval_ms (100..60000), until the callback returns false or the agent goes.
  Result<void> watch(int64_t interval_ms, const std::function<bool(const ListAnswer&)>& snapshot);
  // Ends the agent. Running programs keep their caps; grants stay on disk for the next agent. uid 0 or the agent's
  // user.
  Result<void> shutdown();

 private:
  Client() = default;
  Result<json::Object> call(Op op, json::Object arguments);
  Result<void> send_line(const std::string& line);
  Result<std::string> read_line();
  Error hang_up();
  // stopped: somebody listens who cannot answer before he is continued.
  static Result<Client> try_connect(const std::string& run_directory, int timeout_ms, bool& stopped);

  Fd socket_;
  std::string run_directory_;
  std::string buffered_;
  HelloAnswer hello_;
  int64_t next_id_ = 1;
  int timeout_ms_ = 10000;
  int64_t agent_pid_ = 0;  // by the kernel's word
  bool hung_up_ = false;
  bool stopped_ = false;
};

}  // namespace sluice::agent
