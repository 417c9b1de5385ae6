// Two-dimensional sets made from a one-dimensional trace: card memory and compute as separate needs. SYNTHETIC: the
// openb trace has one number per pod, so these say how a policy handles two dimensions, not what a real cluster asks.
//
// - proportional: memory = milli x card memory / 1000 on whatever card it lands, compute as in the trace. Must give the
//   one-dimensional result to the last digit.
// - decorrelated: compute as in the trace; memory has the same distribution, drawn independently of compute.
// - memory-heavy: memory and compute drawn from the percentiles of inference containers in Alibaba's GenAI trace of
// 2026,
//   peak memory 23 / 40 / 48 GB and mean duty 0.4 / 5.8 / 11.5 % at p10 / p50 / p90.
//
// Drawn memory is absolute, in GiB, scaled so that the largest need is the smallest card's (14 GiB, a T4): the same pod
// takes a different part of a 16 GiB and of a 32 GiB card. Drawn compute is rounded up to a multiple of 5 %. Pods of
// whole cards stay so on every model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "replay/experiment.h"
#include "replay/trace.h"

namespace sluice::replay {

enum class TwoDim { kProportional, kDecorrelated, kMemoryHeavy };
Result<TwoDim> parse_two_dim(const std::string& name);
const char* to_string(TwoDim set);

// Errors as one_dimensional() gives. The draw of memory and compute is fixed by the pod's row, not by a seed: all seeds
// of one trace replay the same pods.
Result<Experiment> two_dimensional(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods,
                                   std::vector<uint32_t> arrivals, std::vector<uint32_t> ranks, TwoDim set);

}  // namespace sluice::replay
