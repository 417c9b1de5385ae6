// One kernel launch, however it was asked for; shared by the launch calls and by graph nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/api.h"
#include "sim/module.h"

namespace sluice::sim {

struct Launch {
  Function* function = nullptr;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  bool cooperative = false;
  std::vector<unsigned char> parameters;  // packed by the function's offsets, as far as they are known
};

// Checks the shape against card and function. CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE.
CUresult check_launch(Card& card, const Launch& launch);
// Takes the values out of kernelParams or of the `extra` list.
CUresult read_parameters(const Function& function, void** params, void** extra, std::vector<unsigned char>* packed);
// What the card is to do; draws the duration. `ordinal` numbers the launches of the stream.
Submission plan_launch(Call& call, Stream& stream, const Launch& launch, uint64_t ordinal);
// What the kernel writes, for the few that write; null for all others.
std::function<void()> kernel_effect(Process& process, const Launch& launch);
CUresult launch_kernel(Call& call, Stream& stream, Launch& launch, void** params, void** extra);

}  // namespace sluice::sim
