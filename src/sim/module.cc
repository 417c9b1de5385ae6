#include "sim/module.h"

#include <algorithm>

#include "sim/api.h"

namespace sluice::sim {

namespace {

// Code takes memory once; what a context already holds covers a first small part of it.
uint64_t code_bytes(const ImageInfo& image) {
  return std::max<uint64_t>(image.bytes, 64 << 10);
}

CUresult synchronise_for_load(Context& context) {
  Card& card = *context.process->device(context.card)->card;
  if (card.knob(Knob::load_synchronises) != 0) {
    if (const CUresult result = wait_context(context); result != CUDA_SUCCESS) return result;
  }
  context.process->host().charge(Charge::kLoad, card.knob_ns(Knob::load_ns));
  return CUDA_SUCCESS;
}

CUresult place_code(Module& module) {
  if (module.code_block != kNone) return CUDA_SUCCESS;
  Device& device = *module.context->process->device(module.context->card);
  Card& card = *device.card;
  Card::Guard guard(card);
  advance(card, card.card_time(module.context->process->host().now_ns()));
  module.code_block =
      card.allocate_block(device.record, module.context->record, code_bytes(*module.image), BlockKind::kCode);
  return module.code_block == kNone ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

}  // namespace

ModuleState& module_state(Process& process) {
  if (process.modules_state == nullptr) process.modules_state = std::make_shared<ModuleState>();
  return *static_cast<ModuleState*>(process.modules_state.get());
}

__attribute__((weak)) Function* function_of_kernel(Process&, CUkernel) {
  return nullptr;
}

Function* find_function(Process& process, CUfunction handle) {
  if (Function* function = module_state(process).functions.find(handle)) return function;
  return handle != nullptr ? function_of_kernel(process, reinterpret_cast<CUkernel>(handle)) : nullptr;
}

CUresult load_module(Context& context, std::string_view bytes, Module** made) {
  if (bytes.empty()) return CUDA_ERROR_INVALID_IMAGE;
  Process& process = *context.process;
  auto image = std::make_shared<const ImageInfo>(read_image(bytes));
  if (const CUresult result = synchronise_for_load(context); result != CUDA_SUCCESS) return result;
  Module* module = nullptr;
  {
    ObjectsLock objects(process);
    module = module_state(process).modules.make();
  }
  if (module == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  module->context = &context;
  module->image = std::move(image);
  Device& device = *process.device(context.card);
  for (const GlobalInfo& global : module->image->globals) {
    CUdeviceptr address = 0;
    const CUresult result = device.memory->allocate(reinterpret_cast<CUcontext>(&context), context.record, global.bytes,
                                                    BlockKind::kCode, &address);
    if (result != CUDA_SUCCESS) {
      unload_module(*module);
      return result;
    }
    module->globals[global.name] = {address, global.bytes};
  }
  if (device.card->knob(Knob::lazy_loading) == 0) {
    if (const CUresult result = place_code(*module); result != CUDA_SUCCESS) {
      unload_module(*module);
      return result;
    }
  }
  *made = module;
  return CUDA_SUCCESS;
}

CUresult unload_module(Module& module) {
  Process& process = *module.context->process;
  Device& device = *process.device(module.context->card);
  for (const auto& [name, global] : module.globals) device.memory->free(global.address);
  {
    Card::Guard guard(*device.card);
    advance(*device.card, device.card->card_time(process.host().now_ns()));
    if (module.code_block != kNone && device.card->context(module.context->record).serial == module.context->serial) {
      device.card->release_block(module.code_block);
    }
  }
  ObjectsLock objects(process);
  for (const auto& [name, function] : module.functions) module_state(process).functions.free(function);
  module_state(process).modules.free(&module);
  return CUDA_SUCCESS;
}

CUresult get_function(Module& module, const std::string& name, Function** made) {
  Process& process = *module.context->process;
  ObjectsLock objects(process);
  if (const auto at = module.functions.find(name); at != module.functions.end()) {
    *made = at->second;
    return CUDA_SUCCESS;
  }
  const auto& kernels = module.image->kernels;
  const auto kernel = std::find_if(kernels.begin(), kernels.end(), [&](const KernelInfo& k) { return k.name == name; });
  if (kernel == kernels.end() && !module.image->any_name) return CUDA_ERROR_NOT_FOUND;
  Function* function = module_state(process).functions.make();
  if (function == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  function->module = &module;
  if (kernel != kernels.end()) {
    function->kernel = *kernel;
  } else {
    function->kernel.name = name;
    apply_name(function->kernel);
  }
  module.functions[name] = function;
  *made = function;
  return CUDA_SUCCESS;
}

CUresult ensure_loaded(Function& function) {
  if (function.loaded) return CUDA_SUCCESS;
  Context& context = *function.module->context;
  Card& card = *context.process->device(context.card)->card;
  if (card.knob(Knob::lazy_loading) != 0) {
    if (const CUresult result = synchronise_for_load(context); result != CUDA_SUCCESS) return result;
  }
  const CUresult result = place_code(*function.module);
  function.loaded = result == CUDA_SUCCESS;
  return result;
}

unsigned blocks_per_sm(const ProfileData& p, const Function& function, unsigned threads, size_t dynamic_shared) {
  if (threads == 0) return 0;
  const KernelInfo& k = function.kernel;
  const unsigned warps = (threads + 31) / 32;
  unsigned limit = std::min(p.blocks_per_sm, p.threads_per_sm / (warps * 32));
  // Registers are given to warps in units of 256.
  const unsigned per_warp = (k.registers * 32 + 255) / 256 * 256;
  limit = std::min(limit, p.registers_per_sm / std::max(1u, per_warp * warps));
  const size_t shared = k.shared_bytes + dynamic_shared;
  if (shared > p.shared_optin_bytes) return 0;
  if (shared > 0)
    limit =
        std::min(limit, static_cast<unsigned>(p.shared_per_sm_bytes / (shared + (p.compute_major >= 8 ? 1024 : 0))));
  if (k.cost.blocks_per_sm != 0) limit = std::min(limit, k.cost.blocks_per_sm);
  return limit;
}

}  // namespace sluice::sim
