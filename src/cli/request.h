// From a command line or a manifest to what the agent is asked for. Pure. The rules are core's; here they meet the
// options.
#pragma once

#include "agent/protocol.h"
#include "base/result.h"
#include "cli/manifest.h"
#include "cli/options.h"

namespace sluice::cli {

// A whole number in text, `what` names it in the error ("--weight").
Result<int64_t> parse_number(const std::string& text, std::string_view what, int64_t least, int64_t most);

// A grant's name when none is given: the command's file name and the runner's pid, cut to what the page can hold.
std::string default_name(const std::string& command, int64_t pid);

// What a command line asks for, in the form of a manifest's one container.
JobSpec job_from_options(const RunOptions& run);

// kInvalid with rule, need and found. `run` gives name, policy, weight and priority, which override the job's.
Result<agent::GrantRequest> grant_request(const JobSpec& job, const RunOptions& run);

Result<agent::SetRequest> set_request(const SetOptions& set);

}  // namespace sluice::cli
