// The guest: everything that one copy of the library knows, as one object. The shipped libcuda.so.1 and
// libnvidia-ml.so.1 hold one each (constinit, in shipped_*.cc); the accuracy harness and the tests make as many as they
// like and say through current_guest() whose turn it is. No other globals exist in guest code.
//
// Life: a zeroed Guest with `attach` set is new. The first intercepted call runs start(): attach() fills the seams and
// maps the pages (or says why not, in `refusal`), then the table of real functions is resolved. A refused guest serves
// nothing: cuInit gives CUDA_ERROR_SYSTEM_NOT_READY, and since the real cuInit is never reached the driver itself
// answers everything else with CUDA_ERROR_NOT_INITIALIZED.
//
// Hooks are `extern "C" CUresult hook_<exported name>(...)`, listed in hooks.inc, spread over hooks_*.cc by subject. A
// hook begins with `Guest* guest = enter();` and reaches the driver through `guest->cuda.<exported name>(...)`.
#pragma once

#include <atomic>
#include <cstdint>

#include "guest/compute.h"
#include "guest/ledger.h"
#include "guest/map.h"
#include "guest/memory.h"
#include "guest/real_cuda.h"
#include "guest/seams.h"
#include "guest/spin.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::guest {

inline constexpr uint32_t kNoCard = ~0u;
inline constexpr uint32_t kNoSlot = ~0u;

enum StartState : uint32_t { kNew = 0, kStarting = 1, kReady = 2 };

// One card of the grant.
struct Card {
  const page::GrantCard* grant;  // nullptr beyond card_count
  page::UsageCard* usage;
  CUdevice device;             // the real driver's number, -1 until devices are known or when the driver lacks it
  std::atomic<uint32_t> slot;  // this process's slot plus 1; 0 = none claimed. card_slot() reads it
};

struct Guest {
  constexpr Guest() = default;
  constexpr Guest(uint32_t (*attach_function)(Guest*), void (*resolve_function)(Guest*))
      : attach(attach_function), resolve(resolve_function) {}

  Seams seams{};
  // Fills seams, grant and usage; called once, in the first intercepted call. Returns page::RefusalCode.
  uint32_t (*attach)(Guest* guest) = nullptr;
  // Fills the table of real functions: resolve_real_cuda, or what libnvidia-ml.so.1 needs.
  void (*resolve)(Guest* guest) = nullptr;
  void* attach_context{};  // for attach(), whatever it likes

  std::atomic<uint32_t> state{};    // StartState
  std::atomic<uint32_t> starter{};  // thread that runs start(), so that its own calls back into us do not wait for it
  uint32_t refusal{};               // page::RefusalCode; not 0: refused
  std::atomic<uint32_t> devices_known{};
  int visible_devices[page::kMaxCards]{};  // real ordinals of the grant's cards, in the driver's order
  int visible_count{};

  const page::Grant* grant{};
  page::Usage* usage{};
  uint32_t card_count{};
  Card cards[page::kMaxCards]{};

  RealCuda cuda{};
  HashMap<void*> hook_by_real{};  // see hook_for_real()
  SpinLock devices_lock{};
  SpinLock fork_lock{};
  Points points{};  // tests only; empty in the shipped libraries
  Memory memory{};
  Compute compute{};
};

// The guest whose program is calling. Defined by whoever links guest_core.
Guest* current_guest();

// Runs the start-up once; returns when the guest is ready (or when the caller is the start-up itself, re-entered).
void start(Guest* guest);

inline Guest* enter() {
  Guest* guest = current_guest();
  if (__builtin_expect(guest->state.load(std::memory_order_acquire) != kReady, 0)) start(guest);
  return guest;
}

// Card of a real device number; kNoCard when the grant does not name it. Asks the driver for UUIDs at the first call
// after cuInit; a table look-up after that.
uint32_t card_of_device(Guest* guest, CUdevice device);
// Fills Card::device and visible_devices by UUID. False until the driver is initialised.
bool learn_devices(Guest* guest);
// Card of the calling thread's current context; kNoCard when there is none. One driver call: not for launch paths.
uint32_t current_card(Guest* guest);

// The calling thread's current context, nullptr when there is none.
CUcontext current_context(Guest* guest);

// The slot of this process on a card, claimed when there is none yet (a fork starts anew). kNoSlot: all slots are taken
// or locks do not work, and the reason is on the usage page.
uint32_t claim_slot(Guest* guest, uint32_t card);
inline uint32_t card_slot(const Guest* guest, uint32_t card) {
  return guest->cards[card].slot.load(std::memory_order_acquire) - 1u;
}

// Starts anew in a forked child: forgets the parent's slots, book and contexts. Cheap when not forked; called by cuInit
// and before anything is charged.
void renew_after_fork(Guest* guest);

// The ledger of a card, as a view over the pages.
Ledger ledger_of(Guest* guest, uint32_t card);

// Notes a reason on a card's account, where doctor finds it.
void note_refusal(Guest* guest, uint32_t card, uint32_t code);

}  // namespace sluice::guest
