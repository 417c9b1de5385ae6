#include "sim/nvml_state.h"

#include <ctime>
#include <filesystem>

#include "sim/host.h"

namespace sluice::sim {
namespace {

std::mutex creation;

// Difference between the clock that people read and the one that the card counts; 0 with an injected clock. Taken once,
// so that the same sample has the same stamp whenever it is asked for.
int64_t wall_offset_ns() {
  if (&current_process().host() != &real_host()) return 0;
  static const int64_t offset = [] {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec - static_cast<int64_t>(real_host().now_ns());
  }();
  return offset;
}

}  // namespace

NvmlState& nvml_state() {
  Process& process = current_process();
  const std::lock_guard guard(creation);
  if (process.nvml_state == nullptr) process.nvml_state = std::make_shared<NvmlState>();
  return *static_cast<NvmlState*>(process.nvml_state.get());
}

bool nvml_fault(Card& card, std::string_view call, nvmlReturn_t* result) {
  if (card.file().fault_count == 0) return false;
  const int32_t pid = current_process().pid();
  if (const Fault* slow = card.fault(call, pid, FaultKind::kSlowCall)) {
    Host& host = current_process().host();
    const uint64_t until = host.now_ns() + slow->delay_ns;
    while (host.now_ns() < until) host.wait_until(until, WaitMode::kBlock);
  }
  const Fault* failing = card.fault(call, pid, FaultKind::kErrorReturn);
  if (failing == nullptr) return false;
  *result = static_cast<nvmlReturn_t>(failing->result);
  return true;
}

nvmlReturn_t find_device(nvmlDevice_t handle, NvmlDevice** device) {
  NvmlState& state = nvml_state();
  const std::lock_guard guard(state.lock);
  if (state.references == 0) return NVML_ERROR_UNINITIALIZED;
  for (const auto& known : state.devices) {
    if (reinterpret_cast<nvmlDevice_t>(known.get()) != handle) continue;
    *device = known.get();
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

uint64_t nvml_timestamp_us(Card& card, uint64_t card_ns) {
  const int64_t wall = static_cast<int64_t>(card.file().header.epoch_ns + card_ns) + wall_offset_ns();
  return static_cast<uint64_t>(wall) / 1000;
}

nvmlReturn_t give_text(std::string_view text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length < text.size() + 1) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return NVML_SUCCESS;
}

Vitals vitals(NvmlView& view) {
  const ProfileData& profile = view.card.profile();
  const unsigned load = view.card.utilisation_percent(view.now_ns, 1000000000);
  const bool in_use = load > 0 || view.card.header().tables.contexts.live > 0;
  Vitals v{};
  v.utilisation_percent = load;
  v.memory_percent = load * 55 / 100;
  v.power_mw = static_cast<unsigned>(uint64_t{profile.power_limit_mw} * (in_use ? 18 + load * 70 / 100 : 12) / 100);
  v.temperature_c = profile.temperature_idle_c + (in_use ? 4 : 0) + load * 35 / 100;
  v.fan_percent = profile.has_fan ? 30 + load * 40 / 100 : 0;
  v.max_sm_mhz = profile.clock_khz / 1000;
  v.max_memory_mhz = profile.memory_clock_khz / 1000;
  v.sm_mhz = in_use ? v.max_sm_mhz : v.max_sm_mhz * 9 / 100;
  v.memory_mhz = v.max_memory_mhz;
  v.pstate = in_use ? NVML_PSTATE_0 : NVML_PSTATE_8;
  return v;
}

}  // namespace sluice::sim
