// The tool's commands. Each prints to standard output, its errors to standard error as "sluice VERB: sentence", and
// returns the exit status (exit_codes.h).
#pragma once

#include "agent/client.h"
#include "base/result.h"
#include "cli/options.h"

namespace sluice::cli {

int run(const Options& options);
int ps(const Options& options);
int top(const Options& options);
int set(const Options& options);
int cards(const Options& options);
int doctor(const Options& options);
int demo(const Options& options);
int explain(const Options& options);
int verify(const Options& options);

// Prints the sentence and gives its exit status.
int fail(std::string_view verb, const Error& error);

// The agent of this machine; `start`: one is started when none answers.
Result<agent::Client> connect(const Options& options, bool start = false);

}  // namespace sluice::cli
