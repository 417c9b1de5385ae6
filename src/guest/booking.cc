#include "guest/booking.h"

#include "guest/notify.h"
#include "guest/share.h"

namespace sluice::guest {

namespace {
constexpr uint64_t kMeasureAnywayNs = 1'000'000'000;  // code grows without a call that says so (lazy loading)
constexpr uint64_t kBuryAfterNs = 2'500'000'000;      // the agent has done it by then, where there is one
constexpr uint64_t kOutwaitNs = 5'000'000'000;
constexpr uint64_t kLookAgainNs = 10'000'000;

// A program that ends leaves its memory on the card a little longer, and charged as long: by the agent, until the card
// no longer lists it. Who asks for it in that time waits instead of failing for want of memory that is about to be
// free. Where the agent is away, what is provably nobody's is given back after the same two seconds.
Reserve outwait_the_dead(Guest* guest, uint32_t card, uint32_t slot, uint64_t bytes) {
  Ledger ledger = ledger_of(guest, card);
  const uint64_t start_ns = guest->seams.clock->now_ns();
  uint64_t mark = 0;
  uint64_t since_ns = start_ns;
  for (uint64_t now_ns = start_ns; now_ns - start_ns < kOutwaitNs; now_ns = guest->seams.clock->now_ns()) {
    const Ledger::Dead dead = ledger.dead(slot);
    const uint64_t sum = ledger.charged_bytes();
    const uint64_t living = sum > dead.bytes ? sum - dead.bytes : 0;
    const uint64_t limit = guest->cards[card].grant->memory_limit_bytes.load(std::memory_order_relaxed);
    if (sum <= limit && bytes <= limit - sum) return ledger.reserve(slot, bytes);
    if (dead.bytes == 0 || living > limit || bytes > limit - living) break;
    if (dead.mark != mark) since_ns = now_ns;
    mark = dead.mark;
    if (now_ns - since_ns >= kBuryAfterNs) ledger.bury(slot, mark);
    guest->seams.waiter->sleep_ns(kLookAgainNs);
  }
  return Reserve::kOverLimit;
}

}  // namespace

bool booked(const Guest* guest, uint32_t card) {
  return card < guest->card_count && guest->cards[card].grant->memory_limit_bytes.load(std::memory_order_relaxed) != 0;
}

CUresult reserve_memory(Guest* guest, uint32_t card, uint64_t bytes) {
  const uint32_t slot = claim_slot(guest, card);
  if (slot == kNoSlot) return CUDA_ERROR_OUT_OF_MEMORY;
  CardMemory& memory = guest->memory.cards[card];
  if (memory.contexts.load(std::memory_order_relaxed) != 0 &&
      (memory.overhead_stale.load(std::memory_order_relaxed) != 0 ||
       guest->seams.clock->now_ns() - memory.measured_at_ns.load(std::memory_order_relaxed) > kMeasureAnywayNs)) {
    measure_overhead(guest, card, false);
  }
  Ledger ledger = ledger_of(guest, card);
  Reserve answer = ledger.reserve(slot, bytes);
  if (answer == Reserve::kOverLimit) {
    refresh_pools(guest, card);
    measure_overhead(guest, card, false);
    answer = ledger.reserve(slot, bytes);
  }
  if (answer == Reserve::kOverLimit) answer = outwait_the_dead(guest, card, slot, bytes);
  if (answer != Reserve::kGranted) return CUDA_ERROR_OUT_OF_MEMORY;
  memory.tracked_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void charge_memory(Guest* guest, uint32_t card, uint64_t bytes) {
  const uint32_t slot = claim_slot(guest, card);
  if (slot == kNoSlot) return;
  ledger_of(guest, card).charge(slot, bytes);
  guest->memory.cards[card].tracked_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void give_back_memory(Guest* guest, uint32_t card, uint64_t bytes) {
  const uint32_t slot = card_slot(guest, card);
  if (slot == kNoSlot || bytes == 0) return;
  guest->memory.cards[card].tracked_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  ledger_of(guest, card).give_back(slot, bytes);
}

void adjust_memory(Guest* guest, uint32_t card, uint64_t from_bytes, uint64_t to_bytes) {
  if (to_bytes > from_bytes) charge_memory(guest, card, to_bytes - from_bytes);
  if (to_bytes < from_bytes) give_back_memory(guest, card, from_bytes - to_bytes);
}

Ledger::View memory_view(Guest* guest, uint32_t card) {
  if (booked(guest, card) && card_slot(guest, card) != kNoSlot) refresh_pools(guest, card);
  return ledger_of(guest, card).view();
}

bool unbook(Guest* guest, uint64_t address, Allocation& entry) {
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  if (!guest->memory.allocations.erase(address, &entry)) return false;
  entry.exports = share_take(guest, address);
  return true;
}

void rebook(Guest* guest, uint64_t address, const Allocation& entry) {
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  guest->memory.allocations.insert(address, entry);
  share_put_back(guest, address, entry.exports);
}

// Memory of a pool that was exported or imported; nothing else that is not in the book of allocations is shared.
FreedShare unbook_shared(Guest* guest, uint64_t address) {
  FreedShare freed;
  freed.exports = share_take(guest, address);
  const Claim claim = unbook_import(guest, address, &freed.context);
  freed.claim = claim.byte;
  freed.card = claim.card;
  return freed;
}

void settle_shared(Guest* guest, uint64_t address, const FreedShare& freed, CUresult result) {
  const Claim claim = {freed.claim, freed.card};
  if (result == CUDA_SUCCESS) {
    share_drop(guest, freed.exports);
    drop_claim(guest, claim);
  } else {
    share_put_back(guest, address, freed.exports);
    book_import(guest, address, claim, freed.context);
  }
}

void settle_free(Guest* guest, uint64_t address, const Allocation& entry) {
  share_drop(guest, entry.exports);
  uint64_t bytes = entry.bytes;
  if (entry.small_block != 0) {
    bytes = 0;
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    uint32_t* count = guest->memory.small_blocks.find(address / kBlockBytes);
    if (count != nullptr && --*count == 0) {
      guest->memory.small_blocks.erase(address / kBlockBytes);
      bytes = kBlockBytes;
    }
  }
  if (entry.managed != 0) guest->memory.cards[entry.card].managed_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  give_back_memory(guest, entry.card, bytes);
}

void memory_forget(Guest* guest) {
  Memory& memory = guest->memory;
  memory.lock.reset();
  memory.measure_lock.reset();
  memory.pool_lock.reset();
  memory.allocations.clear();
  memory.small_blocks.clear();
  memory.arrays.clear();
  memory.physical.clear();
  memory.mappings.clear();
  memory.pools.clear();
  memory.contexts.clear();
  memory.graph_execs.clear();
  memory.unloaded_libraries.clear();
  memory.share_lock.reset();
  memory.share_locks.clear();
  memory.exported.clear();
  memory.imports.clear();
  memory.shares.store(0, std::memory_order_relaxed);
  for (CardMemory& card : memory.cards) {
    card.tracked_bytes.store(0, std::memory_order_relaxed);
    card.managed_bytes.store(0, std::memory_order_relaxed);
    card.limits_bytes.store(0, std::memory_order_relaxed);
    card.overhead_bytes.store(0, std::memory_order_relaxed);
    card.contexts.store(0, std::memory_order_relaxed);
    card.operations.store(0, std::memory_order_relaxed);
    card.overhead_stale.store(0, std::memory_order_relaxed);
    card.measured_at_ns.store(0, std::memory_order_relaxed);
    card.graph_charged_bytes = 0;
    card.primary = Primary{};
  }
}

}  // namespace sluice::guest
