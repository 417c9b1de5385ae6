// The driver that the simulated card pretends to be: what nvidia-smi and cuDriverGetVersion show must agree.
#pragma once

namespace sluice::sim {

inline constexpr const char* kDriverVersion = "580.159.04";
inline constexpr const char* kDriverBranch = "r580_00";
// 1000 x major + 10 x minor of the newest CUDA that this driver runs.
inline constexpr int kCudaDriverVersion = 13000;

}  // namespace sluice::sim
