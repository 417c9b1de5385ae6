// The real driver, opened by absolute path out of every search path. The path is fixed: nothing a program can set moves
// it.
#pragma once

#include <atomic>

#include "guest/seams.h"

namespace sluice::guest {

class DlDriver final : public Driver {
 public:
  // cuda_path: libcuda.so.1, nullptr where cu* names are not wanted; nvml_path: libnvidia-ml.so.1, opened at first use.
  constexpr DlDriver(const char* cuda_path, const char* nvml_path) : cuda_path_(cuda_path), nvml_path_(nvml_path) {}
  // True when the library behind "cu..." or "nvml..." names can be loaded.
  bool available(const char* name);
  void* symbol(const char* name) override;

 private:
  void* library(const char* name);
  const char* cuda_path_;
  const char* nvml_path_;
  std::atomic<void*> cuda_{nullptr};
  std::atomic<void*> nvml_{nullptr};
};

}  // namespace sluice::guest
