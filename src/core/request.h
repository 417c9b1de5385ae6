// What a pod (or a `sluice run` command line) asks for, from text to checked numbers. One parser serves the scheduler,
// the webhook, the agent and the command line, so that a request is right or wrong in the same words everywhere.
//
// Rules (docs/scheduler.md, "Reasons"): memory in whole units, at least 1; compute in percent, a multiple of 5,
// at least 5, never without memory; all containers that ask for anything ask for the same kinds; with a card count M
// the units and the percentage of every container divide evenly by M and each per-card percentage is again a multiple
// of 5. Every error names the rule, what it needs and what it found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::core {

inline constexpr const char* kResourceMemory = "aliyun.com/gpu-mem";
inline constexpr const char* kResourceCore = "aliyun.com/gpu-core.percentage";
inline constexpr const char* kResourceWholeCards = "nvidia.com/gpu";
inline constexpr const char* kLabelCardCount = "aliyun.com/gpu-count";

inline constexpr int32_t kMaxCardsPerNode = 32;       // more cards on one node, or asked for by one pod, are refused
inline constexpr int64_t kMaxUnits = 1 << 30;         // of one card or one request
inline constexpr int64_t kMaxContainersPerPod = 256;  // bounds what a manifest can make us do

// Which resources a request names.
enum class Kind {
  kNone,        // no card at all
  kMemory,      // gpu-mem only: compute is shared
  kMemoryCore,  // gpu-mem and gpu-core.percentage
  kWhole,       // nvidia.com/gpu: whole cards
};
const char* to_string(Kind kind);

// The request of a whole pod, per card. All cards of one request take the same.
struct Request {
  Kind kind = Kind::kNone;
  int32_t cards = 0;                // cards of one node; 0 with kNone
  int64_t units = 0;                // memory units on each card (kMemory, kMemoryCore)
  int32_t core_milli = 0;           // 1/1000 of a card on each card; 0: compute is not asked for
  std::vector<std::string> models;  // allowed card models; empty: any
  int64_t cpu_milli = 0;            // for callers that place CPU and main memory too (stand-alone, replay); else 0
  int64_t memory_mib = 0;           // main memory
  // Units per card by card model, for workloads whose memory need is a fraction of the card (replay only). Looked up
  // before `units`; empty in all other uses.
  std::vector<std::pair<std::string, int64_t>> units_by_model;

  bool operator==(const Request&) const = default;
};

// When a container runs, as Kubernetes counts it.
enum class ContainerRole {
  kMain,     // all main containers run together
  kInit,     // runs alone, before the main ones
  kSidecar,  // restartable init container: runs beside the later init containers and the main ones
};

// One container's request as written. Absent: not written at all. Texts are what the manifest holds ("10").
struct ContainerText {
  std::string name;
  ContainerRole role = ContainerRole::kMain;
  std::optional<std::string> memory_units;
  std::optional<std::string> core_percent;
  std::optional<std::string> whole_cards;
};

struct PodText {
  std::vector<ContainerText> containers;  // init containers first, in their order
  std::optional<std::string> card_count;  // the label aliyun.com/gpu-count
};

// One container's part of each card.
struct ContainerShare {
  std::string name;
  ContainerRole role = ContainerRole::kMain;
  int64_t units = 0;        // per card
  int32_t core_milli = 0;   // per card
  int32_t whole_cards = 0;  // kWhole only
};

struct PodRequest {
  Request total;                       // what has to fit: max(init containers, sum of the rest), as Kubernetes counts
  std::vector<ContainerShare> shares;  // one per container that asks, in the order given
};

// A pod's request. A pod that asks for nothing gives Kind::kNone with an empty list. Errors are kInvalid.
Result<PodRequest> parse_pod(const PodText& pod);

// The request of one container (a command line, a Job with one container). `models` are taken as they are.
Result<Request> parse_request(const std::optional<std::string>& memory_units,
                              const std::optional<std::string>& core_percent,
                              const std::optional<std::string>& card_count = std::nullopt,
                              std::vector<std::string> models = {});

}  // namespace sluice::core
