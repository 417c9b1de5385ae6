// The launch calls of all generations.
#include <cstring>

#include "sim/launch.h"

namespace sluice::sim {

namespace {

CUresult launch_call(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream handle,
                     void** params, void** extra, bool cooperative, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  Launch launch;
  launch.function = find_function(call.process, f);
  if (launch.function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::memcpy(launch.grid, grid, sizeof launch.grid);
  std::memcpy(launch.block, block, sizeof launch.block);
  launch.shared_bytes = shared;
  launch.cooperative = cooperative;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  return launch_kernel(call, *stream, launch, params, extra);
}

CUresult launch_grid(CUfunction f, int width, int height, CUstream stream, const char* name) {
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned block[3] = {1, 1, 1}, shared = 0;
  std::vector<unsigned char> parameters;
  {
    Call call(name, kContext);
    if (call.result != CUDA_SUCCESS) return call.result;
    Function* function = find_function(call.process, f);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::memcpy(block, function->block, sizeof block);
    shared = function->shared_bytes;
    parameters = function->parameters;
  }
  const unsigned grid[3] = {static_cast<unsigned>(width), static_cast<unsigned>(height), 1};
  size_t bytes = parameters.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return launch_call(f, grid, block, shared, stream, nullptr, extra, false, name);
}

CUresult set_parameter(CUfunction f, int offset, const void* value, size_t bytes, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  Function* function = find_function(call.process, f);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset < 0 || static_cast<size_t>(offset) + bytes > 4096 || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function->parameters.size() < static_cast<size_t>(offset) + bytes)
    function->parameters.resize(static_cast<size_t>(offset) + bytes);
  std::memcpy(function->parameters.data() + offset, value, bytes);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void** params, void** extra) {
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch_call(f, grid, block, shared, stream, params, extra, false, "cuLaunchKernel");
}

CUresult sim_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = config->attrs[i].value.cooperative != 0;
  }
  return launch_call(f, grid, block, config->sharedMemBytes, config->hStream, params, extra, cooperative,
                     "cuLaunchKernelEx");
}

CUresult sim_cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream stream, void** params) {
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  return launch_call(f, grid, block, shared, stream, params, nullptr, true, "cuLaunchCooperativeKernel");
}

CUresult sim_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
  if (list == nullptr || count == 0 || count > 64 || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& l = list[i];
    const unsigned grid[3] = {l.gridDimX, l.gridDimY, l.gridDimZ}, block[3] = {l.blockDimX, l.blockDimY, l.blockDimZ};
    const CUresult result = launch_call(l.function, grid, block, l.sharedMemBytes, l.hStream, l.kernelParams, nullptr,
                                        true, "cuLaunchCooperativeKernelMultiDevice");
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuLaunch(CUfunction f) {
  return launch_grid(f, 1, 1, nullptr, "cuLaunch");
}
CUresult sim_cuLaunchGrid(CUfunction f, int width, int height) {
  return launch_grid(f, width, height, nullptr, "cuLaunchGrid");
}
CUresult sim_cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return launch_grid(f, width, height, stream, "cuLaunchGridAsync");
}

CUresult sim_cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
  SIM_ENTER(cuFuncSetBlockShape, kContext);
  Function* function = find_function(call.process, f);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  function->block[0] = static_cast<unsigned>(x);
  function->block[1] = static_cast<unsigned>(y);
  function->block[2] = static_cast<unsigned>(z);
  return CUDA_SUCCESS;
}
CUresult sim_cuFuncSetSharedSize(CUfunction f, unsigned bytes) {
  SIM_ENTER(cuFuncSetSharedSize, kContext);
  Function* function = find_function(call.process, f);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  function->shared_bytes = bytes;
  return CUDA_SUCCESS;
}
CUresult sim_cuParamSetSize(CUfunction f, unsigned bytes) {
  SIM_ENTER(cuParamSetSize, kContext);
  Function* function = find_function(call.process, f);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes > 4096) return CUDA_ERROR_INVALID_VALUE;
  function->parameters.resize(bytes);
  return CUDA_SUCCESS;
}
CUresult sim_cuParamSeti(CUfunction f, int offset, unsigned value) {
  return set_parameter(f, offset, &value, sizeof value, "cuParamSeti");
}
CUresult sim_cuParamSetf(CUfunction f, int offset, float value) {
  return set_parameter(f, offset, &value, sizeof value, "cuParamSetf");
}
CUresult sim_cuParamSetv(CUfunction f, int offset, void* value, unsigned bytes) {
  return set_parameter(f, offset, value, bytes, "cuParamSetv");
}
}
