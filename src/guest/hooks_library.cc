// Libraries: code of no context, put on a card when one of its kernels or variables is first used in a context. That
// may be a launch, where nothing can be refused in time; so a kernel that the program asks for is looked up in the
// current context at once, and its cost is seen there.
//
// A library that took the container over its limit is refused. A small excess stays charged; a large one (a variable of
// gigabytes) is taken off the card: the library is unloaded, and the program's own unloading of it answers success.
#include "guest/code.h"
#include "guest/compute_internal.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kLargeBytes = 64ull << 20;

uint64_t library_key(CUlibrary library) {
  return reinterpret_cast<uint64_t>(library);
}

template <typename Call>
CUresult load_library(Guest* guest, CUlibrary* library, Call&& call) {
  CodeLoad load(guest);
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    guest->memory.unloaded_libraries.erase(library_key(*library));  // the handle is used again
  }
  if (!load.went_over_lazily()) return result;
  guest->cuda.cuLibraryUnload(*library);
  *library = nullptr;
  code_unloaded(guest);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void take_off(Guest* guest, CUlibrary library) {
  if (library == nullptr) return;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (guest->memory.unloaded_libraries.insert(library_key(library), 1) == nullptr) return;
  }
  guest->cuda.cuLibraryUnload(library);
  code_unloaded(guest);
}

// `library()` finds the library when it has to go.
template <typename Call, typename Library>
CUresult use_library(Guest* guest, Call&& call, Library&& library) {
  CodeLoad load(guest);
  const CUresult result = call(load);
  if (result != CUDA_SUCCESS || !load.went_over_lazily()) return result;
  if (load.grown_bytes() >= kLargeBytes) take_off(guest, library());
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Puts the kernel's library on the card of the current context. Not while something is captured: that would wait.
void touch(Guest* guest, const CodeLoad& load, CUkernel kernel) {
  if (!load.checks() || guest->compute.captures.load(std::memory_order_relaxed) != 0) return;
  CUfunction function = nullptr;
  guest->cuda.cuKernelGetFunction(&function, kernel);
}

}  // namespace

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_options, void** jit_values,
                                unsigned int jit_count, CUlibraryOption* options, void** values, unsigned int count) {
  Guest* guest = enter();
  return load_library(guest, library, [&] {
    return guest->cuda.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options, values, count);
  });
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit_options, void** jit_values,
                                    unsigned int jit_count, CUlibraryOption* options, void** values,
                                    unsigned int count) {
  Guest* guest = enter();
  return load_library(guest, library, [&] {
    return guest->cuda.cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count, options, values, count);
  });
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
  Guest* guest = enter();
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (guest->memory.unloaded_libraries.erase(library_key(library))) return CUDA_SUCCESS;
  }
  const CUresult result = guest->cuda.cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) code_unloaded(guest);
  return result;
}

CUresult hook_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  Guest* guest = enter();
  return use_library(
      guest, [&](const CodeLoad&) { return guest->cuda.cuLibraryGetModule(module, library); }, [&] { return library; });
}

CUresult hook_cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  Guest* guest = enter();
  return use_library(
      guest, [&](const CodeLoad&) { return guest->cuda.cuLibraryGetGlobal(address, bytes, library, name); },
      [&] { return library; });
}

CUresult hook_cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  Guest* guest = enter();
  return use_library(
      guest, [&](const CodeLoad&) { return guest->cuda.cuLibraryGetManaged(address, bytes, library, name); },
      [&] { return library; });
}

CUresult hook_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  Guest* guest = enter();
  return use_library(
      guest,
      [&](const CodeLoad& load) {
        const CUresult result = guest->cuda.cuLibraryGetKernel(kernel, library, name);
        if (result == CUDA_SUCCESS) touch(guest, load, *kernel);
        return result;
      },
      [&] { return library; });
}

CUresult hook_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
  Guest* guest = enter();
  return use_library(
      guest,
      [&](const CodeLoad& load) {
        if (kernels != nullptr && count != 0) kernels[0] = nullptr;
        const CUresult result = guest->cuda.cuLibraryEnumerateKernels(kernels, count, library);
        if (result == CUDA_SUCCESS && kernels != nullptr && count != 0 && kernels[0] != nullptr) {
          touch(guest, load, kernels[0]);
        }
        return result;
      },
      [&] { return library; });
}

CUresult hook_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  Guest* guest = enter();
  return use_library(
      guest, [&](const CodeLoad&) { return guest->cuda.cuKernelGetFunction(function, kernel); },
      [&] {
        CUlibrary library = nullptr;
        return guest->cuda.cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS ? library : nullptr;
      });
}

}  // extern "C"
