// Modules and functions of a process.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/image.h"
#include "sim/process.h"

namespace sluice::sim {

struct Function {
  Module* module = nullptr;
  KernelInfo kernel;
  bool loaded = false;               // its code is on the card (lazy loading)
  int dynamic_shared_bytes = 49152;  // largest that a launch may ask for
  int carveout = -1;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUkernel library_kernel = nullptr;
  // First-generation launches: cuFuncSetBlockShape, cuParamSetv, cuLaunchGrid.
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<unsigned char> parameters;
};

struct Module {
  Context* context = nullptr;
  std::shared_ptr<const ImageInfo> image;
  std::unordered_map<std::string, Function*> functions;
  struct Global {
    CUdeviceptr address;
    size_t bytes;
  };
  std::unordered_map<std::string, Global> globals;
  Index code_block = kNone;
};

struct ModuleState {
  HandlePool<Module> modules;
  HandlePool<Function> functions;
};
ModuleState& module_state(Process& process);

// Loads an image into a context: synchronises it (knob), takes host time, allocates its global variables.
CUresult load_module(Context& context, std::string_view image, Module** made);
CUresult unload_module(Module& module);
// CUDA_ERROR_NOT_FOUND unless the image has it.
CUresult get_function(Module& module, const std::string& name, Function** made);
// Puts a function's code on the card, if it is not there: synchronises, takes memory.
CUresult ensure_loaded(Function& function);

// A function by handle; library kernels (CUkernel) may stand for functions too. nullptr: no such handle.
Function* find_function(Process& process, CUfunction handle);
// What a library kernel is in the calling thread's context; defined where libraries are. Weak: none.
Function* function_of_kernel(Process& process, CUkernel kernel);

// Blocks of a kernel that fit on one multiprocessor at once.
unsigned blocks_per_sm(const ProfileData& profile, const Function& function, unsigned threads, size_t dynamic_shared);

}  // namespace sluice::sim
