// Names to functions: cuGetProcAddress, and the table that a harness uses instead of dlsym.
#include <cstring>

#include "abi/lookup.h"
#include "sim/api.h"
#include "sim/driver_version.h"

// In the shared library the addresses of the exports, so that they equal what dlsym finds; elsewhere the bodies'.
extern "C" const void* const sim_cuda_addresses[];

namespace sluice::sim {

namespace {

bool taken_away(Process& process, const char* symbol) {
  for (int i = 0; i < process.device_count(); ++i) {
    Card& card = *process.device(i)->card;
    if (card.file().fault_count == 0) continue;
    Card::Guard guard(card);
    if (card.fault(symbol, process.pid(), FaultKind::kMissingSymbol) != nullptr) return true;
  }
  return false;
}

CUresult proc_address(const char* symbol, void** out, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if ((flags & ~cuuint64_t{3}) != 0 || flags == 3) return CUDA_ERROR_INVALID_VALUE;
  Thread& thread = current_thread();
  // Flag 0 is what the caller was compiled for: per-thread forms when it came through the per-thread entry.
  const bool per_thread = flags == 2 || (flags == 0 && thread.null_stream == CU_STREAM_PER_THREAD);
  const abi::Lookup found = abi::find_for_version(symbol, version, per_thread);
  if (found.status == abi::LookupStatus::kTooNew) {
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
  }
  if (found.status != abi::LookupStatus::kFound || abi::kCudaNames[found.index].since > kCudaDriverVersion ||
      taken_away(*thread.process, abi::kCudaNames[found.index].name)) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *out = const_cast<void*>(sim_cuda_addresses[found.index]);
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

}  // namespace

const void* sim_symbol(const char* name) {
  const size_t index = abi::find_cuda_symbol(name);
  if (index >= abi::kCudaNameCount || taken_away(*current_thread().process, name)) return nullptr;
  return sim_cuda_addresses[index];
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult* status) {
  const CUresult result = proc_address(symbol, out, version, flags, status);
  // The second generation reports a missing name in the status alone.
  return result == CUDA_ERROR_NOT_FOUND && status != nullptr ? CUDA_SUCCESS : result;
}
CUresult sim_cuGetProcAddress(const char* symbol, void** out, int version, cuuint64_t flags) {
  return proc_address(symbol, out, version, flags, nullptr);
}
}
