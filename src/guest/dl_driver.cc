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
