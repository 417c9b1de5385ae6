// The far end of the generated exports: binds a name that is not hooked at its first use. Compiled into each library
// with its own answers for "no driver" and "no such function".
#include "guest/guest.h"

#ifdef SLUICE_LIBRARY_NVML
#include "abi/nvml.h"
#define SLUICE_NO_DRIVER NVML_ERROR_UNINITIALIZED
#define SLUICE_NO_FUNCTION NVML_ERROR_FUNCTION_NOT_FOUND
using Answer = nvmlReturn_t;
#else
#define SLUICE_NO_DRIVER CUDA_ERROR_NOT_INITIALIZED
#define SLUICE_NO_FUNCTION CUDA_ERROR_NOT_SUPPORTED
using Answer = CUresult;
#endif

namespace {

// Called with any arguments: the caller cleans the stack.
Answer answer_no_driver() {
  return SLUICE_NO_DRIVER;
}
Answer answer_no_function() {
  return SLUICE_NO_FUNCTION;
}

}  // namespace

extern "C" {

extern const char* const sluice_export_names[];
extern void* sluice_export_slots[];

// Returns the address to jump to, and keeps it in the name's slot unless there is no driver, which may come.
void* sluice_bind_export(uint64_t index) {
  using namespace sluice::guest;
  Guest* guest = enter();
  Driver* driver = guest->seams.driver;
  if (driver == nullptr) return reinterpret_cast<void*>(&answer_no_driver);
  void* real = driver->symbol(sluice_export_names[index]);
  if (real == nullptr) real = reinterpret_cast<void*>(&answer_no_function);
  __atomic_store_n(&sluice_export_slots[index], real, __ATOMIC_RELEASE);
  return real;
}

// Named by the tables of the seams' interfaces, never called.
void __cxa_pure_virtual() {
  __builtin_trap();
}

}  // extern "C"
