// How busy a card is, by NVML's several measures, each with the weakness of the real one: the utilisation rate looks at
// the whole card over a second; process utilisation rests on a ring of samples, one per 139 ms, that name one process
// each; GPM (Hopper and later) compares exact totals of two instants.

#include <algorithm>
#include <map>

#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

// Samples of the ring after `after_us`, oldest first.
std::vector<UtilisationSample> samples_after(NvmlView& view, uint64_t after_us) {
  CardFile& file = view.card.file();
  const uint64_t count = file.header.sample_count;
  std::vector<UtilisationSample> list;
  for (uint64_t n = count > kSampleRing ? count - kSampleRing : 0; n < count; ++n) {
    const UtilisationSample& sample = file.samples[n % kSampleRing];
    if (nvml_timestamp_us(view.card, sample.time_ns) > after_us) list.push_back(sample);
  }
  return list;
}

struct ProcessUse {
  NvmlProcess process;
  uint64_t time_us;
  unsigned sm_percent;
};

// The newest sample of each process, by subject; pids not yet translated.
std::vector<ProcessUse> process_use(NvmlView& view, uint64_t after_us) {
  std::map<uint32_t, ProcessUse> newest;
  const std::vector<NvmlProcess> known = card_processes(view.card);
  for (const UtilisationSample& sample : samples_after(view, after_us)) {
    if (sample.subject == kNone) continue;
    const SubjectRecord& subject = view.card.subject(sample.subject);
    for (const NvmlProcess& process : known) {
      if (view.card.process(process.record).serial != subject.process_serial) continue;
      newest[subject.process_serial] = {process, nvml_timestamp_us(view.card, sample.time_ns), sample.busy_percent};
    }
  }
  std::vector<ProcessUse> list;
  for (auto& [serial, use] : newest) list.push_back(std::move(use));
  return list;
}

nvmlReturn_t visible_use(std::string_view call, nvmlDevice_t handle, uint64_t after_us, std::vector<ProcessUse>* out) {
  bool filter = true;
  std::vector<ProcessUse> all;
  const nvmlReturn_t result = with_device(call, handle, [&](NvmlView& view) {
    filter = view.card.knob(Knob::pid_namespace_filter) != 0;
    all = process_use(view, after_us);
    return NVML_SUCCESS;
  });
  if (result != NVML_SUCCESS) return result;
  for (ProcessUse& use : all) {
    std::vector<NvmlProcess> seen = visible_processes({use.process}, filter);
    if (seen.empty()) continue;
    use.process = std::move(seen.front());
    out->push_back(std::move(use));
  }
  return out->empty() ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlProcessUtilizationSample_t sample_of(const ProcessUse& use) {
  return {static_cast<unsigned>(use.process.pid), use.time_us, use.sm_percent, use.sm_percent * 55 / 100, 0, 0};
}

bool has_gpm(const Card& card) {
  return card.profile().architecture >= NVML_DEVICE_ARCH_HOPPER;
}

GpmSample* find_sample(NvmlState& state, nvmlGpmSample_t handle) {
  for (const auto& sample : state.gpm_samples) {
    if (reinterpret_cast<nvmlGpmSample_t>(sample.get()) == handle) return sample.get();
  }
  return nullptr;
}

// Values of a metric as shares of the time with kernels running; the model has no finer counters.
struct GpmMetric {
  unsigned id;
  double share_of_busy;
  const char* short_name;
  const char* long_name;
};
const GpmMetric kGpmMetrics[] = {
    {NVML_GPM_METRIC_GRAPHICS_UTIL, 1.0, "Graphics Util", "Graphics Engine Utilization"},
    {NVML_GPM_METRIC_SM_UTIL, 1.0, "SM Util", "SM Utilization"},
    {NVML_GPM_METRIC_SM_OCCUPANCY, 0.5, "SM Occupancy", "SM Occupancy"},
    {NVML_GPM_METRIC_DRAM_BW_UTIL, 0.55, "DRAM BW Util", "DRAM Bandwidth Utilization"},
};

void fill_metric(nvmlGpmMetric_t& metric, double busy_percent) {
  metric.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  metric.value = 0;
  for (const GpmMetric& row : kGpmMetrics) {
    if (row.id != metric.metricId) continue;
    metric.nvmlReturn = NVML_SUCCESS;
    metric.value = busy_percent * row.share_of_busy;
    metric.metricInfo = {const_cast<char*>(row.short_name), const_cast<char*>(row.long_name), const_cast<char*>("%")};
  }
}

nvmlReturn_t engine_utilisation(std::string_view call, nvmlDevice_t handle, unsigned* percent, unsigned* period_us) {
  if (period_us == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer(call, handle, percent, [&](NvmlView&) {
    *period_us = 167000;
    return 0;
  });
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return with_device("nvmlDeviceGetUtilizationRates", device, [&](NvmlView& view) {
    if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const Vitals v = vitals(view);
    *utilization = {v.utilisation_percent, v.memory_percent};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t* info) {
  return with_device("nvmlDeviceGetDynamicPstatesInfo", device, [&](NvmlView& view) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const Vitals v = vitals(view);
    *info = {};
    info->utilization[0] = {1, v.utilisation_percent, 0, 0};
    info->utilization[1] = {1, v.memory_percent, 0, 0};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned* percent, unsigned* period_us) {
  return engine_utilisation("nvmlDeviceGetEncoderUtilization", device, percent, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned* percent, unsigned* period_us) {
  return engine_utilisation("nvmlDeviceGetDecoderUtilization", device, percent, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned* percent, unsigned* period_us) {
  return engine_utilisation("nvmlDeviceGetJpgUtilization", device, percent, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned* percent, unsigned* period_us) {
  return engine_utilisation("nvmlDeviceGetOfaUtilization", device, percent, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long after_us,
                                      nvmlValueType_t* value_type, unsigned* count, nvmlSample_t* samples) {
  return with_device("nvmlDeviceGetSamples", device, [&](NvmlView& view) {
    if (value_type == nullptr || count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
      return NVML_ERROR_NOT_SUPPORTED;
    std::vector<nvmlSample_t> list;
    for (const UtilisationSample& sample : samples_after(view, after_us)) {
      nvmlSample_t entry{};
      entry.timeStamp = nvml_timestamp_us(view.card, sample.time_ns);
      entry.sampleValue.uiVal =
          type == NVML_GPU_UTILIZATION_SAMPLES ? sample.busy_percent : sample.busy_percent * 55 / 100;
      list.push_back(entry);
    }
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (list.empty()) return NVML_ERROR_NOT_FOUND;
    if (samples == nullptr) {  // asked how large the buffer has to be
      *count = kSampleRing;
      return NVML_SUCCESS;
    }
    return give_list(list, count, samples);
  });
}

nvmlReturn_t sim_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                                 unsigned* count, unsigned long long after_us) {
  std::vector<ProcessUse> uses;
  const nvmlReturn_t result = visible_use("nvmlDeviceGetProcessUtilization", device, after_us, &uses);
  if (result != NVML_SUCCESS) {
    if (count != nullptr && result == NVML_ERROR_NOT_FOUND) *count = 0;
    return result;
  }
  std::vector<nvmlProcessUtilizationSample_t> list;
  for (const ProcessUse& use : uses) list.push_back(sample_of(use));
  return give_list(list, count, samples);
}

nvmlReturn_t sim_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* info) {
  if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != NVML_VERSION_WORD(nvmlProcessesUtilizationInfo_v1_t, 1)) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  std::vector<ProcessUse> uses;
  const nvmlReturn_t result =
      visible_use("nvmlDeviceGetProcessesUtilizationInfo", device, info->lastSeenTimeStamp, &uses);
  if (result != NVML_SUCCESS) return result;
  std::vector<nvmlProcessUtilizationInfo_v1_t> list;
  for (const ProcessUse& use : uses) {
    const nvmlProcessUtilizationSample_t s = sample_of(use);
    list.push_back({s.timeStamp, s.pid, s.smUtil, s.memUtil, 0, 0, 0, 0});
  }
  return give_list(list, &info->processSamplesCount, info->procUtilArray);
}

nvmlReturn_t sim_nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* support) {
  return with_device("nvmlGpmQueryDeviceSupport", device, [&](NvmlView& view) {
    if (support == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = has_gpm(view.card);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlGpmSampleAlloc(nvmlGpmSample_t* sample) {
  if (sample == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
  constexpr size_t kMaxSamples = 4096;
  if (state.gpm_samples.size() >= kMaxSamples) return NVML_ERROR_INSUFFICIENT_RESOURCES;
  state.gpm_samples.push_back(std::make_unique<GpmSample>());
  *sample = reinterpret_cast<nvmlGpmSample_t>(state.gpm_samples.back().get());
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGpmSampleFree(nvmlGpmSample_t sample) {
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  GpmSample* found = find_sample(state, sample);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::erase_if(state.gpm_samples, [&](const auto& s) { return s.get() == found; });
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
  GpmSample taken;
  const nvmlReturn_t result = with_device("nvmlGpmSampleGet", device, [&](NvmlView& view) {
    if (!has_gpm(view.card)) return NVML_ERROR_NOT_SUPPORTED;
    taken = {&view.device, view.now_ns, view.card.executing_ns(1, 0, view.now_ns)};
    return NVML_SUCCESS;
  });
  if (result != NVML_SUCCESS) return result;
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  GpmSample* found = find_sample(state, sample);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *found = taken;
  return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGpmMetricsGet(nvmlGpmMetricsGet_t* request) {
  if (request == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (request->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  constexpr size_t kRoom = sizeof request->metrics / sizeof request->metrics[0];
  if (request->numMetrics == 0 || request->numMetrics > kRoom) return NVML_ERROR_INVALID_ARGUMENT;
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
  const GpmSample* first = find_sample(state, request->sample1);
  const GpmSample* second = find_sample(state, request->sample2);
  if (first == nullptr || second == nullptr || first->device == nullptr || first->device != second->device) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (second->card_ns <= first->card_ns) return NVML_ERROR_INVALID_ARGUMENT;
  const double busy_percent = 100.0 * static_cast<double>(second->executing_ns - first->executing_ns) /
                              static_cast<double>(second->card_ns - first->card_ns);
  for (unsigned i = 0; i < request->numMetrics; ++i) fill_metric(request->metrics[i], busy_percent);
  return NVML_SUCCESS;
}

}  // extern "C"
