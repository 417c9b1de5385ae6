// One way of getting at the driver, and what it says: routes ROUTE DRIVER_DIRECTORY prints "ROUTE TOTAL_MIB RESULT"
// where TOTAL is cuDeviceTotalMem and RESULT that of an allocation of 11 GiB, which the grant of the test forbids. It
// takes all memory it can get before it ends.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"
#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"

extern char** environ;

namespace {

void* must(void* pointer, const char* what) {
  if (pointer == nullptr) {
    std::printf("no %s: %s\n", what, dlerror());
    std::exit(2);
  }
  return pointer;
}

using Find = void* (*)(void* library, const char* name);

void* by_dlsym(void* library, const char* name) {
  return must(dlsym(library, name), name);
}

// As the CUDA runtime does: everything through cuGetProcAddress_v2, per-thread form with `flags` 2.
template <cuuint64_t flags>
void* by_proc_address(void* library, const char* name) {
  auto get = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(by_dlsym(library, "cuGetProcAddress_v2"));
  std::string base = name;
  if (base.size() > 3 && base.compare(base.size() - 3, 3, "_v2") == 0) base.resize(base.size() - 3);
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  // 11.3: the version whose forms are the _v2 of the prototypes used here.
  if (get(base.c_str(), &function, 11030, flags, &status) != CUDA_SUCCESS) function = nullptr;
  return must(function, name);
}

int use(const char* route, void* library, Find find, int most = 64) {
#define FIND(name) (reinterpret_cast<decltype(&::name)>(find(library, #name)))
  CUcontext context = nullptr;
  size_t total = 0;
  CUdevice device = -1;
  CUdeviceptr address = 0;
  CUresult result = FIND(cuInit)(0);
  if (result == CUDA_SUCCESS) result = FIND(cuDeviceGet)(&device, 0);
  if (result == CUDA_SUCCESS) result = FIND(cuDeviceTotalMem_v2)(&total, device);
  if (result == CUDA_SUCCESS) result = FIND(cuCtxCreate_v2)(&context, 0, device);
  if (result != CUDA_SUCCESS) {
    std::printf("%s start %d\n", route, result);
    return 1;
  }
  const CUresult taken = FIND(cuMemAlloc_v2)(&address, 11ull << 30);
  // Then all there is, so that the card's log shows the limit.
  for (int i = 0; i < most && FIND(cuMemAlloc_v2)(&address, 512ull << 20) == CUDA_SUCCESS; ++i) {
  }
  std::printf("%s %zu %d\n", route, total >> 20, taken);
  return 0;
}

int use_nvml(const char* route, const std::string& file) {
  void* library = must(dlopen(file.c_str(), RTLD_NOW), file.c_str());
  Find find = by_dlsym;
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory = {};
  if (FIND(nvmlInit_v2)() != NVML_SUCCESS || FIND(nvmlDeviceGetHandleByIndex_v2)(0, &device) != NVML_SUCCESS ||
      FIND(nvmlDeviceGetMemoryInfo)(device, &memory) != NVML_SUCCESS) {
    std::printf("%s start\n", route);
    return 1;
  }
  std::printf("%s %llu 2\n", route, memory.total >> 20);
  return 0;
}

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}

// As a server starts itself: two forks, a session of its own, no descriptors but the standard ones.
int daemon(const char* route) {
  const pid_t first = ::fork();
  if (first != 0) return status_of(first);
  ::setsid();
  const pid_t second = ::fork();
  if (second != 0) ::_exit(0);
  if (::chdir("/") != 0) ::_exit(3);
  for (int descriptor = 3; descriptor < 256; ++descriptor) ::close(descriptor);
  use(route, must(dlopen("libcuda.so.1", RTLD_NOW), "library"), by_dlsym);
  std::fflush(stdout);
  ::_exit(0);
}

// Closes every descriptor with a context and memory at hand, and goes on.
int close_all(const char* route, void* library) {
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  Find find = by_dlsym;
  if (FIND(cuInit)(0) != CUDA_SUCCESS || FIND(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS ||
      FIND(cuMemAlloc_v2)(&address, 1ull << 30) != CUDA_SUCCESS) {
    return 5;
  }
  for (int descriptor = 3; descriptor < 256; ++descriptor) ::close(descriptor);
  size_t total = 0;
  CUdevice device = 0;
  FIND(cuDeviceTotalMem_v2)(&total, device);
  const CUresult taken = FIND(cuMemAlloc_v2)(&address, 11ull << 30);
  while (FIND(cuMemAlloc_v2)(&address, 512ull << 20) == CUDA_SUCCESS) {
  }
  std::printf("%s %zu %d\n", route, total >> 20, taken);
  return 0;
}

// A child of a process that uses the card: the driver does not work in it, and what it becomes by exec starts anew
// beside its parent, which holds 8 GiB.
int fork_in_use(const char* self, const char* directory, void* library) {
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  Find find = by_dlsym;
  if (FIND(cuInit)(0) != CUDA_SUCCESS || FIND(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS ||
      FIND(cuMemAlloc_v2)(&address, 8ull << 30) != CUDA_SUCCESS) {
    return 5;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    if (FIND(cuMemAlloc_v2)(&address, 1 << 20) != CUDA_ERROR_NOT_INITIALIZED) ::_exit(6);
    ::execl(self, self, "soname", directory, static_cast<char*>(nullptr));
    ::_exit(7);
  }
  const int status = status_of(child);
  return status != 0 ? status : FIND(cuMemFree_v2)(address);
}

int run_child(const char* self, const char* route, const char* directory) {
  const char* arguments[] = {self, route, directory, nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, self, nullptr, nullptr, const_cast<char**>(arguments), environ) != 0) return 3;
  return status_of(child);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 9;
  const std::string route = argv[1];
  const std::string directory = argv[2];
  const std::string real = directory + "/libcuda.so.1";
  const char* name = argv[1];
  if (route == "soname") return use(name, must(dlopen("libcuda.so.1", RTLD_NOW), "library"), by_dlsym);
  if (route == "lazy-global")
    return use(name, must(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL), "library"), by_dlsym);
  if (route == "unversioned") return use(name, must(dlopen("libcuda.so", RTLD_NOW), "library"), by_dlsym);
  if (route == "absolute") return use(name, must(dlopen(real.c_str(), RTLD_NOW), "library"), by_dlsym);
  if (route == "deepbind") return use(name, must(dlopen(real.c_str(), RTLD_NOW | RTLD_DEEPBIND), "library"), by_dlsym);
  if (route == "dlmopen") return use(name, must(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW), "library"), by_dlsym);
  if (route == "dlmopen-absolute") {
    return use(name, must(dlmopen(LM_ID_NEWLM, real.c_str(), RTLD_NOW), "library"), by_dlsym);
  }
  if (route == "proc-address") return use(name, must(dlopen("libcuda.so.1", RTLD_NOW), "library"), by_proc_address<0>);
  if (route == "proc-address-2")
    return use(name, must(dlopen("libcuda.so.1", RTLD_NOW), "library"), by_proc_address<2>);
  if (route == "nvml") return use_nvml(name, "libnvidia-ml.so.1");
  if (route == "nvml-unversioned") return use_nvml(name, "libnvidia-ml.so");
  if (route == "nvml-absolute") return use_nvml(name, directory + "/libnvidia-ml.so.1");
  if (route == "fork") {
    void* library = must(dlopen("libcuda.so.1", RTLD_NOW), "library");
    int version = 0;
    reinterpret_cast<decltype(&cuDriverGetVersion)>(by_dlsym(library, "cuDriverGetVersion"))(&version);
    const pid_t child = ::fork();
    if (child == 0) {
      const int status = use(name, library, by_dlsym);
      std::fflush(stdout);
      ::_exit(status);
    }
    return status_of(child);
  }
  if (route == "vfork") {
    const pid_t child = ::vfork();
    if (child == 0) {
      ::execl(argv[0], argv[0], "soname", argv[2], static_cast<char*>(nullptr));
      ::_exit(7);
    }
    return status_of(child);
  }
  if (route == "daemon") return daemon(name);
  if (route == "close-all") return close_all(name, must(dlopen("libcuda.so.1", RTLD_NOW), "library"));
  if (route == "fork-in-use") {
    return fork_in_use(argv[0], argv[2], must(dlopen("libcuda.so.1", RTLD_NOW), "library"));
  }
  if (route == "exec") return run_child(argv[0], "soname", argv[2]);
  if (route == "hold") {
    // A neighbour: holds 8 GiB until it is killed.
    void* library = must(dlopen("libcuda.so.1", RTLD_NOW), "library");
    Find find = by_dlsym;
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    if (FIND(cuInit)(0) != CUDA_SUCCESS || FIND(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS ||
        FIND(cuMemAlloc_v2)(&address, 8ull << 30) != CUDA_SUCCESS) {
      return 5;
    }
    std::puts("holding");
    std::fflush(stdout);
    ::pause();
  }
  if (route == "two-copies") {
    // A second copy of the library in the process: both count against the one limit.
    void* first = must(dlopen("libcuda.so.1", RTLD_NOW), "library");
    void* second = must(dlmopen(LM_ID_NEWLM, real.c_str(), RTLD_NOW), "library");
    return use(name, first, by_dlsym, 4) + use(name, second, by_dlsym);
  }
  return 9;
}
