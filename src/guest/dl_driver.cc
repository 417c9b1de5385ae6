#include "guest/dl_driver.h"

#include <dlfcn.h>

#include "guest/text.h"

namespace sluice::guest {

void* DlDriver::library(const char* name) {
  const bool nvml = starts_with(name, "nvml");
  const char* path = nvml ? nvml_path_ : cuda_path_;
  std::atomic<void*>& handle = nvml ? nvml_ : cuda_;
  void* known = handle.load(std::memory_order_acquire);
  if (known != nullptr || path == nullptr) return known;
  // The real file carries the name that programs ask for, and the loader answers a name with whatever came first under
  // it. So ours goes first: else a program that asks for NVML after its first context would get the whole card's view.
  if (nvml) dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  // Twice by two threads gives the same handle; references are never given back.
  void* opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opened != nullptr) handle.store(opened, std::memory_order_release);
  return opened;
}

bool DlDriver::available(const char* name) {
  return library(name) != nullptr;
}

void* DlDriver::symbol(const char* name) {
  void* handle = library(name);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

}  // namespace sluice::guest
