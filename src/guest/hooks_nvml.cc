// Hooks of the management library. Memory is the ledger's view, the same that cuMemGetInfo gives; utilisation is the
// container's share of the card; process lists hold the processes that own a slot of the grant, so a container that
// shares a PID namespace with others (or a driver that does not filter) shows no neighbours.
#include "guest/ledger.h"
#include "guest/nvml_view.h"
#include "guest/text.h"

namespace sluice::guest {

namespace {

constexpr unsigned int kMaxRealDevices = 256;
constexpr unsigned int kListRoom = 1024;  // processes taken from the real library at once

bool refused(const Guest* guest) {
  return guest->state.load(std::memory_order_acquire) != kReady || guest->refusal != page::kRefusalNone;
}

uint32_t card_of_uuid(Guest* guest, const char* uuid) {
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    char own[64];
    format_uuid(guest->cards[card].grant->uuid, own);
    if (text_equal(own, uuid)) return card;
  }
  return kNoCard;
}

// Card of a handle; kNoCard for handles of other kinds (MIG) and cards that the grant does not name.
uint32_t card_of(Guest* guest, NvmlView* view, nvmlDevice_t device) {
  if (device == nullptr || refused(guest)) return kNoCard;
  const uint64_t key = reinterpret_cast<uint64_t>(device);
  {
    SpinGuard guard(view->lock, guest->seams.waiter);
    if (uint32_t* known = view->card_of_handle.find(key)) return *known;
  }
  char uuid[96] = {};
  if (view->real.nvmlDeviceGetUUID(device, uuid, sizeof uuid - 1) != NVML_SUCCESS) return kNoCard;
  const uint32_t card = card_of_uuid(guest, uuid);
  SpinGuard guard(view->lock, guest->seams.waiter);
  view->card_of_handle.insert(key, card);
  return card;
}

bool limited(const Guest* guest, uint32_t card) {
  return card < guest->card_count && guest->cards[card].grant->memory_limit_bytes.load(std::memory_order_relaxed) != 0;
}

// The real indices of the grant's cards. False while the library is not initialised.
bool learn_indices(Guest* guest, NvmlView* view) {
  if (view->indices_known.load(std::memory_order_acquire) != 0) return true;
  unsigned int count = 0;
  if (refused(guest) || view->real.nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS) return false;
  unsigned int visible[page::kMaxCards];
  unsigned int visible_count = 0;
  for (unsigned int index = 0; index < count && index < kMaxRealDevices; ++index) {
    nvmlDevice_t device = nullptr;
    if (view->real.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS) continue;
    if (card_of(guest, view, device) != kNoCard && visible_count < page::kMaxCards) visible[visible_count++] = index;
  }
  SpinGuard guard(view->lock, guest->seams.waiter);
  for (unsigned int i = 0; i < visible_count; ++i) view->visible[i] = visible[i];
  view->visible_count = visible_count;
  view->indices_known.store(1, std::memory_order_release);
  return true;
}

template <typename Call>
nvmlReturn_t init(Call&& call) {
  Guest* guest = enter();
  if (refused(guest)) return NVML_ERROR_DRIVER_NOT_LOADED;
  return call(current_nvml());
}

template <typename Function>
nvmlReturn_t count(Function function, unsigned int* out) {
  Guest* guest = current_guest();
  const nvmlReturn_t result = function(out);
  if (result == NVML_SUCCESS && out != nullptr && learn_indices(guest, current_nvml())) {
    *out = current_nvml()->visible_count;
  }
  return result;
}

template <typename Function>
nvmlReturn_t by_index(Function function, unsigned int index, nvmlDevice_t* device) {
  Guest* guest = current_guest();
  NvmlView* view = current_nvml();
  if (!learn_indices(guest, view)) return function(index, device);
  if (index >= view->visible_count) return NVML_ERROR_INVALID_ARGUMENT;
  return function(view->visible[index], device);
}

// Asks the real library for everything, keeps the container's own and hands out in the library's manner: with too
// little room, the number that is needed.
template <typename Info, typename Function>
nvmlReturn_t processes(Function function, nvmlDevice_t device, unsigned int* room, Info* out) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const uint32_t card = card_of(guest, view, device);
  if (card == kNoCard || room == nullptr) return (view->real.*function)(device, room, out);
  Info* all = static_cast<Info*>(sys::map_pages(kListRoom * sizeof(Info)));
  if (all == nullptr) return NVML_ERROR_MEMORY;
  unsigned int all_count = kListRoom;
  nvmlReturn_t result = (view->real.*function)(device, &all_count, all);
  if (result == NVML_SUCCESS) {
    OwnPids own;
    own_pids(guest, card, own);
    unsigned int kept = 0;
    for (unsigned int i = 0; i < all_count && i < kListRoom; ++i) {
      if (!own.contains(all[i].pid)) continue;
      if (out != nullptr && kept < *room) out[kept] = all[i];
      ++kept;
    }
    if (kept > (out == nullptr ? 0 : *room)) result = NVML_ERROR_INSUFFICIENT_SIZE;
    *room = kept;
  }
  sys::unmap_pages(all, kListRoom * sizeof(Info));
  return result;
}

unsigned int percent(int permille) {
  return static_cast<unsigned int>((permille + 5) / 10);
}

}  // namespace
}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

nvmlReturn_t hook_nvmlInit(void) {
  return init([](NvmlView* view) { return view->real.nvmlInit(); });
}

nvmlReturn_t hook_nvmlInit_v2(void) {
  return init([](NvmlView* view) { return view->real.nvmlInit_v2(); });
}

nvmlReturn_t hook_nvmlInitWithFlags(unsigned int flags) {
  return init([flags](NvmlView* view) { return view->real.nvmlInitWithFlags(flags); });
}

const char* hook_nvmlErrorString(nvmlReturn_t code) {
  enter();
  if (current_nvml()->real.nvmlErrorString != nullptr) return current_nvml()->real.nvmlErrorString(code);
  // Tools print this after a failed start, when there may be no library to ask.
  switch (code) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t hook_nvmlDeviceGetCount(unsigned int* out) {
  enter();
  return count(current_nvml()->real.nvmlDeviceGetCount, out);
}

nvmlReturn_t hook_nvmlDeviceGetCount_v2(unsigned int* out) {
  enter();
  return count(current_nvml()->real.nvmlDeviceGetCount_v2, out);
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  enter();
  return by_index(current_nvml()->real.nvmlDeviceGetHandleByIndex, index, device);
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  enter();
  return by_index(current_nvml()->real.nvmlDeviceGetHandleByIndex_v2, index, device);
}

nvmlReturn_t hook_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetIndex(device, index);
  if (result != NVML_SUCCESS || index == nullptr || !learn_indices(guest, view)) return result;
  for (unsigned int i = 0; i < view->visible_count; ++i) {
    if (view->visible[i] == *index) {
      *index = i;
      break;
    }
  }
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetMemoryInfo(device, memory);
  const uint32_t card = result == NVML_SUCCESS && memory != nullptr ? card_of(guest, view, device) : kNoCard;
  if (!limited(guest, card)) return result;
  const Ledger::View seen = ledger_of(guest, card).view();
  memory->total = seen.total_bytes;
  memory->used = seen.used_bytes;
  memory->free = seen.free_bytes;
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetMemoryInfo_v2(device, memory);
  const uint32_t card = result == NVML_SUCCESS && memory != nullptr ? card_of(guest, view, device) : kNoCard;
  if (!limited(guest, card)) return result;
  const Ledger::View seen = ledger_of(guest, card).view();
  memory->total = seen.total_bytes;
  memory->used = seen.used_bytes;
  memory->free = seen.free_bytes;
  memory->reserved = 0;
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilisation) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetUtilizationRates(device, utilisation);
  const uint32_t card = result == NVML_SUCCESS && utilisation != nullptr ? card_of(guest, view, device) : kNoCard;
  if (card == kNoCard) return result;
  const int permille = utilisation_permille(guest, card);
  if (permille < 0) return result;
  utilisation->gpu = percent(permille);
  if (utilisation->memory > utilisation->gpu) utilisation->memory = utilisation->gpu;
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                       nvmlValueType_t* value_type, unsigned int* sample_count, nvmlSample_t* samples) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetSamples(device, type, since, value_type, sample_count, samples);
  const bool utilisation = type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
  if (result != NVML_SUCCESS || !utilisation || samples == nullptr || sample_count == nullptr) return result;
  const uint32_t card = card_of(guest, view, device);
  const int permille = card == kNoCard ? -1 : utilisation_permille(guest, card);
  if (permille < 0) return result;
  for (unsigned int i = 0; i < *sample_count; ++i) {
    if (type == NVML_GPU_UTILIZATION_SAMPLES || samples[i].sampleValue.uiVal > percent(permille)) {
      samples[i].sampleValue.uiVal = percent(permille);
    }
  }
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t* info) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetDynamicPstatesInfo(device, info);
  const uint32_t card = result == NVML_SUCCESS && info != nullptr ? card_of(guest, view, device) : kNoCard;
  const int permille = card == kNoCard ? -1 : utilisation_permille(guest, card);
  if (permille < 0) return result;
  // Domains: 0 graphics, 1 frame buffer, 2 video, 3 bus.
  info->utilization[0].percentage = percent(permille);
  if (info->utilization[1].percentage > percent(permille)) info->utilization[1].percentage = percent(permille);
  return result;
}

nvmlReturn_t hook_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                                  unsigned int* sample_count, unsigned long long since) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetProcessUtilization(device, samples, sample_count, since);
  if (result != NVML_SUCCESS || samples == nullptr || sample_count == nullptr) return result;
  const uint32_t card = card_of(guest, view, device);
  if (card == kNoCard) return result;
  OwnPids own;
  own_pids(guest, card, own);
  unsigned int kept = 0;
  for (unsigned int i = 0; i < *sample_count; ++i) {
    if (own.contains(samples[i].pid)) samples[kept++] = samples[i];
  }
  *sample_count = kept;
  return kept == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t* info) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetProcessesUtilizationInfo(device, info);
  if (result != NVML_SUCCESS || info == nullptr || info->procUtilArray == nullptr) return result;
  const uint32_t card = card_of(guest, view, device);
  if (card == kNoCard) return result;
  OwnPids own;
  own_pids(guest, card, own);
  unsigned int kept = 0;
  for (unsigned int i = 0; i < info->processSamplesCount; ++i) {
    if (own.contains(info->procUtilArray[i].pid)) info->procUtilArray[kept++] = info->procUtilArray[i];
  }
  info->processSamplesCount = kept;
  return kept == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

// The nine process lists: three kinds, three structure generations.
#define SLUICE_PROCESS_LIST(name, info)                                          \
  nvmlReturn_t hook_##name(nvmlDevice_t device, unsigned int* room, info* out) { \
    return processes<info>(&RealNvml::name, device, room, out);                  \
  }
SLUICE_PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
SLUICE_PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
#undef SLUICE_PROCESS_LIST

nvmlReturn_t hook_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  Guest* guest = enter();
  NvmlView* view = current_nvml();
  const nvmlReturn_t result = view->real.nvmlDeviceGetRunningProcessDetailList(device, list);
  if (result != NVML_SUCCESS || list == nullptr || list->procArray == nullptr) return result;
  const uint32_t card = card_of(guest, view, device);
  if (card == kNoCard) return result;
  OwnPids own;
  own_pids(guest, card, own);
  unsigned int kept = 0;
  for (unsigned int i = 0; i < list->numProcArrayEntries; ++i) {
    if (own.contains(list->procArray[i].pid)) list->procArray[kept++] = list->procArray[i];
  }
  list->numProcArrayEntries = kept;
  return result;
}

}  // extern "C"
