// Settings of a card and events. What would change the machine needs root; what the simulated card has no part for
// answers NOT_SUPPORTED, as most cards do for most of it.

#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

// A state that never changes.
nvmlReturn_t constant_state(std::string_view call, nvmlDevice_t device, nvmlEnableState_t* out,
                            nvmlEnableState_t value) {
  return answer(call, device, out, [&](NvmlView&) { return value; });
}

NvmlEventSet* find_set(NvmlState& state, nvmlEventSet_t handle) {
  for (const auto& set : state.event_sets) {
    if (reinterpret_cast<nvmlEventSet_t>(set.get()) == handle) return set.get();
  }
  return nullptr;
}

// The first watched card that reported an XID since it was last asked.
bool next_event(NvmlState& state, nvmlEventSet_t handle, nvmlEventData_t* data, bool* known) {
  const std::lock_guard guard(state.lock);
  NvmlEventSet* set = find_set(state, handle);
  *known = set != nullptr;
  if (set == nullptr) return false;
  for (NvmlEventSet::Watch& watch : set->watches) {
    const CardHeader& header = watch.device->card->header();
    if (header.xid_count == watch.xids_seen) continue;
    watch.xids_seen = header.xid_count;
    *data = {reinterpret_cast<nvmlDevice_t>(watch.device), nvmlEventTypeXidCriticalError, header.xid,
             NVML_GPU_INSTANCE_ID_ANY, NVML_COMPUTE_INSTANCE_ID_ANY};
    return true;
  }
  return false;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return constant_state("nvmlDeviceGetPersistenceMode", device, mode, NVML_FEATURE_ENABLED);
}

nvmlReturn_t sim_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  return with_device("nvmlDeviceSetPersistenceMode", device, [&](NvmlView&) {
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    // The card's file outlives every process, so persistence cannot be switched off.
    return mode == NVML_FEATURE_ENABLED ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
  });
}

nvmlReturn_t sim_nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return constant_state("nvmlDeviceGetDisplayMode", device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t sim_nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return constant_state("nvmlDeviceGetDisplayActive", device, active, NVML_FEATURE_DISABLED);
}

nvmlReturn_t sim_nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return constant_state("nvmlDeviceGetAccountingMode", device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t sim_nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned* size) {
  return answer("nvmlDeviceGetAccountingBufferSize", device, size, [](NvmlView&) { return 4000; });
}

nvmlReturn_t sim_nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return answer("nvmlDeviceGetComputeMode", device, mode, [](NvmlView& v) {
    return v.card.knob(Knob::exclusive_process) != 0 ? NVML_COMPUTEMODE_EXCLUSIVE_PROCESS : NVML_COMPUTEMODE_DEFAULT;
  });
}

nvmlReturn_t sim_nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  return with_device("nvmlDeviceSetComputeMode", device, [&](NvmlView& v) {
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    if (mode != NVML_COMPUTEMODE_DEFAULT && mode != NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) {
      return NVML_ERROR_NOT_SUPPORTED;
    }
    v.card.set_knob(Knob::exclusive_process, mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  return with_device("nvmlDeviceGetMigMode", device, [&](NvmlView& v) {
    const ProfileData& p = v.card.profile();
    if (p.compute_major < 8 || p.compute_minor != 0) return NVML_ERROR_NOT_SUPPORTED;
    if (current == nullptr || pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned* is_mig) {
  return answer("nvmlDeviceIsMigDeviceHandle", device, is_mig, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned* count) {
  return answer("nvmlDeviceGetMaxMigDeviceCount", device, count, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned, nvmlDevice_t*) {
  NvmlDevice* found = nullptr;
  const nvmlReturn_t result = find_device(device, &found);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t sim_nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* mode) {
  return answer("nvmlDeviceGetVirtualizationMode", device, mode,
                [](NvmlView&) { return NVML_GPU_VIRTUALIZATION_MODE_NONE; });
}

nvmlReturn_t sim_nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned* node) {
  return answer("nvmlDeviceGetNumaNodeId", device, node, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long* set) {
  return with_device("nvmlDeviceGetCpuAffinity", device, [&](NvmlView&) {
    if (set == nullptr || size == 0) return NVML_ERROR_INVALID_ARGUMENT;
    const long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (unsigned word = 0; word < size; ++word) set[word] = 0;
    for (long cpu = 0; cpu < cpus && cpu < 64L * size; ++cpu) set[cpu / 64] |= 1UL << (cpu % 64);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long* set,
                                                     nvmlAffinityScope_t) {
  return sim_nvmlDeviceGetCpuAffinity(device, size, set);
}

nvmlReturn_t sim_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long* set,
                                             nvmlAffinityScope_t) {
  return with_device("nvmlDeviceGetMemoryAffinity", device, [&](NvmlView&) {
    if (set == nullptr || size == 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned word = 0; word < size; ++word) set[word] = word == 0 ? 1 : 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  return answer("nvmlDeviceGetSupportedEventTypes", device, types,
                [](NvmlView&) { return nvmlEventTypeXidCriticalError; });
}

nvmlReturn_t sim_nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
  constexpr size_t kMaxSets = 256;
  if (state.event_sets.size() >= kMaxSets) return NVML_ERROR_INSUFFICIENT_RESOURCES;
  state.event_sets.push_back(std::make_unique<NvmlEventSet>());
  *set = reinterpret_cast<nvmlEventSet_t>(state.event_sets.back().get());
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetFree(nvmlEventSet_t set) {
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  NvmlEventSet* found = find_set(state, set);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::erase_if(state.event_sets, [&](const auto& s) { return s.get() == found; });
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  NvmlDevice* found = nullptr;
  if (const nvmlReturn_t result = find_device(device, &found); result != NVML_SUCCESS) return result;
  if ((types & ~nvmlEventTypeXidCriticalError) != 0) return NVML_ERROR_NOT_SUPPORTED;
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  NvmlEventSet* events = find_set(state, set);
  if (events == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  events->watches.push_back({found, found->card->header().xid_count});
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  if (data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  Host& host = current_process().host();
  const uint64_t until = host.now_ns() + uint64_t{timeout_ms} * 1000000;
  constexpr uint64_t kLookEveryNs = 20000000;
  while (true) {
    bool known = false;
    if (next_event(nvml_state(), set, data, &known)) return NVML_SUCCESS;
    if (!known) return NVML_ERROR_INVALID_ARGUMENT;
    const uint64_t now = host.now_ns();
    if (now >= until) return NVML_ERROR_TIMEOUT;
    host.wait_until(std::min(until, now + kLookEveryNs), WaitMode::kBlock);
  }
}

nvmlReturn_t sim_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  return sim_nvmlEventSetWait_v2(set, data, timeout_ms);
}

}  // extern "C"
