// Starts the command and stands in for it until it ends: passes signals on, gives its exit status back.
//
// The runner stays as the command's parent, in the same process group and session, so that a terminal's job control
// works as without it. Signals that the terminal sends (Ctrl-C, hang-up) reach the command by themselves and are not
// passed on again; signals sent to the runner by kill(2) are. It is no child subreaper: a daemon that the command
// leaves behind belongs to init as it always does, and keeps its caps because the agent keeps a grant for as long as a
// process holds a slot of the usage page. If the runner is killed, the command runs on under its caps for the same
// reason.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct Command {
  std::vector<std::string> arguments;                            // [0] is looked up in the new PATH
  std::vector<std::pair<std::string, std::string>> environment;  // over the caller's, later entries win
  std::string working_directory;                                 // empty: the caller's
};

struct Outcome {
  int status = 0;     // the command's exit status, 128 + signal, or one of exit_codes.h
  std::string error;  // not empty: the command was not started, and why
};

// `prepare` runs in the child before the command is executed (namespaces); `started` in the parent with the child's
// pid. The calling process has to be single-threaded.
Outcome run_command(const Command& command, const std::function<Result<void>()>& prepare,
                    const std::function<void(pid_t)>& started);

}  // namespace sluice::cli
