#include "runtime/driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace workloads {
namespace {

using GetProcAddress = decltype(&::cuGetProcAddress_v2);

constexpr unsigned long long kLegacyStream = 0;  // CU_GET_PROC_ADDRESS_DEFAULT
constexpr unsigned long long kPerThread = 2;     // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

[[noreturn]] void no_driver(const char* what, const char* reason) {
  std::fprintf(stderr, "%s: %s; a driver of CUDA 12.0 or newer (or sluice-sim's) must be on the library path\n", what,
               reason != nullptr ? reason : "no reason given");
  std::exit(kExitNoDriver);
}

struct Library {
  void* handle = nullptr;
  GetProcAddress get_proc_address = nullptr;

  Library() {
    handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (handle == nullptr) no_driver("libcuda.so.1", dlerror());
    get_proc_address = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
    if (get_proc_address == nullptr) no_driver("libcuda.so.1: cuGetProcAddress_v2", dlerror());
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

void* find(const char* name, int version, unsigned long long flags, bool needed) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  const CUresult result = library().get_proc_address(name, &address, version, flags, &status);
  if (result == CUDA_SUCCESS && address != nullptr) return address;
  if (needed) no_driver(name, "the driver has no such call at the version that the workloads need");
  return nullptr;
}

Driver bind(unsigned long long flags) {
  Driver calls;
#define WORKLOAD_CALL(name, prototype, version) \
  calls.name = reinterpret_cast<decltype(calls.name)>(find(#name, version, flags, false));
#define WORKLOAD_NEEDED(name, prototype, version) \
  calls.name = reinterpret_cast<decltype(calls.name)>(find(#name, version, flags, true));
#include "runtime/driver_calls.inc"
#undef WORKLOAD_NEEDED
#undef WORKLOAD_CALL
  return calls;
}

}  // namespace

const Driver& driver() {
  static const Driver calls = bind(kLegacyStream);
  return calls;
}

const Driver& driver_per_thread() {
  static const Driver calls = bind(kPerThread);
  return calls;
}

void* look_up(const char* name, int version, unsigned long long flags) {
  return find(name, version, flags, false);
}

void* exported(const char* symbol) {
  return dlsym(library().handle, symbol);
}

}  // namespace workloads
