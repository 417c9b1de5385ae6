// A statically linked program that opens the driver by dlopen. No preload list reaches it; a driver file that was
// replaced does.
#include "binders/probe.h"

int main(int argc, char** argv) {
  ProbeOutcome outcome = {"dlopen", static_cast<int>(CUDA_ERROR_NOT_FOUND), 0, 0, -1, ""};
  void* const handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (handle != nullptr) {
    const ProbeCalls calls = {
        reinterpret_cast<decltype(&cuInit)>(dlsym(handle, "cuInit")),
        reinterpret_cast<decltype(&cuDeviceGet)>(dlsym(handle, "cuDeviceGet")),
        reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(dlsym(handle, "cuDevicePrimaryCtxRetain")),
        reinterpret_cast<decltype(&cuCtxSetCurrent)>(dlsym(handle, "cuCtxSetCurrent")),
        reinterpret_cast<decltype(&cuMemGetInfo_v2)>(dlsym(handle, "cuMemGetInfo_v2")),
        reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(handle, "cuMemAlloc_v2")),
        reinterpret_cast<decltype(&cuMemFree_v2)>(dlsym(handle, "cuMemFree_v2"))};
    outcome = probe(&calls, argc > 2 ? strtoull(argv[2], nullptr, 10) : 0);
  }
  probe_print(argc > 1 ? argv[1] : "static", &outcome);
  return 0;
}
