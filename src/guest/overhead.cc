// What a process costs the card besides its allocations: contexts, code, heaps. The driver's calls do not say how much,
// so a context is charged an estimate when it is made, and the estimate is replaced by a measurement: the bytes that
// NVML attributes to this process, less what the book explains.
//
// NVML lists processes by pid as this PID namespace sees them (drivers since 535); where it does not list this process,
// nothing is corrected here and the agent, which sees host pids, raises the slot through the grant.
#include "guest/booking.h"
#include "guest/text.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kMeasureEveryNs = 100'000'000;
constexpr unsigned int kMaxListed = 256;

enum NvmlState : uint32_t { kUntried = 0, kUsable = 1, kUnusable = 2 };

template <typename Function>
Function nvml_symbol(Guest* guest, const char* name) {
  return reinterpret_cast<Function>(guest->seams.driver->symbol(name));
}

// Under measure_lock.
bool nvml_device(Guest* guest, uint32_t card, nvmlDevice_t& device) {
  Memory& memory = guest->memory;
  if (memory.nvml_state.load(std::memory_order_relaxed) == kUntried) {
    auto init = nvml_symbol<decltype(&::nvmlInit_v2)>(guest, "nvmlInit_v2");
    const bool usable = init != nullptr && init() == NVML_SUCCESS;
    memory.nvml_state.store(usable ? kUsable : kUnusable, std::memory_order_relaxed);
  }
  if (memory.nvml_state.load(std::memory_order_relaxed) != kUsable) return false;
  device = memory.cards[card].nvml_device;
  if (device != nullptr) return true;
  auto by_uuid = nvml_symbol<decltype(&::nvmlDeviceGetHandleByUUID)>(guest, "nvmlDeviceGetHandleByUUID");
  char text[64];
  format_uuid(guest->cards[card].grant->uuid, text);
  if (by_uuid == nullptr || by_uuid(text, &device) != NVML_SUCCESS) return false;
  memory.cards[card].nvml_device = device;
  return true;
}

// Bytes that NVML attributes to this process on the device; false when it does not say.
bool own_bytes(Guest* guest, nvmlDevice_t device, uint64_t& bytes) {
  auto list = nvml_symbol<decltype(&::nvmlDeviceGetComputeRunningProcesses_v3)>(
      guest, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (list == nullptr) return false;
  nvmlProcessInfo_t processes[kMaxListed];
  unsigned int count = kMaxListed;
  if (list(device, &count, processes) != NVML_SUCCESS) return false;
  const unsigned int own = static_cast<unsigned int>(guest->seams.identity->own_pid());
  bool found = false;
  bytes = 0;
  for (unsigned int i = 0; i < count && i < kMaxListed; ++i) {
    if (processes[i].pid != own || processes[i].usedGpuMemory == ~0ull) continue;
    bytes += processes[i].usedGpuMemory;
    found = true;
  }
  return found;
}

// What a second copy of the library in this process has charged to the slot that both use: NVML knows the process only.
uint64_t charged_by_others(Guest* guest, uint32_t card) {
  const uint32_t slot = card_slot(guest, card);
  if (slot == kNoSlot) return 0;
  const CardMemory& memory = guest->memory.cards[card];
  const uint64_t own =
      memory.tracked_bytes.load(std::memory_order_acquire) + memory.overhead_bytes.load(std::memory_order_acquire);
  const uint64_t all = guest->cards[card].usage->slots[slot].reserved_bytes.load(std::memory_order_acquire);
  return all > own ? all - own : 0;
}

void replace_overhead(Guest* guest, uint32_t card, uint64_t bytes) {
  const uint32_t slot = card_slot(guest, card);
  if (slot == kNoSlot) return;
  const uint64_t old = guest->memory.cards[card].overhead_bytes.exchange(bytes, std::memory_order_acq_rel);
  Ledger ledger = ledger_of(guest, card);
  if (bytes > old) ledger.charge(slot, bytes - old);
  if (bytes < old) ledger.give_back(slot, old - bytes);
}

}  // namespace

Measured measure_overhead(Guest* guest, uint32_t card, bool force) {
  CardMemory& memory = guest->memory.cards[card];
  if (memory.contexts.load(std::memory_order_relaxed) == 0) return Measured::kSilent;
  const uint64_t now_ns = guest->seams.clock->now_ns();
  const uint64_t last_ns = memory.measured_at_ns.load(std::memory_order_relaxed);
  if (!force && last_ns != 0 && now_ns - last_ns < kMeasureEveryNs) return Measured::kBusy;
  if (!guest->memory.measure_lock.try_lock()) return Measured::kBusy;
  Measured measured = Measured::kBusy;
  nvmlDevice_t device = nullptr;
  const uint64_t done = memory.operations_done.load(std::memory_order_acquire);
  const bool quiet = memory.operations.load(std::memory_order_acquire) == 0;
  uint64_t bytes = 0;
  const uint64_t explained =
      memory.tracked_bytes.load(std::memory_order_acquire) - memory.managed_bytes.load(std::memory_order_acquire);
  const bool told = quiet && nvml_device(guest, card, device) && own_bytes(guest, device, bytes);
  if (quiet && !told) measured = Measured::kSilent;
  if (told && memory.operations.load(std::memory_order_acquire) == 0 &&
      memory.operations_done.load(std::memory_order_acquire) == done) {
    const uint64_t charged = memory.overhead_bytes.load(std::memory_order_relaxed);
    const uint64_t others = charged_by_others(guest, card);
    uint64_t overhead = bytes > explained + others ? bytes - explained - others : 0;
    // Limits that were raised are charged at once but spent by the driver later: until then they would read as less
    // overhead, so while there are any a measurement only raises. So it does beside another copy of the library, which
    // may be between its reservation and its allocation.
    const bool only_raise = memory.limits_bytes.load(std::memory_order_relaxed) != 0 || others != 0;
    if (only_raise && overhead < charged) overhead = charged;
    replace_overhead(guest, card, overhead);
    memory.overhead_stale.store(0, std::memory_order_relaxed);
    measured = Measured::kYes;
  }
  memory.measured_at_ns.store(now_ns, std::memory_order_relaxed);
  guest->memory.measure_lock.unlock();
  return measured;
}

}  // namespace sluice::guest
