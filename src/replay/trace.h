// Cluster traces in the openb format (Alibaba cluster-trace-gpu-v2023): nodes, pods, and the stored arrival orders and
// tie ranks of the published experiment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/node.h"
#include "core/request.h"

namespace sluice::replay {

inline constexpr int64_t kCardMilli = 1000;  // every card counts so much, whatever its model

struct TraceNode {
  std::string name;
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int32_t cards = 0;
  std::string model;
};

struct TracePod {
  std::string name;
  int64_t cpu_milli = 0;
  int64_t memory_mib = 0;
  int32_t cards = 0;
  int32_t card_milli = 0;  // of each card; 1..1000, 0 for pods without cards
  std::string models;      // allowed ones joined by "|"; empty: any
  int64_t created_s = 0;   // 0 where the trace has no times
  int64_t deleted_s = 0;
};

// By column name, in any order; unknown columns are left alone. Errors name file, line, column, need and have.
Result<std::vector<TraceNode>> read_nodes(const std::string& path);
// gpu_milli above 1000 is cut to 1000, missing means 1000 (the published reading).
Result<std::vector<TracePod>> read_pods(const std::string& path);

// Lines "seed i0 i1 ...": per seed a list of row numbers, each below `bound`.
using SeedLists = std::map<int64_t, std::vector<uint32_t>>;
Result<SeedLists> read_seed_lists(const std::string& path, size_t bound);

int64_t total_card_milli(const std::vector<TraceNode>& nodes);

// The one number of the trace as both dimensions in proportion: a card has 1000 units and 1000 milli of compute.
core::Node one_dimensional_node(const TraceNode& node);
core::Request one_dimensional_request(const TracePod& pod);
std::vector<std::string> split_models(const std::string& joined);

// GPU memory of a model in MiB (the simulator's table); 20000 for one it does not know.
int64_t model_memory_mib(const std::string& model);

}  // namespace sluice::replay
