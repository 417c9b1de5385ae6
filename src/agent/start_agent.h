// Starts an agent in the background when none answers. Callers that arrive together queue at start.lock, so that one of
// them starts it and the others find it running. The new agent reports over a pipe: "ok", or the reason why it cannot
// serve, which becomes the caller's error.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::agent {

struct StartOptions {
  std::string run_directory;
  std::string program;                 // empty: SLUICE_AGENT, `sluice-agent` beside this program, then in PATH
  std::vector<std::string> arguments;  // beyond --run-dir and --ready-fd
  int timeout_ms = 10000;
  std::function<bool()> answers;  // asked again once the lock is held
};

Result<void> start_agent(const StartOptions& options);

// The agent's side of the pipe: writes one report and closes it. fd < 0: nobody asked.
void report_ready(int fd);
void report_failure(int fd, const Error& error);

}  // namespace sluice::agent
