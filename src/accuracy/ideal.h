// What an ideal token bucket would give a container's programs: the same rate, 30 ms of burst, no latency, no cost. The
// target for programs that do not keep the card busy by themselves, where a plain quota would ask for the impossible.
#pragma once

#include "accuracy/scenario.h"

namespace sluice::accuracy {

// Share of the card in percent over `seconds`, of a container alone on it; percent = 0: no bucket.
double ideal_percent(const ContainerSpec& container, double percent, double seconds, uint64_t seed);

}  // namespace sluice::accuracy
