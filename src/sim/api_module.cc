// Modules, functions, occupancy.
#include <algorithm>
#include <cstring>

#include "sim/api.h"
#include "sim/module.h"
#include "sim/read_file.h"

namespace sluice::sim {

namespace {

constexpr size_t kMaxImageBytes = 1u << 30;

CUresult load(CUmodule* out, std::string_view bytes, Call& call) {
  Module* module = nullptr;
  const CUresult result = load_module(*call.context, bytes, &module);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUmodule>(module);
  return result;
}

CUresult load_data(CUmodule* out, const void* image, const char* name) {
  Call call(name, kContext | kNoCapture);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load(out, image_bytes(image), call);
}

Module* find_module(Call& call, CUmodule handle) {
  return module_state(call.process).modules.find(handle);
}

int attribute_of(const Function& f, CUfunction_attribute attribute, const ProfileData& p) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return static_cast<int>(f.kernel.max_threads);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return static_cast<int>(f.kernel.shared_bytes);
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return static_cast<int>(f.kernel.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return static_cast<int>(f.kernel.registers);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return static_cast<int>(p.compute_major * 10 + p.compute_minor);
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return f.dynamic_shared_bytes;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return f.carveout;
    default:
      return 0;
  }
}

CUresult occupancy(int* blocks, CUfunction handle, int threads, size_t shared, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = static_cast<int>(blocks_per_sm(call.card().profile(), *function, static_cast<unsigned>(threads), shared));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuModuleLoad(CUmodule* out, const char* path) {
  SIM_ENTER(cuModuleLoad, kContext | kNoCapture);
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  if (!read_whole_file(path, kMaxImageBytes, &text)) return CUDA_ERROR_FILE_NOT_FOUND;
  return load(out, text, call);
}
CUresult sim_cuModuleLoadData(CUmodule* out, const void* image) {
  return load_data(out, image, "cuModuleLoadData");
}
CUresult sim_cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return load_data(out, image, "cuModuleLoadDataEx");
}
CUresult sim_cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return load_data(out, image, "cuModuleLoadFatBinary");
}

CUresult sim_cuModuleUnload(CUmodule handle) {
  SIM_ENTER(cuModuleUnload, kContext | kNoCapture);
  Module* module = find_module(call, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (call.card().knob(Knob::load_synchronises) != 0) wait_context(*module->context);
  return unload_module(*module);
}

CUresult sim_cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  SIM_ENTER(cuModuleGetFunction, kContext);
  if (out == nullptr || name == nullptr || name[0] == '\0') return CUDA_ERROR_INVALID_VALUE;
  Module* module = find_module(call, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Function* function = nullptr;
  const CUresult result = get_function(*module, name, &function);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUfunction>(function);
  return result;
}

CUresult sim_cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  SIM_ENTER(cuModuleGetFunctionCount, kContext);
  Module* module = find_module(call, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->image->kernels.size());
  return CUDA_SUCCESS;
}

CUresult sim_cuModuleEnumerateFunctions(CUfunction* out, unsigned count, CUmodule handle) {
  SIM_ENTER(cuModuleEnumerateFunctions, kContext);
  Module* module = find_module(call, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < std::min<size_t>(count, module->image->kernels.size()); ++i) {
    Function* function = nullptr;
    if (const CUresult result = get_function(*module, module->image->kernels[i].name, &function);
        result != CUDA_SUCCESS)
      return result;
    out[i] = reinterpret_cast<CUfunction>(function);
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  SIM_ENTER(cuModuleGetGlobal_v2, kContext);
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Module* module = find_module(call, handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto at = module->globals.find(name);
  if (at == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = at->second.address;
  if (bytes != nullptr) *bytes = at->second.bytes;
  return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  SIM_ENTER(cuModuleGetLoadingMode, kDriver);
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode =
      call.process.device(0)->card->knob(Knob::lazy_loading) != 0 ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  SIM_ENTER(cuFuncGetAttribute, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (value == nullptr || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute_of(*function, attribute, call.card().profile());
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  SIM_ENTER(cuFuncSetAttribute, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    const auto most =
        static_cast<int>(call.card().profile().shared_optin_bytes -
                         std::min(call.card().profile().shared_optin_bytes, function->kernel.shared_bytes));
    if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
    function->dynamic_shared_bytes = value;
  } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
    function->carveout = value;
  } else if (attribute < CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  SIM_ENTER(cuFuncSetCacheConfig, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  function->cache_config = config;
  return CUDA_SUCCESS;
}
CUresult sim_cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  SIM_ENTER(cuFuncSetSharedMemConfig, kContext);
  return find_function(call.process, handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult sim_cuFuncGetModule(CUmodule* out, CUfunction handle) {
  SIM_ENTER(cuFuncGetModule, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetName(const char** name, CUfunction handle) {
  SIM_ENTER(cuFuncGetName, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->kernel.name.c_str();
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  SIM_ENTER(cuFuncGetParamInfo, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || index >= function->kernel.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel.parameters[index].offset;
  if (bytes != nullptr) *bytes = function->kernel.parameters[index].bytes;
  return CUDA_SUCCESS;
}
CUresult sim_cuFuncGetParamCount(CUfunction handle, size_t* count) {
  SIM_ENTER(cuFuncGetParamCount, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = function->kernel.parameters.size();
  return CUDA_SUCCESS;
}

CUresult sim_cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  SIM_ENTER(cuFuncIsLoaded, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = function->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}
CUresult sim_cuFuncLoad(CUfunction handle) {
  SIM_ENTER(cuFuncLoad, kContext | kNoCapture);
  Function* function = find_function(call.process, handle);
  return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : ensure_loaded(*function);
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int threads, size_t shared) {
  return occupancy(blocks, f, threads, shared, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
}
CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction f, int threads, size_t shared,
                                                                  unsigned) {
  return occupancy(blocks, f, threads, shared, "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
}

CUresult sim_cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                       CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                       unsigned) {
  SIM_ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (grid == nullptr || block == nullptr || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  const ProfileData& p = call.card().profile();
  unsigned best = 0, best_threads = 0;
  const unsigned most = std::min(function->kernel.max_threads, limit > 0 ? static_cast<unsigned>(limit) : 1024u);
  for (unsigned threads = std::max(32u, most / 32 * 32); threads >= 32; threads -= 32) {
    const size_t dynamic = shared_of != nullptr ? shared_of(static_cast<int>(threads)) : shared;
    const unsigned blocks = blocks_per_sm(p, *function, std::min(threads, most), dynamic);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    best_threads = std::min(threads, most);
    *grid = static_cast<int>(blocks * p.sms);
  }
  if (best == 0) return CUDA_ERROR_INVALID_VALUE;
  *block = static_cast<int>(best_threads);
  return CUDA_SUCCESS;
}
CUresult sim_cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction f, CUoccupancyB2DSize shared_of,
                                              size_t shared, int limit) {
  return sim_cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, shared_of, shared, limit, 0);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int threads) {
  SIM_ENTER(cuOccupancyAvailableDynamicSMemPerBlock, kContext);
  Function* function = find_function(call.process, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t each = call.card().profile().shared_per_sm_bytes / static_cast<size_t>(blocks);
  *bytes = each - std::min<size_t>(each, function->kernel.shared_bytes);
  return CUDA_SUCCESS;
}
}
