// The control protocol between the agent and its callers (`sluice`, tests, later the device plugin): requests and
// answers as plain structs and their JSON. One JSON object per line on a Unix socket, versioned; docs/agent-protocol.md
// is the same for readers. Pure: no sockets here, so that both ends and the fuzzer share one parser.
//
// What comes in is hostile on both ends: a line is at most kMaxLineBytes, texts and counts are bounded, unknown members
// are ignored (a newer peer may send them), missing or wrong ones are errors that name the member.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::agent {

inline constexpr int64_t kProtocolVersion = 1;
inline constexpr size_t kMaxLineBytes = 1u << 20;
inline constexpr size_t kMaxNameBytes = 95;    // of a grant, as the grant page holds it
inline constexpr int64_t kMaxWeight = 1000;    // 1..1000
inline constexpr int64_t kMaxGrantCards = 16;  // page::kMaxCards
inline constexpr char kSocketName[] = "agent.sock";

// "op" of a request.
enum class Op { kHello, kGrant, kRelease, kAttach, kList, kSet, kSetPolicy, kWatch, kShutdown };
const char* to_string(Op op);
Result<Op> parse_op(const std::string& text);

// Compute policies by name or number ("fixed", "3"). Numbers are page::Policy.
const char* policy_name(uint32_t policy);
Result<uint32_t> parse_policy_name(const std::string& text);

// Asks for cards. Exactly one of: memory (and compute), or whole cards. Memory and compute are those of the whole
// request and divide evenly over `cards`.
struct GrantRequest {
  std::string name;           // for people; empty: "<command>-<pid>" is made from the caller
  std::string pod;            // containers of one pod carry the same text; empty: the grant is a pod of its own
  int64_t gpu_mem_units = 0;  // units (GiB unless the agent was told otherwise); 0 with whole cards
  int64_t core_percent = 0;   // 100 = one card; 0: compute is not asked for
  int64_t cards = 1;          // split over this many cards of the machine
  int64_t whole_cards = 0;    // exclusive cards
  std::vector<std::string> card_uuids;  // only these cards (containers of one pod share theirs); empty: any
  std::optional<uint32_t> policy;       // compute policy wanted for the card; absent: the card's
  int64_t weight = 1;                   // 1..kMaxWeight, for the weighted policy
  bool high_priority = false;           // latency first
  int64_t runner_pid = 0;  // the process that the grant lives with; 0: the caller. Must be the caller's user's
  json::Object to_json() const;
  static Result<GrantRequest> from_json(const json::Object& object);
  bool operator==(const GrantRequest&) const = default;
};

// One card of a grant.
struct GrantCardAnswer {
  int64_t index = 0;  // NVML order on the machine
  std::string uuid;   // "GPU-...."
  std::string model;
  int64_t card_memory_mib = 0;
  int64_t card_units = 0;
  int64_t units = 0;  // of this grant; card_units for whole cards
  int64_t memory_limit_mib = 0;
  int64_t core_percent = 0;  // 0: not limited
  std::string device_node;   // "/dev/nvidia0"; empty when the driver does not say
  bool operator==(const GrantCardAnswer&) const = default;
};

// A driver library of the machine, to be covered by ours.
struct DriverFile {
  std::string soname;     // "libcuda.so.1"
  std::string real_path;  // the file itself, links resolved: appears as page::kDriverDirectory/<soname>
  std::vector<std::string>
      cover;               // every file on the search path that programs may open under this name, links resolved
  std::string guest_path;  // our library that stands in front of it
  bool operator==(const DriverFile&) const = default;
};

// Everything that starting a program under the grant needs.
struct GrantAnswer {
  std::string id;  // 16 hex digits
  std::string name;
  bool whole_cards = false;  // no limits; the page still says which cards the program may see
  bool isolate = true;       // false: the whole machine was granted, nothing needs to stand in front of the driver
  uint32_t policy = 0;
  std::vector<GrantCardAnswer> cards;
  std::string grant_directory;  // to appear read-only at page::kContainerRoot/grant
  std::string usage_file;       // to appear read-write at page::kUsagePath
  std::vector<DriverFile> driver_files;
  std::vector<std::pair<std::string, std::string>> environment;  // to set in the program
  std::vector<std::string> notes;  // sentences for the user: what was asked for and not honoured, and why
  json::Object to_json() const;
  static Result<GrantAnswer> from_json(const json::Object& object);
  bool operator==(const GrantAnswer&) const = default;
};

// Changes a running grant; absent members stay as they are. Values are per card.
struct SetRequest {
  std::string grant;                     // id or unique name
  std::optional<int64_t> gpu_mem_units;  // never below what is in use
  std::optional<int64_t> core_percent;   // multiple of 5, 5..100
  std::optional<int64_t> weight;
  std::optional<bool> high_priority;
  json::Object to_json() const;
  static Result<SetRequest> from_json(const json::Object& object);
  bool operator==(const SetRequest&) const = default;
};

struct SetPolicyRequest {
  uint32_t policy = 0;
  std::string card;  // index or UUID; empty: every card
  json::Object to_json() const;
  static Result<SetPolicyRequest> from_json(const json::Object& object);
  bool operator==(const SetPolicyRequest&) const = default;
};

struct ProcessStatus {
  int64_t pid = 0;
  int64_t card_index = 0;
  std::string command;
  int64_t used_mib = -1;           // by NVML; -1: not known
  int64_t reserved_mib = 0;        // by the program's own ledger
  double utilisation_percent = 0;  // of the card, last second
  int64_t launches = 0;
  double throttled_seconds = 0;  // time its threads waited at the gate
  bool granted = true;           // false: holds the card without a grant of ours
  // By the driver's samples, as utilisation_percent: memory traffic and the two video engines.
  double memory_copy_percent = 0, encoder_percent = 0, decoder_percent = 0;
  bool operator==(const ProcessStatus&) const = default;
};

struct GrantUse {
  int64_t card_index = 0;
  int64_t used_mib = 0;      // what the card spends on the grant, by NVML; the ledger's figure where NVML has none
  int64_t reserved_mib = 0;  // by the ledger
  double utilisation_percent = 0;  // of the card, last second
  int64_t refused_allocations = 0;
  int64_t overruns = 0;   // turns that were not given back in time
  int64_t tampering = 0;  // differences found between the page and the card
  bool operator==(const GrantUse&) const = default;
};

struct GrantStatus {
  std::string id, name, pod;
  int64_t owner_uid = 0;
  int64_t runner_pid = 0;  // 0: gone, processes still hold it
  bool whole_cards = false;
  bool taken_over = false;   // made by an earlier agent
  int64_t started_unix = 0;  // seconds
  uint32_t policy = 0;
  int64_t weight = 1;
  bool high_priority = false;
  std::vector<GrantCardAnswer> cards;
  std::vector<GrantUse> use;  // one per card, same order
  std::vector<ProcessStatus> processes;
  json::Object to_json() const;
  static Result<GrantStatus> from_json(const json::Object& object);
  bool operator==(const GrantStatus&) const = default;
};

struct CardStatus {
  int64_t index = 0;
  std::string uuid, model;
  std::string state;  // "ok", "lost", "held by another agent"
  std::string kind;   // what it serves now: "free", "memory", "memory+core", "whole"
  uint32_t policy = 0;
  int64_t memory_mib = 0, units = 0, free_units = 0;
  int64_t free_core_percent = 0;
  int64_t grants = 0, max_grants = 0;
  int64_t used_mib = 0;                  // by NVML, everybody's
  double utilisation_percent = 0;        // by NVML
  bool turns = false;                    // turns are in force
  std::vector<ProcessStatus> strangers;  // processes on the card without a grant
  bool operator==(const CardStatus&) const = default;
};

struct Event {
  int64_t unix_ms = 0;
  std::string what;  // "stranger", "tampering", "overrun", "card-lost", "card-back", "grant-lost"
  std::string text;  // one sentence
  bool operator==(const Event&) const = default;
};

struct ListAnswer {
  std::string agent_version, driver_version, run_directory;
  int64_t agent_pid = 0, agent_uid = 0;
  std::string memory_unit;  // "GiB"
  std::vector<CardStatus> cards;
  std::vector<GrantStatus> grants;
  std::vector<Event> events;  // the last ones, oldest first
  json::Object to_json() const;
  static Result<ListAnswer> from_json(const json::Object& object);
};

struct HelloAnswer {
  int64_t protocol = 0;
  std::string version;
  int64_t pid = 0, uid = 0;
  std::string run_directory;
  json::Object to_json() const;
  static Result<HelloAnswer> from_json(const json::Object& object);
};

// The frame of a line. `request_line` ends with a newline; so do answers.
struct RequestFrame {
  int64_t id = 0;
  Op op = Op::kHello;
  json::Object arguments;
};
std::string request_line(const RequestFrame& frame);
// Errors are for the caller; `id` is filled in as soon as it is known, so that the answer can carry it.
Result<RequestFrame> parse_request(std::string_view line, int64_t& id);

std::string answer_line(int64_t id, const json::Object& result);
std::string error_line(int64_t id, const Error& error);
// The result of an answer line, or the error that it carries, with its code.
Result<json::Object> parse_answer(std::string_view line, int64_t expected_id);

const char* code_name(ErrorCode code);
ErrorCode parse_code(const std::string& name);

}  // namespace sluice::agent
