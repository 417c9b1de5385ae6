#include "guest/nvml_view.h"

#include "governor/account.h"
#include "guest/text.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kHeartbeatFreshNs = 1'000'000'000;

nvmlReturn_t answer_function_not_found() {
  return NVML_ERROR_FUNCTION_NOT_FOUND;
}
nvmlReturn_t answer_uninitialized() {
  return NVML_ERROR_UNINITIALIZED;
}

}  // namespace

void resolve_real_nvml(Guest* guest) {
  Driver* driver = guest->seams.driver;
  RealNvml& real_table = current_nvml()->real;
  void* stand_in = driver != nullptr ? reinterpret_cast<void*>(&answer_function_not_found)
                                     : reinterpret_cast<void*>(&answer_uninitialized);
#define SLUICE_CALL(name)                                                                             \
  {                                                                                                   \
    void* real = driver != nullptr ? driver->symbol(#name) : nullptr;                                 \
    real_table.name = reinterpret_cast<decltype(real_table.name)>(real != nullptr ? real : stand_in); \
  }
#define SLUICE_HOOK(name, part) SLUICE_CALL(name)
#include "guest/nvml_hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
  // The one function that does not return a code.
  if (reinterpret_cast<void*>(real_table.nvmlErrorString) == stand_in) real_table.nvmlErrorString = nullptr;
}

int utilisation_permille(Guest* guest, uint32_t card) {
  const page::GrantCard& grant = *guest->cards[card].grant;
  const uint64_t now_ns = guest->seams.clock->now_ns();
  const uint32_t core = grant.core_permille.load(std::memory_order_relaxed);
  if (core != 0 && core < 1000) {
    // Where compute is limited the container's processes have measured the second that ends now; the agent's figure is
    // of the same account, up to a tenth of a second older.
    const uint64_t busy_ns = governor::busy_last_second(*guest->cards[card].usage, now_ns);
    return busy_ns >= 1'000'000'000 ? 1000 : static_cast<int>(busy_ns / 1'000'000);
  }
  const uint64_t heartbeat_ns = guest->grant->header.heartbeat_ns.load(std::memory_order_relaxed);
  if (heartbeat_ns == 0 || now_ns - heartbeat_ns >= kHeartbeatFreshNs) return -1;
  return static_cast<int>(grant.utilisation_permille.load(std::memory_order_relaxed));
}

bool OwnPids::contains(unsigned int pid) const {
  for (uint32_t i = 0; i < count; ++i) {
    if (pids[i] == static_cast<int>(pid)) return true;
  }
  return false;
}

void own_pids(Guest* guest, uint32_t card, OwnPids& out) {
  out.count = 0;
  out.pids[out.count++] = guest->seams.identity->own_pid();
  const page::UsageCard& usage = *guest->cards[card].usage;
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    if (usage.slots[slot].state.load(std::memory_order_acquire) != page::kSlotLive) continue;
    const int pid = guest->seams.identity->owner_pid(page::slot_lock_byte(card, slot));
    if (pid > 0) out.pids[out.count++] = pid;
  }
}

}  // namespace sluice::guest
