// What the simulated management library (libnvidia-ml.so.1) keeps per process, and the way every query takes.
//
// NVML needs no CUDA: a process viewer opens the cards' files by itself and never registers as a user of the card. All
// bodies go through with_device(): initialised?, a fault that was asked for?, a live handle?, then the card locked and
// brought to the present, so that a query sees every command that ended before it, whoever runs it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "abi/nvml.h"
#include "sim/card.h"
#include "sim/engine.h"
#include "sim/host.h"
#include "sim/nvml_bodies.h"
#include "sim/process.h"

namespace sluice::sim {

// A card as NVML has it open; nvmlDevice_t points at one. Never freed while the process lives, so that a handle from
// before nvmlShutdown is recognised and refused instead of being followed.
struct NvmlDevice {
  int index = 0;
  std::unique_ptr<Card> card;
};

struct NvmlEventSet {
  struct Watch {
    NvmlDevice* device;
    uint32_t xids_seen;
  };
  std::vector<Watch> watches;
};

// Totals of a card at an instant; what nvmlGpmSampleGet writes down.
struct GpmSample {
  NvmlDevice* device = nullptr;
  uint64_t card_ns = 0, executing_ns = 0;
};

struct NvmlState {
  std::mutex lock;  // guards all of it
  int references = 0;
  std::vector<std::unique_ptr<NvmlDevice>> devices;
  std::vector<std::unique_ptr<NvmlEventSet>> event_sets;
  std::vector<std::unique_ptr<GpmSample>> gpm_samples;
};

// Of the calling thread's process; made at the first call.
NvmlState& nvml_state();

// Faults that were asked for this call: waits if it is to be slow; true when it is to fail, with the result.
bool nvml_fault(Card& card, std::string_view call, nvmlReturn_t* result);

// NVML_SUCCESS, NVML_ERROR_UNINITIALIZED or NVML_ERROR_INVALID_ARGUMENT (no such handle).
nvmlReturn_t find_device(nvmlDevice_t handle, NvmlDevice** device);

// A card under lock, at the present.
struct NvmlView {
  Card& card;
  NvmlDevice& device;
  uint64_t now_ns;  // card time
};

// Microseconds since 1970 of a card time (with an injected clock: of that clock), as NVML stamps samples.
uint64_t nvml_timestamp_us(Card& card, uint64_t card_ns);

// The index of a process in the caller's eyes and what NVML knows of it.
struct NvmlProcess {
  Index record = kNone;
  int32_t pid = 0, host_pid = 0;
  uint64_t pid_namespace = 0;
  bool simulated = false;
  uint32_t started_ticks = 0;
  uint64_t bytes = 0;
  std::string name;
};
// Processes with a context, or whose memory is not freed yet. With the card locked; pids are the processes' own.
std::vector<NvmlProcess> card_processes(Card& card);
// Gives each process the pid by which the caller can see it. With the PID-namespace filter (drivers since 580) those
// that the caller cannot see are left out; without it they keep the pid of the outermost namespace. No lock held.
std::vector<NvmlProcess> visible_processes(std::vector<NvmlProcess> all, bool filter);

// The prologue common to every query of a device; `body` takes an NvmlView and returns the result.
template <typename Body>
nvmlReturn_t with_device(std::string_view call, nvmlDevice_t handle, Body body) {
  NvmlDevice* device = nullptr;
  nvmlReturn_t result = find_device(handle, &device);
  if (result != NVML_SUCCESS) return result;
  Card& card = *device->card;
  if (nvml_fault(card, call, &result)) return result;
  Host& host = current_process().host();
  host.charge(Charge::kNvml, card.knob_ns(Knob::nvml_call_ns));
  Card::Guard guard(card);
  card.reap();
  if (card.header().lost) return NVML_ERROR_GPU_IS_LOST;
  const uint64_t now_ns = card.card_time(host.now_ns());
  advance(card, now_ns);
  NvmlView view{card, *device, now_ns};
  return body(view);
}

// A query with one answer: NULL is refused, else `body` computes the value with the card locked.
template <typename T, typename Body>
nvmlReturn_t answer(std::string_view call, nvmlDevice_t handle, T* out, Body body) {
  return with_device(call, handle, [&](NvmlView& view) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = static_cast<T>(body(view));
    return NVML_SUCCESS;
  });
}

// Copies a text with its end into a caller's buffer, or NVML_ERROR_INSUFFICIENT_SIZE.
nvmlReturn_t give_text(std::string_view text, char* out, unsigned length);

// Hands out a list by NVML's protocol: *count is the room on entry and the number of entries on return.
template <typename T>
nvmlReturn_t give_list(const std::vector<T>& list, unsigned* count, T* out) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned room = *count;
  *count = static_cast<unsigned>(list.size());
  if (list.empty()) return NVML_SUCCESS;
  if (room < list.size() || out == nullptr) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::copy(list.begin(), list.end(), out);
  return NVML_SUCCESS;
}

// What sensors show. The card has none, so they follow from its load by simple rules: heat and power rise with the
// share of the last second in which kernels ran.
struct Vitals {
  unsigned utilisation_percent, memory_percent;
  unsigned power_mw, temperature_c, fan_percent;
  unsigned sm_mhz, memory_mhz, max_sm_mhz, max_memory_mhz;
  nvmlPstates_t pstate;
};
Vitals vitals(NvmlView& view);

inline bool is_root() {
  return geteuid() == 0;
}

}  // namespace sluice::sim
