// What usually arrives: request classes with their popularity. Fragmentation is measured against it, so it is learnt
// from the requests seen (a trace, the cluster's own recent pods).
#pragma once

#include <span>
#include <vector>

#include "core/request.h"

namespace sluice::core {

struct TaskClass {
  Request request;
  double popularity = 0;  // of all tasks, those without cards included; the sum over a workload is 1
};

struct Workload {
  std::vector<TaskClass> classes;  // most popular first
};

// The published rule (Weng et al., USENIX ATC '23, code of the simulator): group by CPU, compute per card, card count
// and allowed models (and memory units, where these are asked for by themselves), main memory left out; sort by count
// (ties: larger CPU, compute, count, models first); keep classes until `covered` of all requests are in; scale to 1.
Workload learn_workload(std::span<const Request> requests, double covered = 0.95);

}  // namespace sluice::core
