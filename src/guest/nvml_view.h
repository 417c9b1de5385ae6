// What a container sees through the management library: the cards of its grant, its limit as their memory, its own use,
// its own processes. Beside the Guest of the library, one NvmlView; no state of its own but look-ups.
#pragma once

#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"
#include "guest/guest.h"

namespace sluice::guest {

struct RealNvml {
#define SLUICE_HOOK(name, part) decltype(&::name) name;
#define SLUICE_CALL(name) decltype(&::name) name;
#include "guest/nvml_hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
};

struct NvmlView {
  RealNvml real;
  SpinLock lock;
  HashMap<uint32_t> card_of_handle;  // kNoCard: another kind of device
  std::atomic<uint32_t> indices_known;
  unsigned int visible[page::kMaxCards];  // real indices of the grant's cards, in the library's order
  unsigned int visible_count;
};

// The view that belongs to current_guest().
NvmlView* current_nvml();

// Guest::resolve of libnvidia-ml.so.1.
void resolve_real_nvml(Guest* guest);

// The container's share of the card over the last second in 1/1000; -1: not known, the real figure stands.
int utilisation_permille(Guest* guest, uint32_t card);

// Pids (as this process sees pids) of the container's processes on a card: owners of its slots, and this process.
struct OwnPids {
  int pids[page::kMaxProcesses + 1];
  uint32_t count;
  bool contains(unsigned int pid) const;
};
void own_pids(Guest* guest, uint32_t card, OwnPids& out);

}  // namespace sluice::guest

extern "C" {
#define SLUICE_HOOK(name, part) decltype(::name) hook_##name;
#define SLUICE_CALL(name)
#include "guest/nvml_hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
}
