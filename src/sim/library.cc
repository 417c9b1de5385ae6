// Libraries: code that is loaded once and belongs to no context. A kernel of a library becomes a function of a context
// at its first use there; until then nothing of it is on that context's card (the "overhead" of lazy loading).

#include <fstream>
#include <map>
#include <sstream>

#include "sim/api.h"
#include "sim/library.h"
#include "sim/module.h"

namespace sluice::sim {
namespace {

struct Library;

struct Kernel {
  Library* library = nullptr;
  std::string name;
};

struct Library {
  std::string image;
  std::shared_ptr<const ImageInfo> info;
  std::map<uint64_t, Module*> modules;  // by context id
  std::map<std::string, Kernel*> kernels;
  std::map<std::string, CUdeviceptr> managed;
};

struct LibraryState {
  HandlePool<Library> libraries;
  HandlePool<Kernel> kernels;
};

LibraryState& library_state(Process& process) {
  if (process.library_state == nullptr) process.library_state = std::make_shared<LibraryState>();
  return *static_cast<LibraryState*>(process.library_state.get());
}

Library* find_library(Call& call, CUlibrary handle) {
  ObjectsLock lock(call.process);
  return library_state(call.process).libraries.find(reinterpret_cast<void*>(handle));
}

Kernel* find_kernel(Process& process, const void* handle) {
  ObjectsLock lock(process);
  return library_state(process).kernels.find(handle);
}

bool has_kernel(const Library& library, const std::string& name) {
  if (library.info->any_name) return true;
  for (const KernelInfo& kernel : library.info->kernels) {
    if (kernel.name == name) return true;
  }
  return false;
}

Kernel* kernel_of(Process& process, Library& library, const std::string& name) {
  ObjectsLock lock(process);
  Kernel*& kernel = library.kernels[name];
  if (kernel == nullptr) {
    kernel = library_state(process).kernels.make();
    if (kernel == nullptr) return nullptr;
    kernel->library = &library;
    kernel->name = name;
  }
  return kernel;
}

// The library's module in a context, loaded when it is not there.
CUresult module_in(Context& context, Library& library, Module** out) {
  const auto at = library.modules.find(context.id);
  if (at != library.modules.end()) return *out = at->second, CUDA_SUCCESS;
  const CUresult result = load_module(context, library.image, out);
  if (result == CUDA_SUCCESS) library.modules[context.id] = *out;
  return result;
}

CUresult function_in(Context& context, Kernel& kernel, Function** out) {
  Module* module = nullptr;
  if (const CUresult result = module_in(context, *kernel.library, &module); result != CUDA_SUCCESS) return result;
  const CUresult result = get_function(*module, kernel.name, out);
  if (result == CUDA_SUCCESS) (*out)->library_kernel = reinterpret_cast<CUkernel>(&kernel);
  return result;
}

CUresult load_library(Call& call, std::string_view image, CUlibrary* out) {
  auto info = std::make_shared<ImageInfo>(read_image(image));
  if (info->bytes == 0 && image.empty()) return CUDA_ERROR_INVALID_IMAGE;
  ObjectsLock lock(call.process);
  Library* library = library_state(call.process).libraries.make();
  if (library == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  library->image.assign(image);
  library->info = std::move(info);
  *out = reinterpret_cast<CUlibrary>(library);
  return CUDA_SUCCESS;
}

// The context in which calls about a kernel of a device act: the current one.
CUresult current_function(Call& call, CUkernel handle, Function** function) {
  Kernel* kernel = find_kernel(call.process, handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return function_in(*call.context, *kernel, function);
}

}  // namespace

Function* function_of_kernel(Process& process, CUkernel handle) {
  Kernel* kernel = find_kernel(process, handle);
  Thread& thread = current_thread();
  if (kernel == nullptr || thread.stack.empty()) return nullptr;
  Function* function = nullptr;
  return function_in(*thread.stack.back(), *kernel, &function) == CUDA_SUCCESS ? function : nullptr;
}

void forget_context_in_libraries(Process& process, const Context& context) {
  if (process.library_state == nullptr) return;
  ObjectsLock lock(process);
  library_state(process).libraries.each([&](Library& library) { library.modules.erase(context.id); });
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                               void**, unsigned) {
  SIM_ENTER(cuLibraryLoadData, kDriver, Charge::kLoad);
  if (out == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load_library(call, image_bytes(code), out);
}

CUresult sim_cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*,
                                   void**, unsigned) {
  SIM_ENTER(cuLibraryLoadFromFile, kDriver, Charge::kLoad);
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::ostringstream content;
  content << file.rdbuf();
  return load_library(call, content.str(), out);
}

CUresult sim_cuLibraryUnload(CUlibrary handle) {
  SIM_ENTER(cuLibraryUnload, kDriver);
  Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [id, module] : library->modules) unload_module(*module);
  ObjectsLock lock(call.process);
  for (const auto& [name, kernel] : library->kernels) library_state(call.process).kernels.free(kernel);
  library_state(call.process).libraries.free(library);
  return CUDA_SUCCESS;
}

CUresult sim_cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  SIM_ENTER(cuLibraryGetKernel, kDriver);
  Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_kernel(*library, name)) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUkernel>(kernel_of(call.process, *library, name));
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  SIM_ENTER(cuLibraryGetKernelCount, kDriver);
  const Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(library->info->kernels.size());
  return CUDA_SUCCESS;
}

CUresult sim_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned room, CUlibrary handle) {
  SIM_ENTER(cuLibraryEnumerateKernels, kDriver);
  Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (kernels == nullptr && room != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < room && i < library->info->kernels.size(); ++i) {
    kernels[i] = reinterpret_cast<CUkernel>(kernel_of(call.process, *library, library->info->kernels[i].name));
  }
  return CUDA_SUCCESS;
}

CUresult sim_cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  SIM_ENTER(cuLibraryGetModule, kContext, Charge::kLoad);
  Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* module = nullptr;
  const CUresult result = module_in(*call.context, *library, &module);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUmodule>(module);
  return result;
}

CUresult sim_cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  SIM_ENTER(cuLibraryGetGlobal, kContext);
  Library* library = find_library(call, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* module = nullptr;
  if (const CUresult result = module_in(*call.context, *library, &module); result != CUDA_SUCCESS) return result;
  const auto at = module->globals.find(name);
  if (at == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = at->second.address;
  if (bytes != nullptr) *bytes = at->second.bytes;
  return CUDA_SUCCESS;
}

CUresult sim_cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary handle, const char* name) {
  SIM_ENTER(cuLibraryGetManaged, kDriver);
  if (find_library(call, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;  // images of this card have none
}

CUresult sim_cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char* symbol) {
  SIM_ENTER(cuLibraryGetUnifiedFunction, kDriver);
  if (find_library(call, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return symbol == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  SIM_ENTER(cuKernelGetFunction, kContext);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Function* function = nullptr;
  const CUresult result = current_function(call, handle, &function);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUfunction>(function);
  return result;
}

CUresult sim_cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  SIM_ENTER(cuKernelGetLibrary, kDriver);
  const Kernel* kernel = find_kernel(call.process, handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUlibrary>(kernel->library);
  return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetName(const char** name, CUkernel handle) {
  SIM_ENTER(cuKernelGetName, kDriver);
  const Kernel* kernel = find_kernel(call.process, handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = kernel->name.c_str();
  return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle, CUdevice) {
  SIM_ENTER(cuKernelGetAttribute, kContext);
  Function* function = nullptr;
  const CUresult result = current_function(call, handle, &function);
  if (result != CUDA_SUCCESS) return result;
  return sim_cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(function));
}

CUresult sim_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice) {
  SIM_ENTER(cuKernelSetAttribute, kContext);
  Function* function = nullptr;
  const CUresult result = current_function(call, handle, &function);
  if (result != CUDA_SUCCESS) return result;
  return sim_cuFuncSetAttribute(reinterpret_cast<CUfunction>(function), attribute, value);
}

CUresult sim_cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice) {
  SIM_ENTER(cuKernelSetCacheConfig, kContext);
  Function* function = nullptr;
  const CUresult result = current_function(call, handle, &function);
  if (result == CUDA_SUCCESS) function->cache_config = config;
  return result;
}

CUresult sim_cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* bytes) {
  SIM_ENTER(cuKernelGetParamInfo, kDriver);
  const Kernel* kernel = find_kernel(call.process, handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const KernelInfo& info : kernel->library->info->kernels) {
    if (info.name != kernel->name || index >= info.parameters.size()) continue;
    if (offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *offset = info.parameters[index].offset;
    if (bytes != nullptr) *bytes = info.parameters[index].bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuKernelGetParamCount(CUkernel handle, size_t* count) {
  SIM_ENTER(cuKernelGetParamCount, kDriver);
  const Kernel* kernel = find_kernel(call.process, handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = 0;
  for (const KernelInfo& info : kernel->library->info->kernels) {
    if (info.name == kernel->name) *count = info.parameters.size();
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
