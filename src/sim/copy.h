// Copies and memsets: what lies where, how long it takes, who waits.
#pragma once

#include <functional>
#include <vector>

#include "sim/api.h"

namespace sluice::sim {

// Linear view of an array (textures' memory): rows of pitch_bytes at a device address.
struct ArrayLayout {
  CUdeviceptr address = 0;
  size_t pitch_bytes = 0;
  size_t rows = 1;  // per layer
  size_t layers = 1;
  size_t element_bytes = 1;
};
// Defined where arrays are; weak: there are none.
bool array_layout(Process& process, CUarray array, ArrayLayout* layout);

enum class Direction { kHostToHost, kToDevice, kToHost, kOnDevice, kPeer };

struct CopyPlan {
  Direction direction = Direction::kOnDevice;
  bool pageable = false;  // host memory that the driver did not allocate or register
  uint64_t bytes = 0;
  std::function<void()> run;  // moves the bytes
};

// CUDA_ERROR_INVALID_VALUE when a side is not memory that it may be.
CUresult plan_copy(Process& process, const CUDA_MEMCPY3D& copy, CopyPlan* plan);
CUDA_MEMCPY3D linear_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_MEMCPY3D linear_copy_to_device(CUdeviceptr to, const void* from, size_t bytes);
CUDA_MEMCPY3D linear_copy_to_host(void* to, CUdeviceptr from, size_t bytes);
// The copy on a stream; `wait` for the synchronous forms.
CUresult copy_on_stream(Call& call, Stream& stream, const CUDA_MEMCPY3D& copy, bool wait);
uint64_t copy_duration(Card& card, const CopyPlan& plan);

struct MemsetPlan {
  uint64_t bytes = 0;
  bool host = false;
  std::function<void()> run;
};
CUresult plan_memset(Process& process, const CUDA_MEMSET_NODE_PARAMS_v1& params, MemsetPlan* plan);
uint64_t memset_duration(Card& card, const MemsetPlan& plan);

}  // namespace sluice::sim
