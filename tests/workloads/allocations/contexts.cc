// Memory that no allocation call asks for: contexts, the code and variables of modules, and the card's own heaps, whose
// size a limit of the context sets.
#include <string>

#include "allocations/allocation.h"
#include "common/card.h"

namespace workloads::allocations {
namespace {

CUresult with_context(const Request& request, CUcontext made) {
  CUcontext popped = nullptr;
  WORKLOAD_TRY(driver().cuCtxPopCurrent(&popped));
  WORKLOAD_TRY(driver().cuCtxDestroy(made));
  return driver().cuCtxSetCurrent(request.context);
}

CUresult ctx_v2(const Request& request) {
  CUcontext made = nullptr;
  WORKLOAD_TRY(driver().cuCtxCreate(&made, 0, request.device));
  return with_context(request, made);
}

CUresult ctx_v3(const Request& request) {
  auto* const create = symbol<decltype(::cuCtxCreate_v3)>("cuCtxCreate_v3");
  if (create == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUcontext made = nullptr;
  WORKLOAD_TRY(create(&made, nullptr, 0, 0, request.device));
  return with_context(request, made);
}

CUresult ctx_v4(const Request& request) {
  auto* const create = symbol<decltype(::cuCtxCreate_v4)>("cuCtxCreate_v4");
  if (create == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUcontext made = nullptr;
  WORKLOAD_TRY(create(&made, nullptr, 0, request.device));
  return with_context(request, made);
}

CUresult primary(const Request& request) {
  CUcontext context = nullptr;
  WORKLOAD_TRY(driver().cuDevicePrimaryCtxRetain(&context, request.device));
  return driver().cuDevicePrimaryCtxRelease(request.device);
}

std::string image_with(const Request& request) {
  return kernel_image({{.name = "touch_global"}}, request.bytes);
}

// Lazy loading: code and variables may reach the card with the first function or variable that is asked for.
CUresult use_module(CUmodule module) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CUresult result = driver().cuModuleGetGlobal(&address, &bytes, module, "workload_global");
  if (result == CUDA_SUCCESS) result = touch(address, bytes);
  WORKLOAD_TRY(driver().cuModuleUnload(module));
  return result;
}

CUresult module_data(const Request& request) {
  CUmodule module = nullptr;
  WORKLOAD_TRY(driver().cuModuleLoadData(&module, image_with(request).c_str()));
  return use_module(module);
}

CUresult module_data_ex(const Request& request) {
  CUmodule module = nullptr;
  WORKLOAD_TRY(driver().cuModuleLoadDataEx(&module, image_with(request).c_str(), 0, nullptr, nullptr));
  return use_module(module);
}

CUresult library_data(const Request& request) {
  CUlibrary library = nullptr;
  WORKLOAD_TRY(
      driver().cuLibraryLoadData(&library, image_with(request).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CUresult result = driver().cuLibraryGetGlobal(&address, &bytes, library, "workload_global");
  if (result == CUDA_SUCCESS) result = touch(address, bytes);
  WORKLOAD_TRY(driver().cuLibraryUnload(library));
  return result;
}

CUresult linked(const Request& request) {
  CUlinkState link = nullptr;
  WORKLOAD_TRY(driver().cuLinkCreate(0, nullptr, nullptr, &link));
  std::string image = image_with(request);
  void* binary = nullptr;
  size_t bytes = 0;
  CUmodule module = nullptr;
  CUresult result = driver().cuLinkAddData(link, CU_JIT_INPUT_PTX, image.data(), image.size() + 1, "workload.ptx", 0,
                                           nullptr, nullptr);
  if (result == CUDA_SUCCESS) result = driver().cuLinkComplete(link, &binary, &bytes);
  if (result == CUDA_SUCCESS) result = driver().cuModuleLoadData(&module, binary);
  WORKLOAD_TRY(driver().cuLinkDestroy(link));
  return result == CUDA_SUCCESS ? use_module(module) : result;
}

CUresult limited(CUlimit which, size_t value) {
  size_t before = 0;
  WORKLOAD_TRY(driver().cuCtxGetLimit(&before, which));
  const CUresult result = driver().cuCtxSetLimit(which, value);
  WORKLOAD_TRY(driver().cuCtxSetLimit(which, before));
  return result;
}

// The stack limit is per thread: local memory takes stack x multiprocessors x threads of each.
CUresult stack_limit(const Request& request) {
  int multiprocessors = 1;
  int threads = 1;
  WORKLOAD_TRY(
      driver().cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, request.device));
  WORKLOAD_TRY(
      driver().cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, request.device));
  const uint64_t all = static_cast<uint64_t>(multiprocessors) * static_cast<uint64_t>(threads);
  return limited(CU_LIMIT_STACK_SIZE, (request.bytes + all - 1) / all);
}
CUresult heap_limit(const Request& request) {
  return limited(CU_LIMIT_MALLOC_HEAP_SIZE, request.bytes);
}
CUresult fifo_limit(const Request& request) {
  return limited(CU_LIMIT_PRINTF_FIFO_SIZE, request.bytes);
}

constexpr Way kWays[] = {
    {"cuCtxCreate_v2", Kind::kContext, ctx_v2},
    {"cuCtxCreate_v3", Kind::kContext, ctx_v3},
    {"cuCtxCreate_v4", Kind::kContext, ctx_v4},
    {"cuDevicePrimaryCtxRetain", Kind::kContext, primary},
    {"cuModuleLoadData", Kind::kCode, module_data},
    {"cuModuleLoadDataEx", Kind::kCode, module_data_ex},
    {"cuLibraryLoadData", Kind::kCode, library_data},
    {"cuLinkComplete+cuModuleLoadData", Kind::kCode, linked},
    {"cuCtxSetLimit STACK_SIZE", Kind::kHeap, stack_limit},
    {"cuCtxSetLimit MALLOC_HEAP_SIZE", Kind::kHeap, heap_limit},
    {"cuCtxSetLimit PRINTF_FIFO_SIZE", Kind::kHeap, fifo_limit},
};

}  // namespace

std::span<const Way> context_ways() {
  return kWays;
}

}  // namespace workloads::allocations
