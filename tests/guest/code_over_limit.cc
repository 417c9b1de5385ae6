// Code whose global variables are larger than the container may have, through every call that loads some: each must be
// refused with CUDA_ERROR_OUT_OF_MEMORY, and the card (asked through COMMAND, which prints the bytes in use on it) must
// hold what it held before. Code that fits loads, and is counted. Exit status = number of calls that misbehaved.
//
//   code_over_limit LIMIT_MIB FOLDER COMMAND
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace {

void* library = nullptr;
std::string command;
int wrong = 0;

void* symbol(const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) std::exit(98);
  return found;
}
#define CALL(name) (reinterpret_cast<decltype(&::name)>(symbol(#name)))

constexpr uint64_t kMiB = 1ull << 20;

std::string image(uint64_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 big[" + std::to_string(bytes) +
         "];\n.visible .entry work()\n{\n ret;\n}\n";
}

uint64_t card_bytes() {
  FILE* answer = popen(command.c_str(), "r");
  unsigned long long bytes = 0;
  if (answer == nullptr || std::fscanf(answer, "%llu", &bytes) != 1) std::exit(97);
  pclose(answer);
  return bytes;
}

uint64_t free_bytes() {
  size_t now_free = 0, total = 0;
  CALL(cuMemGetInfo_v2)(&now_free, &total);
  return now_free;
}

void check(const char* what, CUresult got, CUresult wanted, uint64_t card_before) {
  const uint64_t card_now = card_bytes();
  const bool good = got == wanted && (wanted == CUDA_SUCCESS || card_now == card_before);
  if (!good) ++wrong;
  std::printf("%-34s %d, card %llu MiB -> %llu MiB %s\n", what, got,
              static_cast<unsigned long long>(card_before / kMiB), static_cast<unsigned long long>(card_now / kMiB),
              good ? "ok" : "WRONG");
}

struct Way {
  const char* name;
  std::function<CUresult(const std::string& text, const std::string& file, CUmodule* module)> load;
};

const std::vector<Way> kModules = {
    {"cuModuleLoad", [](const auto&, const auto& file, CUmodule* m) { return CALL(cuModuleLoad)(m, file.c_str()); }},
    {"cuModuleLoadData",
     [](const auto& text, const auto&, CUmodule* m) { return CALL(cuModuleLoadData)(m, text.c_str()); }},
    {"cuModuleLoadDataEx", [](const auto& text, const auto&,
                              CUmodule* m) { return CALL(cuModuleLoadDataEx)(m, text.c_str(), 0, nullptr, nullptr); }},
    {"cuModuleLoadFatBinary",
     [](const auto& text, const auto&, CUmodule* m) { return CALL(cuModuleLoadFatBinary)(m, text.c_str()); }},
};

struct Use {
  const char* name;
  std::function<CUresult(CUlibrary)> use;
};

const std::vector<Use> kLibraries = {
    {"cuLibraryGetModule",
     [](CUlibrary l) {
       CUmodule module = nullptr;
       return CALL(cuLibraryGetModule)(&module, l);
     }},
    {"cuLibraryGetGlobal",
     [](CUlibrary l) {
       CUdeviceptr address = 0;
       size_t bytes = 0;
       return CALL(cuLibraryGetGlobal)(&address, &bytes, l, "big");
     }},
    {"cuLibraryGetKernel",
     [](CUlibrary l) {
       CUkernel kernel = nullptr;
       return CALL(cuLibraryGetKernel)(&kernel, l, "work");
     }},
    {"cuLibraryEnumerateKernels",
     [](CUlibrary l) {
       CUkernel kernel = nullptr;
       return CALL(cuLibraryEnumerateKernels)(&kernel, 1, l);
     }},
};

void check_modules(const std::string& large, const std::string& small, const std::string& folder) {
  for (const Way& way : kModules) {
    const uint64_t before = card_bytes();
    CUmodule module = nullptr;
    check(way.name, way.load(large, folder + "/large.ptx", &module), CUDA_ERROR_OUT_OF_MEMORY, before);
    const uint64_t free_before = free_bytes();
    check(way.name, way.load(small, folder + "/small.ptx", &module), CUDA_SUCCESS, before);
    const uint64_t counted = free_before - free_bytes();
    if (counted < 100 * kMiB || counted > 104 * kMiB) {
      std::printf("%s: %llu bytes counted for 100 MiB\n", way.name, static_cast<unsigned long long>(counted));
      ++wrong;
    }
    CALL(cuModuleUnload)(module);
    if (free_bytes() != free_before) {
      std::printf("%s: %llu free after unloading, %llu before\n", way.name,
                  static_cast<unsigned long long>(free_bytes()), static_cast<unsigned long long>(free_before));
      ++wrong;
    }
  }
}

void check_libraries(const std::string& large, const std::string& small) {
  for (const Use& use : kLibraries) {
    const uint64_t before = card_bytes();
    for (const bool fits : {false, true}) {
      CUlibrary handle = nullptr;
      const CUresult loaded =
          CALL(cuLibraryLoadData)(&handle, (fits ? small : large).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      const CUresult used = loaded == CUDA_SUCCESS ? use.use(handle) : loaded;
      check(use.name, used, fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, before);
      if (loaded == CUDA_SUCCESS) check("  cuLibraryUnload", CALL(cuLibraryUnload)(handle), CUDA_SUCCESS, before);
      if (card_bytes() != before) {
        std::printf("%s: not given back\n", use.name);
        ++wrong;
      }
    }
  }
}

void write(const std::string& path, const std::string& text) {
  FILE* out = std::fopen(path.c_str(), "w");
  if (out == nullptr) std::exit(96);
  std::fputs(text.c_str(), out);
  std::fclose(out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 99;
  const uint64_t limit = std::strtoull(argv[1], nullptr, 10) * kMiB;
  command = argv[3];
  library = dlopen("libcuda.so.1", RTLD_NOW);
  CUcontext context = nullptr;
  if (library == nullptr || CALL(cuInit)(0) != CUDA_SUCCESS || CALL(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS) {
    return 95;
  }
  const std::string large = image(limit), small = image(100 * kMiB);
  const std::string folder = argv[2];
  write(folder + "/large.ptx", large);
  write(folder + "/small.ptx", small);
  check_modules(large, small, folder);
  check_libraries(large, small);
  // What is left can still be had.
  CUdeviceptr address = 0;
  const uint64_t left = free_bytes() / (2 * kMiB) * (2 * kMiB);
  check("cuMemAlloc of the rest", CALL(cuMemAlloc_v2)(&address, left), CUDA_SUCCESS, 0);
  CUmodule module = nullptr;
  check("a module when nothing is left", CALL(cuModuleLoadData)(&module, small.c_str()), CUDA_ERROR_OUT_OF_MEMORY,
        card_bytes());
  std::printf("%d wrong\n", wrong);
  return wrong > 90 ? 90 : wrong;
}
