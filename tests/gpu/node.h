// gpu_node: the least that stands in for the agent on a machine where the agent cannot be built (its libraries are not
// there). It writes the pages of a few containers on one card, keeps their turns with the agent's own turn keeper, and
// starts programs inside such a container as `sluice run` would.
//
// Left out against the agent: NVML's correction of what contexts cost (the estimate stays as given), takeover, takeback
// of a dead process's bytes, policies other than fixed and native.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::gpu_node {

// Ends the program with 99 and one sentence, with errno's text when `with_errno`.
[[noreturn]] void fail(const std::string& what, bool with_errno = true);

struct Container {
  std::string name;
  uint64_t limit_mib = 0;      // 0 = no limit
  uint32_t core_permille = 0;  // 0 = no cap
};

struct HoldOptions {
  std::string state;  // folder; STATE/NAME/grant/page and STATE/NAME/usage are made
  std::string nvml;   // file of the real libnvidia-ml
  uint32_t card = 0;  // NVML index
  uint64_t estimate_mib = 600;
  uint32_t report_ms = 100;
  std::vector<Container> containers;
};

// Serves until standard input ends. Prints one line of JSON per report_ms: the guests' own figures.
int hold(const HoldOptions& options);

struct EnterOptions {
  std::string state;  // STATE/NAME of one container
  std::string cuda;   // files of the real libraries, links resolved
  std::string nvml;
  std::string guest;  // folder with ours
  std::string way;    // as way_in() gives it; empty: the best that works
  char** program = nullptr;
};

// How programs can be put into a container here: "mounts" (a private mount namespace), "user-mounts" (inside a user
// namespace) or "plain" (neither allowed: the fixed paths are made on the machine itself, for one container at a time).
const char* way_in();

// Becomes the program.
[[noreturn]] void enter(const EnterOptions& options);

}  // namespace sluice::gpu_node
