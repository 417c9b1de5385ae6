// `sluice verify`: are this container's limits in force? Looked at from inside, where a program stands: the pages that
// the node has mapped, the libraries that a program gets, what they answer, and whether they refuse and hold. What only
// the node can see (a process that goes past the library) is in the metric sluice_enforced.
//
// Gathering (verify_gather.cc) tries everything and judges nothing; judging is pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/link.h"

namespace sluice::cli {

// One card of the grant page.
struct GrantedCard {
  std::string uuid;
  uint64_t memory_limit_bytes = 0;  // 0: not limited
  uint32_t core_permille = 0;       // 0: not limited
  uint32_t policy = 0;
  uint64_t heartbeat_ns = 0;  // of the card's turn keeper; 0: none yet
};

struct GrantEvidence {
  bool there = false;
  std::string problem;    // why it cannot be read; empty: it can
  bool writable = false;  // from in here
  std::string container;
  uint64_t now_ns = 0, heartbeat_ns = 0;  // CLOCK_MONOTONIC
  std::vector<GrantedCard> cards;
  std::string usage_problem;  // empty: the usage file belongs to the grant and can be written
};

// A library under its SONAME as a program gets it.
struct LibraryEvidence {
  std::string path;                 // of the file that was loaded
  std::string problem;              // why it was not; empty: it was
  std::vector<std::string> others;  // files of the driver on the search path that are not this one
};

// What the two libraries say of one card, and what they did when asked for too much.
struct CardEvidence {
  std::string uuid;
  uint64_t total_bytes = 0;      // cuDeviceTotalMem
  uint64_t free_bytes = 0;       // cuMemGetInfo
  int over_limit_result = -1;    // CUresult of an allocation of the total and 1 MiB; -1: not tried
  int small_result = -1;         // of 1 MiB; -1: not tried, nothing is free
  bool refusal_counted = false;  // in the usage page: it was the library that refused
  bool registered = false;       // this process holds a slot's lock
  bool launch_tried = false;
  bool launch_counted = false;  // a memset passed the gate and was counted; only where compute is limited
  std::string problem;          // the call that failed; empty: none
};

struct NvmlCard {
  std::string uuid;
  uint64_t total_bytes = 0;
};

struct Evidence {
  GrantEvidence grant;
  LibraryEvidence cuda, nvml;
  std::string cuda_problem;  // cuInit or the count failed
  std::vector<CardEvidence> cards;
  std::string nvml_problem;
  std::vector<NvmlCard> nvml_cards;
};

Evidence gather_evidence();

// One link per question, in the order in which they build on one another.
std::vector<Link> judge(const Evidence& evidence);

}  // namespace sluice::cli
