// Charging the shared ledger on behalf of this process: what every allocating hook uses. See memory.h for the three
// steps and ledger.h for the rules between processes.
#pragma once

#include "guest/guest.h"

namespace sluice::guest {

// True where the grant limits memory, so that calls are booked.
bool booked(const Guest* guest, uint32_t card);

// Charges `bytes` to this process on the card. When the sum would pass the limit, what can be stale is looked at again
// (caches of pools that shrank, overhead that was only estimated) before it is refused. kNoSlot and a mutex that
// could not be had are refusals too. Returns CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY.
CUresult reserve_memory(Guest* guest, uint32_t card, uint64_t bytes);
// Charges without asking (memory that the card has already given).
void charge_memory(Guest* guest, uint32_t card, uint64_t bytes);
void give_back_memory(Guest* guest, uint32_t card, uint64_t bytes);
// Moves a charge of `from` bytes to `to`; never asks.
void adjust_memory(Guest* guest, uint32_t card, uint64_t from_bytes, uint64_t to_bytes);

// Bracket around a driver call that changes what the card spends, so that no measurement is taken across it.
class Operation {
 public:
  Operation(Guest* guest, uint32_t card) : guest_(guest), card_(card) {
    guest_->memory.cards[card_].operations.fetch_add(1, std::memory_order_acq_rel);
    guest_->points.at(kBeforeDriver);
  }
  ~Operation() {
    CardMemory& memory = guest_->memory.cards[card_];
    memory.operations_done.fetch_add(1, std::memory_order_acq_rel);
    memory.operations.fetch_sub(1, std::memory_order_acq_rel);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  Guest* guest_;
  uint32_t card_;
};

// Runs `call` (returning CUresult), again with growing pauses while the driver says that the card is full: the ledger
// has room, so somebody's memory is on its way back (a killed process is torn down after its slot is free). About a
// second in all; at most once in ten seconds per guest, so that a card that is full for good does not slow a program
// that probes.
template <typename Call>
CUresult retry_while_full(Guest* guest, Call&& call) {
  CUresult result = call();
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  std::atomic<uint64_t>& last_ns = guest->memory.last_retry_ns;
  const uint64_t now_ns = guest->seams.clock->now_ns();
  const uint64_t last = last_ns.load(std::memory_order_relaxed);
  if (last != 0 && now_ns - last < 10'000'000'000ull) return result;
  for (uint64_t pause_ns = 1'000'000; pause_ns <= 512'000'000; pause_ns *= 2) {
    guest->seams.waiter->sleep_ns(pause_ns);
    result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  last_ns.store(guest->seams.clock->now_ns(), std::memory_order_relaxed);
  return result;
}

// Measures by NVML what the card spends on this process and charges the part that no booked allocation explains
// (contexts, code, heaps). `force`: even if measured less than 100 ms ago.
enum class Measured : uint32_t {
  kYes,
  kBusy,   // a memory operation or another measurement was under way, or the last one is too recent
  kSilent  // there is no context, no NVML, or it does not list this process
};
Measured measure_overhead(Guest* guest, uint32_t card, bool force);

// Reads the pools' and graphs' reserved memory again and adjusts their charges: they shrink at synchronisation points.
void refresh_pools(Guest* guest, uint32_t card);

// The graphs' part of it.
void refresh_graph_memory(Guest* guest, uint32_t card);

// A linear allocation taken out of the book before the driver frees it, since another thread may get the same address
// the moment it is free. unbook: false = not in the book, the driver's business alone. Then settle_free after the
// driver's success or rebook after its failure.
bool unbook(Guest* guest, uint64_t address, Allocation& entry);
void rebook(Guest* guest, uint64_t address, const Allocation& entry);
void settle_free(Guest* guest, uint64_t address, const Allocation& entry);

// The same for what is shared with other processes and not in that book: memory of pools.
struct FreedShare {
  uint64_t exports = 0;
  uint64_t claim = 0;
  uint32_t card = 0;
  CUcontext context = nullptr;
};
FreedShare unbook_shared(Guest* guest, uint64_t address);
void settle_shared(Guest* guest, uint64_t address, const FreedShare& freed, CUresult result);

template <typename Call>
CUresult free_linear(Guest* guest, uint64_t address, Call&& call) {
  Allocation entry = {};
  if (!unbook(guest, address, entry)) {
    if (guest->memory.shares.load(std::memory_order_relaxed) == 0) return call();
    const FreedShare shared = unbook_shared(guest, address);
    const CUresult result = call();
    settle_shared(guest, address, shared, result);
    return result;
  }
  CUresult result;
  {
    Operation operation(guest, entry.card);
    guest->points.at(kBeforeDriverFree);
    result = call();
    guest->points.at(kAfterDriverFree);
  }
  if (result == CUDA_SUCCESS) {
    settle_free(guest, address, entry);
  } else {
    rebook(guest, address, entry);
  }
  return result;
}

// Un-charges what died with a context: its linear memory, arrays and limits. `context` was just destroyed or reset.
void forget_context(Guest* guest, uint32_t card, CUcontext context);

// What programs are told about a card, after refreshing what may have shrunk.
Ledger::View memory_view(Guest* guest, uint32_t card);

}  // namespace sluice::guest
