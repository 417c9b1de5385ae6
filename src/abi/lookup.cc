#include "abi/lookup.h"

#include <algorithm>

namespace sluice::abi {

#define SLUICE_CALL(symbol, base, since, stream, group) {#symbol, base, since, Stream{stream}, group},
const CudaName kCudaNames[] = {
#include "abi/cuda_calls.inc"
};
#undef SLUICE_CALL

#define SLUICE_CALL(symbol, group) {#symbol, group},
const NvmlName kNvmlNames[] = {
#include "abi/nvml_calls.inc"
};
#undef SLUICE_CALL

const size_t kCudaNameCount = sizeof kCudaNames / sizeof kCudaNames[0];
const size_t kNvmlNameCount = sizeof kNvmlNames / sizeof kNvmlNames[0];

namespace {

template <typename Row>
size_t find_symbol(const Row* rows, size_t count, std::string_view name) {
  const Row* end = rows + count;
  const Row* at =
      std::lower_bound(rows, end, name, [](const Row& row, std::string_view wanted) { return row.name < wanted; });
  return at != end && at->name == name ? static_cast<size_t>(at - rows) : count;
}

}  // namespace

size_t find_cuda_symbol(std::string_view name) {
  return find_symbol(kCudaNames, kCudaNameCount, name);
}

size_t find_nvml_symbol(std::string_view name) {
  return find_symbol(kNvmlNames, kNvmlNameCount, name);
}

Lookup find_for_version(std::string_view base, int version, bool per_thread) {
  // All forms of a name begin with it, so they follow each other in the sorted table, though names that merely begin
  // alike (cuMemcpy, cuMemcpyAsync) may stand between them.
  const CudaName* end = kCudaNames + kCudaNameCount;
  const CudaName* row = std::lower_bound(
      kCudaNames, end, base, [](const CudaName& entry, std::string_view wanted) { return entry.name < wanted; });
  bool known = false;
  const CudaName* best = nullptr;
  const CudaName* best_per_thread = nullptr;
  for (; row != end && std::string_view(row->name).substr(0, base.size()) == base; ++row) {
    if (row->base != base) continue;
    known = true;
    if (row->since > version) continue;
    const CudaName*& slot = row->stream == Stream::kAny ? best : best_per_thread;
    if (slot == nullptr || row->since >= slot->since) slot = row;
  }
  if (!known) return {LookupStatus::kUnknownName, 0};
  if (per_thread && best_per_thread != nullptr) best = best_per_thread;
  if (best == nullptr) return {LookupStatus::kTooNew, 0};
  return {LookupStatus::kFound, static_cast<size_t>(best - kCudaNames)};
}

}  // namespace sluice::abi
