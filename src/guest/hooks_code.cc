// Modules and functions of a context. A load that goes over the limit is undone. What is loaded lazily later on cannot
// be taken from under a module that the program has: such a call is refused, and what it cost stays charged until the
// program unloads the module.
#include "guest/code.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

template <typename Call>
CUresult load_module(Guest* guest, CUmodule* module, Call&& call) {
  CodeLoad load(guest);
  const CUresult result = call();
  if (result != CUDA_SUCCESS || !load.went_over()) return result;
  guest->cuda.cuModuleUnload(*module);
  *module = nullptr;
  code_unloaded(guest);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Call>
CUresult use_lazily(Guest* guest, Call&& call) {
  CodeLoad load(guest);
  const CUresult result = call();
  if (result != CUDA_SUCCESS || !load.went_over_lazily()) return result;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuModuleLoad(CUmodule* module, const char* path) {
  Guest* guest = enter();
  return load_module(guest, module, [&] { return guest->cuda.cuModuleLoad(module, path); });
}

CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) {
  Guest* guest = enter();
  return load_module(guest, module, [&] { return guest->cuda.cuModuleLoadData(module, image); });
}

CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                                 void** values) {
  Guest* guest = enter();
  return load_module(guest, module,
                     [&] { return guest->cuda.cuModuleLoadDataEx(module, image, count, options, values); });
}

CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  Guest* guest = enter();
  return load_module(guest, module, [&] { return guest->cuda.cuModuleLoadFatBinary(module, image); });
}

CUresult hook_cuModuleUnload(CUmodule module) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuModuleUnload(module);
  if (result == CUDA_SUCCESS) code_unloaded(guest);
  return result;
}

CUresult hook_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Guest* guest = enter();
  return use_lazily(guest, [&] { return guest->cuda.cuModuleGetFunction(function, module, name); });
}

CUresult hook_cuModuleGetGlobal(CUdeviceptr_v1* address, unsigned int* bytes, CUmodule module, const char* name) {
  Guest* guest = enter();
  return use_lazily(guest, [&] { return guest->cuda.cuModuleGetGlobal(address, bytes, module, name); });
}

CUresult hook_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  Guest* guest = enter();
  return use_lazily(guest, [&] { return guest->cuda.cuModuleGetGlobal_v2(address, bytes, module, name); });
}

CUresult hook_cuFuncLoad(CUfunction function) {
  Guest* guest = enter();
  return use_lazily(guest, [&] { return guest->cuda.cuFuncLoad(function); });
}

}  // extern "C"
