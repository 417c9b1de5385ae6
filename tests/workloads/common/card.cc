#include "common/card.h"

#include <cstdio>
#include <cstdlib>

namespace workloads {
namespace {

const char* g_program = "workload";
constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kChunkMib = 512;  // real programs hold many allocations, not one
constexpr unsigned kThreadsPerBlock = 256;

}  // namespace

void set_program(const char* name) {
  g_program = name;
}

std::string result_name(CUresult result) {
  const char* name = nullptr;
  if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown result";
  return std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")";
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %s: %s\n", g_program, call, result_name(result).c_str());
  std::exit(kExitCudaError);
}

Card::Card(const char* program, const Common& common) {
  set_program(program);
  const Driver& cuda = driver();
  check(cuda.cuInit(0), "cuInit");
  int count = 0;
  check(cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (common.device >= count) {
    std::fprintf(stderr, "%s: --device %d: there %s %d card%s, numbered from 0\n", program, common.device,
                 count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    std::exit(kExitUsage);
  }
  check(cuda.cuDeviceGet(&device_, common.device), "cuDeviceGet");
  check(cuda.cuDeviceGetAttribute(&multiprocessors_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_),
        "cuDeviceGetAttribute");
  check(cuda.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  use();
  chunk_bytes_ = (common.mem_mib < kChunkMib ? common.mem_mib : kChunkMib) * kMiB;
  for (uint64_t held_mib = 0; held_mib < common.mem_mib; held_mib += kChunkMib) {
    const uint64_t rest_mib = common.mem_mib - held_mib;
    CUdeviceptr chunk = 0;
    check(cuda.cuMemAlloc(&chunk, (rest_mib < kChunkMib ? rest_mib : kChunkMib) * kMiB), "cuMemAlloc");
    chunks_.push_back(chunk);
  }
}

Card::~Card() {
  const Driver& cuda = driver();
  use();
  for (const CUdeviceptr chunk : chunks_) check(cuda.cuMemFree(chunk), "cuMemFree");
  for (const CUmodule module : modules_) check(cuda.cuModuleUnload(module), "cuModuleUnload");
  check(cuda.cuDevicePrimaryCtxRelease(device_), "cuDevicePrimaryCtxRelease");
}

void Card::use() {
  check(driver().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

std::vector<CUfunction> Card::load(const std::vector<KernelSpec>& kernels) {
  const std::string image = kernel_image(kernels);
  CUmodule module = nullptr;
  check(driver().cuModuleLoadData(&module, image.c_str()), "cuModuleLoadData");
  modules_.push_back(module);
  std::vector<CUfunction> functions;
  for (const KernelSpec& kernel : kernels) {
    CUfunction function = nullptr;
    check(driver().cuModuleGetFunction(&function, module, kernel.name.c_str()), "cuModuleGetFunction");
    functions.push_back(function);
  }
  return functions;
}

void Card::launch(CUfunction function, CUstream stream) {
  CUdeviceptr address = 0;
  void* parameters[] = {&address};
  check(driver().cuLaunchKernel(function, static_cast<unsigned>(multiprocessors_), 1, 1, kThreadsPerBlock, 1, 1, 0,
                                stream, parameters, nullptr),
        "cuLaunchKernel");
}

CUfunction Card::load_arrival() {
  CUmodule module = nullptr;
  check(driver().cuModuleLoadData(&module, arrival_image().c_str()), "cuModuleLoadData");
  modules_.push_back(module);
  CUfunction function = nullptr;
  check(driver().cuModuleGetFunction(&function, module, "arrive_and_spin"), "cuModuleGetFunction");
  return function;
}

void Card::launch_arrival(CUfunction arrival, CUstream stream, uint64_t id, CUdeviceptr words, uint64_t rank,
                          uint64_t ranks, uint32_t step) {
  auto rank32 = static_cast<uint32_t>(rank);
  auto ranks32 = static_cast<uint32_t>(ranks);
  void* parameters[] = {&id, &rank32, &ranks32, &step, &words};
  check(driver().cuLaunchKernel(arrival, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
}

}  // namespace workloads
