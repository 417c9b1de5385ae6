// What is written to disk about a grant, enough for a later agent to take over its running programs. One JSON file per
// grant in the run directory's records/, which only the agent's user can reach; written whole or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/grant_pages.h"
#include "base/json.h"
#include "base/result.h"
#include "core/node.h"
#include "core/request.h"

namespace sluice::agent {

// A process by pid and start time (/proc/PID/stat field 22, clock ticks since boot): pids are used again.
struct ProcessId {
  int64_t pid = 0;
  uint64_t start_ticks = 0;
  bool operator==(const ProcessId&) const = default;
};

struct RecordShare {
  std::string card_uuid;
  int64_t units = 0;
  int64_t memory_mib = 0;
  int32_t core_milli = 0;
  bool operator==(const RecordShare&) const = default;
};

struct GrantRecord {
  uint64_t id = 0;
  std::string name, pod;
  std::string pod_uid;        // not empty: a Kubernetes pod's container; the grant lives until its pod has gone
  bool enforced = true;       // false: cards are chosen and shown, no limit is set (share nodes, or switched_off)
  bool switched_off = false;  // by the pod itself (CGPU_DISABLE), where that is allowed
  int64_t owner_uid = 0;
  core::Kind kind = core::Kind::kNone;
  std::vector<RecordShare> shares;  // order of the cards in the pages
  uint32_t policy = 0;              // of its cards when it was made
  int64_t weight = 1;
  bool high_priority = false;
  int64_t started_unix = 0;
  std::vector<ProcessId> holders;  // runner first
  FileIdentity page, usage;
  json::Object to_json() const;
  static Result<GrantRecord> from_json(const json::Object& object);
  bool operator==(const GrantRecord&) const = default;
};

// Start time of a process; kNotFound when there is none.
Result<uint64_t> process_start_ticks(int64_t pid);
// Its name from /proc/PID/comm, "" when it is gone.
std::string process_command(int64_t pid);
// The real uid of a process.
Result<int64_t> process_uid(int64_t pid);

}  // namespace sluice::agent
