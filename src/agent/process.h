// What the agent does as a process, with and without Kubernetes: how it ends, and how it makes sure that it is alone.
#pragma once

#include <signal.h>

#include <string>

#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

// Exit codes, also in --help.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitOtherAgent = 3;
inline constexpr int kExitMissing = 4;  // something is not there, which may come: a driver, cards, a key

// To be called before any thread is made, which all inherit it: the signals that end an agent are blocked (the set of
// them comes back, for a signalfd), a peer that hangs up is an error and no signal, new files are nobody else's to
// write.
sigset_t prepare_process();

// The lock of the one agent of a run directory. Another one that is on its way out (an update) is waited for, which one
// line in the log says; kExists, naming its pid, when it is still there after `leaving_ms`.
Result<Fd> lock_as_the_agent(int directory, const std::string& run_directory, int leaving_ms);

// Logs why the agent cannot serve, and gives its exit code.
int cannot_serve(const Error& error);

}  // namespace sluice::agent
