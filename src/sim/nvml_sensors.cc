// Power, heat, clocks, fans, ECC. The card has no sensors: all follows from its load (vitals(), nvml_state.h) and its
// profile, so that monitoring programs see plausible figures that move with what runs.

#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

bool clock_mhz(const Vitals& v, nvmlClockType_t type, bool maximum, unsigned* mhz) {
  switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
      *mhz = maximum ? v.max_sm_mhz : v.sm_mhz;
      return true;
    case NVML_CLOCK_MEM:
      *mhz = maximum ? v.max_memory_mhz : v.memory_mhz;
      return true;
    case NVML_CLOCK_VIDEO:
      *mhz = (maximum ? v.max_sm_mhz : v.sm_mhz) * 9 / 10;
      return true;
    default:
      return false;
  }
}

nvmlReturn_t clock_answer(std::string_view call, nvmlDevice_t device, nvmlClockType_t type, bool maximum,
                          unsigned* mhz) {
  return with_device(call, device, [&](NvmlView& view) {
    if (mhz == nullptr || !clock_mhz(vitals(view), type, maximum, mhz)) return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
  });
}

// A query that only cards with a fan, or with ECC memory, answer.
template <typename T, typename Body>
nvmlReturn_t answer_if(bool fan, std::string_view call, nvmlDevice_t device, T* out, Body body) {
  return with_device(call, device, [&](NvmlView& view) {
    const ProfileData& p = view.card.profile();
    if (!(fan ? p.has_fan : p.has_ecc)) return NVML_ERROR_NOT_SUPPORTED;
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = static_cast<T>(body(view));
    return NVML_SUCCESS;
  });
}
constexpr bool kFan = true;
constexpr bool kEcc = false;

int threshold_c(nvmlTemperatureThresholds_t which) {
  switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
      return 90;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
      return 87;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
      return 85;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
      return 83;
    default:
      return -1;
  }
}

unsigned minimum_power_mw(const ProfileData& p) {
  return p.power_limit_mw / 3;
}

// Millijoules since the card's start: the idle figure all the time, the rest while kernels ran.
uint64_t energy_mj(NvmlView& view) {
  const double watts = view.card.profile().power_limit_mw / 1000.0;
  const double seconds = static_cast<double>(view.now_ns) / 1e9;
  const double busy = static_cast<double>(view.card.executing_ns(1, 0, view.now_ns)) / 1e9;
  return static_cast<uint64_t>((0.12 * seconds + 0.76 * busy) * watts * 1000.0);
}

void set_unsigned(nvmlFieldValue_t& field, uint64_t value) {
  field.valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  field.value.ullVal = value;
  field.nvmlReturn = NVML_SUCCESS;
}

void fill_field(NvmlView& view, nvmlFieldValue_t& field) {
  const ProfileData& p = view.card.profile();
  const Vitals v = vitals(view);
  field.timestamp = static_cast<long long>(nvml_timestamp_us(view.card, view.now_ns));
  field.latencyUsec = 10;
  field.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  field.valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  field.value.ullVal = 0;
  switch (field.fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
      if (p.has_ecc) set_unsigned(field, 1);
      break;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
    case NVML_FI_DEV_RETIRED_SBE:
    case NVML_FI_DEV_RETIRED_DBE:
    case NVML_FI_DEV_RETIRED_PENDING:
    case NVML_FI_DEV_REMAPPED_COR:
    case NVML_FI_DEV_REMAPPED_UNC:
    case NVML_FI_DEV_REMAPPED_PENDING:
    case NVML_FI_DEV_REMAPPED_FAILURE:
      if (p.has_ecc) set_unsigned(field, 0);
      break;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
      set_unsigned(field, 0);
      break;
    case NVML_FI_DEV_MEMORY_TEMP:
      set_unsigned(field, v.temperature_c + 2);
      break;
    case NVML_FI_DEV_GPU_TEMP:
      set_unsigned(field, v.temperature_c);
      break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_ENERGY:
      set_unsigned(field, energy_mj(view));
      break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
      set_unsigned(field, p.nvlinks);
      break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
      set_unsigned(field, v.power_mw);
      break;
    case NVML_FI_DEV_POWER_MIN_LIMIT:
      set_unsigned(field, minimum_power_mw(p));
      break;
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
      set_unsigned(field, p.power_limit_mw);
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
  return answer("nvmlDeviceGetPowerUsage", device, milliwatts, [](NvmlView& v) { return vitals(v).power_mw; });
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return answer("nvmlDeviceGetPowerManagementLimit", device, milliwatts,
                [](NvmlView& v) { return v.card.profile().power_limit_mw; });
}

nvmlReturn_t sim_nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return sim_nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return sim_nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned* least, unsigned* most) {
  if (most == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer("nvmlDeviceGetPowerManagementLimitConstraints", device, least, [&](NvmlView& v) {
    *most = v.card.profile().power_limit_mw;
    return minimum_power_mw(v.card.profile());
  });
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return answer("nvmlDeviceGetPowerManagementMode", device, mode, [](NvmlView&) { return NVML_FEATURE_ENABLED; });
}

nvmlReturn_t sim_nvmlDeviceGetPowerSource(nvmlDevice_t device, nvmlPowerSource_t* source) {
  return answer("nvmlDeviceGetPowerSource", device, source, [](NvmlView&) { return NVML_POWER_SOURCE_AC; });
}

nvmlReturn_t sim_nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long* millijoules) {
  return answer("nvmlDeviceGetTotalEnergyConsumption", device, millijoules, energy_mj);
}

nvmlReturn_t sim_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned* celsius) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return answer("nvmlDeviceGetTemperature", device, celsius, [](NvmlView& v) { return vitals(v).temperature_c; });
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature == nullptr || temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != NVML_VERSION_WORD(nvmlTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return answer("nvmlDeviceGetTemperatureV", device, &temperature->temperature,
                [](NvmlView& v) { return vitals(v).temperature_c; });
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which,
                                                   unsigned* celsius) {
  if (threshold_c(which) < 0) return NVML_ERROR_NOT_SUPPORTED;
  return answer("nvmlDeviceGetTemperatureThreshold", device, celsius, [&](NvmlView&) { return threshold_c(which); });
}

nvmlReturn_t sim_nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t* margin) {
  if (margin == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (margin->version != NVML_VERSION_WORD(nvmlMarginTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return answer("nvmlDeviceGetMarginTemperature", device, &margin->marginTemperature, [](NvmlView& v) {
    return threshold_c(NVML_TEMPERATURE_THRESHOLD_GPU_MAX) - static_cast<int>(vitals(v).temperature_c);
  });
}

nvmlReturn_t sim_nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned index, nvmlGpuThermalSettings_t* settings) {
  return with_device("nvmlDeviceGetThermalSettings", device, [&](NvmlView& view) {
    if (settings == nullptr || index >= NVML_MAX_THERMAL_SENSORS_PER_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *settings = {};
    settings->count = 1;
    settings->sensor[0] = {NVML_THERMAL_CONTROLLER_GPU_INTERNAL, -40, 127, static_cast<int>(vitals(view).temperature_c),
                           NVML_THERMAL_TARGET_GPU};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned* count) {
  return answer("nvmlDeviceGetNumFans", device, count, [](NvmlView& v) { return v.card.profile().has_fan ? 1 : 0; });
}

nvmlReturn_t sim_nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned* percent) {
  return answer_if(kFan, "nvmlDeviceGetFanSpeed", device, percent, [](NvmlView& v) { return vitals(v).fan_percent; });
}

nvmlReturn_t sim_nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned* percent) {
  if (fan > 0) return NVML_ERROR_INVALID_ARGUMENT;
  return sim_nvmlDeviceGetFanSpeed(device, percent);
}

nvmlReturn_t sim_nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned fan, unsigned* percent) {
  return sim_nvmlDeviceGetFanSpeed_v2(device, fan, percent);
}

nvmlReturn_t sim_nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, unsigned* least, unsigned* most) {
  if (most == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer_if(kFan, "nvmlDeviceGetMinMaxFanSpeed", device, least, [&](NvmlView&) {
    *most = 100;
    return 30;
  });
}

nvmlReturn_t sim_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetClockInfo", device, type, false, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetMaxClockInfo", device, type, true, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetClock", device, type, id != NVML_CLOCK_ID_CURRENT, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetApplicationsClock", device, type, true, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetDefaultApplicationsClock", device, type, true, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return clock_answer("nvmlDeviceGetMaxCustomerBoostClock", device, type, true, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned* count, unsigned* clocks_mhz) {
  return with_device("nvmlDeviceGetSupportedMemoryClocks", device, [&](NvmlView& view) {
    return give_list(std::vector<unsigned>{vitals(view).max_memory_mhz}, count, clocks_mhz);
  });
}

nvmlReturn_t sim_nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned* count,
                                                      unsigned* clocks_mhz) {
  return with_device("nvmlDeviceGetSupportedGraphicsClocks", device, [&](NvmlView& view) {
    const Vitals v = vitals(view);
    if (memory_mhz != v.max_memory_mhz) return NVML_ERROR_NOT_FOUND;
    std::vector<unsigned> steps;
    constexpr unsigned kStepMhz = 15;
    for (unsigned mhz = v.max_sm_mhz; mhz > v.max_sm_mhz / 8; mhz -= kStepMhz) steps.push_back(mhz);
    return give_list(steps, count, clocks_mhz);
  });
}

nvmlReturn_t sim_nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* pstate) {
  return answer("nvmlDeviceGetPerformanceState", device, pstate, [](NvmlView& v) { return vitals(v).pstate; });
}

nvmlReturn_t sim_nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t* pstate) {
  return sim_nvmlDeviceGetPerformanceState(device, pstate);
}

nvmlReturn_t sim_nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return answer("nvmlDeviceGetCurrentClocksEventReasons", device, reasons, [](NvmlView& v) {
    return vitals(v).pstate == NVML_PSTATE_0 ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle;
  });
}

nvmlReturn_t sim_nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return sim_nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t sim_nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return answer("nvmlDeviceGetSupportedClocksEventReasons", device, reasons, [](NvmlView&) {
    return nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonApplicationsClocksSetting |
           nvmlClocksEventReasonSwPowerCap;
  });
}

nvmlReturn_t sim_nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return sim_nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

nvmlReturn_t sim_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t* current, nvmlEnableState_t* pending) {
  if (pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return answer_if(kEcc, "nvmlDeviceGetEccMode", device, current,
                   [&](NvmlView&) { return *pending = NVML_FEATURE_ENABLED; });
}

nvmlReturn_t sim_nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return answer_if(kEcc, "nvmlDeviceGetDefaultEccMode", device, mode, [](NvmlView&) { return NVML_FEATURE_ENABLED; });
}

nvmlReturn_t sim_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t, nvmlEccCounterType_t,
                                             unsigned long long* count) {
  return answer_if(kEcc, "nvmlDeviceGetTotalEccErrors", device, count, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t, nvmlEccCounterType_t,
                                                 nvmlMemoryLocation_t, unsigned long long* count) {
  return answer_if(kEcc, "nvmlDeviceGetMemoryErrorCounter", device, count, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t, unsigned* count,
                                           unsigned long long*) {
  return answer_if(kEcc, "nvmlDeviceGetRetiredPages", device, count, [](NvmlView&) { return 0; });
}

nvmlReturn_t sim_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t* pending) {
  return answer_if(kEcc, "nvmlDeviceGetRetiredPagesPendingStatus", device, pending,
                   [](NvmlView&) { return NVML_FEATURE_DISABLED; });
}

nvmlReturn_t sim_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned* correctable, unsigned* uncorrectable,
                                           unsigned* pending, unsigned* failed) {
  if (uncorrectable == nullptr || pending == nullptr || failed == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return with_device("nvmlDeviceGetRemappedRows", device, [&](NvmlView& view) {
    if (view.card.profile().architecture < NVML_DEVICE_ARCH_AMPERE) return NVML_ERROR_NOT_SUPPORTED;
    if (correctable == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t sim_nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* fields) {
  return with_device("nvmlDeviceGetFieldValues", device, [&](NvmlView& view) {
    if (fields == nullptr || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; ++i) fill_field(view, fields[i]);
    return NVML_SUCCESS;
  });
}

}  // extern "C"
