#include "guest/ledger.h"

namespace sluice::guest {

namespace {

uint64_t add_saturating(uint64_t a, uint64_t b) {
  return a + b < a ? ~0ull : a + b;
}

}  // namespace

bool Ledger::lock() {
  const uint64_t byte = page::ledger_lock_byte(card);
  const uint64_t mine = seams.identity->exec_token();
  std::atomic<uint64_t>& word = usage->account.ledger_owner;
  uint64_t deadline_ns = 0;
  for (uint32_t round = 0;; ++round) {
    uint64_t seen = word.load(std::memory_order_acquire);
    if (seen != mine && seams.identity->try_lock(byte)) {
      if (word.compare_exchange_strong(seen, mine, std::memory_order_acq_rel)) {
        points.at(kMutexWordTaken);
        if (seams.identity->try_lock(byte)) {
          points.at(kMutexHeld);
          return true;
        }
        uint64_t expected = mine;
        word.compare_exchange_strong(expected, 0, std::memory_order_release);
      }
    }
    const uint64_t now_ns = seams.clock->now_ns();
    if (deadline_ns == 0) deadline_ns = now_ns + kMutexWaitNs;
    if (now_ns >= deadline_ns) {
      usage->account.ledger_waits_timed_out.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    // A holder needs a few microseconds; one that was descheduled needs longer.
    if (round < 64) {
      seams.waiter->spin_pause();
    } else {
      seams.waiter->sleep_ns(round < 256 ? 20'000 : 200'000);
    }
  }
}

void Ledger::unlock() {
  uint64_t mine = seams.identity->exec_token();
  seams.identity->unlock(page::ledger_lock_byte(card));
  points.at(kMutexLockDropped);
  usage->account.ledger_owner.compare_exchange_strong(mine, 0, std::memory_order_release);
}

uint32_t Ledger::find_own(uint64_t token) const {
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    const page::Slot& entry = usage->slots[slot];
    if (entry.state.load(std::memory_order_acquire) == page::kSlotLive &&
        entry.exec_token.load(std::memory_order_relaxed) == token &&
        seams.identity->owner_pid(page::slot_lock_byte(card, slot)) == 0 &&
        seams.identity->try_lock(page::slot_lock_byte(card, slot))) {
      return slot;
    }
  }
  return kNoLedgerSlot;
}

// Under the mutex, so that no other process is claiming.
bool Ledger::try_claim(uint32_t slot, uint64_t token) {
  page::Slot& entry = usage->slots[slot];
  const bool empty = entry.reserved_bytes.load(std::memory_order_acquire) == 0;
  // A live slot with bytes belongs to a living process or is kept for a dead one's.
  if (entry.state.load(std::memory_order_acquire) == page::kSlotLive && !empty) return false;
  if (entry.state.load(std::memory_order_relaxed) == page::kSlotLive &&
      entry.exec_token.load(std::memory_order_relaxed) == token) {
    return false;  // our own other copy's: find_own() has decided about it
  }
  if (!seams.identity->try_lock(page::slot_lock_byte(card, slot))) return false;
  points.at(kClaimLocked);
  // The owner may have charged it between the look above and the lock, and died.
  if (entry.reserved_bytes.load(std::memory_order_acquire) != 0) {
    seams.identity->unlock(page::slot_lock_byte(card, slot));
    return false;
  }
  entry.state.store(page::kSlotFree, std::memory_order_relaxed);
  entry.contexts.store(0, std::memory_order_relaxed);
  entry.busy_ns.store(0, std::memory_order_relaxed);
  entry.launches.store(0, std::memory_order_relaxed);
  entry.throttled_ns.store(0, std::memory_order_relaxed);
  entry.exec_token.store(token, std::memory_order_relaxed);
  page::ComputeSlot& compute = usage->compute[slot];
  compute.activity.store(0, std::memory_order_relaxed);
  compute.blocked.store(page::kBlockedByNothing, std::memory_order_relaxed);
  compute.outstanding_ns.store(0, std::memory_order_relaxed);
  compute.units.store(0, std::memory_order_relaxed);
  compute.longest_unit_us.store(0, std::memory_order_relaxed);
  compute.low_water_ns.store(page::kIdle, std::memory_order_relaxed);
  compute.predicted_drain_ns.store(0, std::memory_order_relaxed);
  compute.overdue_ns.store(page::kIdle, std::memory_order_relaxed);
  compute.interval_head.store(0, std::memory_order_relaxed);
  compute.turn_seen.store(0, std::memory_order_relaxed);
  std::atomic<uint32_t>& high = usage->account.slot_high;
  if (high.load(std::memory_order_relaxed) < slot + 1) high.store(slot + 1, std::memory_order_relaxed);
  entry.state.store(page::kSlotLive, std::memory_order_release);
  points.at(kClaimPublished);
  return true;
}

uint32_t Ledger::claim() {
  const uint64_t token = seams.identity->exec_token();
  if (!lock()) return kNoLedgerSlot;
  uint32_t result = find_own(token);
  for (uint32_t slot = 0; result == kNoLedgerSlot && slot < page::kMaxProcesses; ++slot) {
    if (try_claim(slot, token)) result = slot;
  }
  if (result == kNoLedgerSlot) {
    usage->account.refusal_code.store(page::kRefusalSlotsFull, std::memory_order_relaxed);
  }
  unlock();
  return result;
}

Reserve Ledger::reserve(uint32_t slot, uint64_t bytes) {
  const uint64_t limit = grant->memory_limit_bytes.load(std::memory_order_relaxed);
  if (limit != 0 && bytes > limit) {
    usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
    return Reserve::kOverLimit;
  }
  if (!lock()) {
    usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
    return Reserve::kBusy;
  }
  // A program that opens the usage file itself and closes it again drops the process's record locks with that; the
  // agent would take the process for dead and what it holds for nobody's.
  static_cast<void>(seams.identity->try_lock(page::slot_lock_byte(card, slot)));
  const uint64_t sum = charged_bytes();
  points.at(kSummed);
  const bool fits = limit == 0 || (sum <= limit && bytes <= limit - sum);
  if (fits) {
    // Should anybody have freed a living process's slot, its bytes count again from here on.
    if (usage->slots[slot].state.load(std::memory_order_relaxed) != page::kSlotLive) {
      usage->slots[slot].exec_token.store(seams.identity->exec_token(), std::memory_order_relaxed);
      usage->slots[slot].state.store(page::kSlotLive, std::memory_order_release);
    }
    usage->slots[slot].reserved_bytes.fetch_add(bytes, std::memory_order_acq_rel);
    usage->account.ledger_reservations.fetch_add(1, std::memory_order_relaxed);
    points.at(kReserved);
  }
  unlock();
  if (!fits) usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
  return fits ? Reserve::kGranted : Reserve::kOverLimit;
}

void Ledger::charge(uint32_t slot, uint64_t bytes) {
  usage->slots[slot].reserved_bytes.fetch_add(bytes, std::memory_order_acq_rel);
}

void Ledger::give_back(uint32_t slot, uint64_t bytes) {
  std::atomic<uint64_t>& word = usage->slots[slot].reserved_bytes;
  uint64_t have = word.load(std::memory_order_relaxed);
  // Never below zero, even if the page was scribbled over: a huge unsigned number would refuse everything.
  while (!word.compare_exchange_weak(have, have > bytes ? have - bytes : 0, std::memory_order_acq_rel)) {
  }
  points.at(kGivenBack);
}

uint64_t Ledger::charged_bytes() const {
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    const page::Slot& entry = usage->slots[slot];
    // The agent's corrections count whatever the page says about the slot: the page can be written by the tenant, the
    // grant cannot.
    sum = add_saturating(sum, grant->correction_bytes[slot].load(std::memory_order_relaxed));
    if (entry.state.load(std::memory_order_acquire) != page::kSlotLive) continue;
    sum = add_saturating(sum, entry.reserved_bytes.load(std::memory_order_acquire));
  }
  return sum;
}

Ledger::View Ledger::view() const {
  View view = {};
  const uint64_t limit = grant->memory_limit_bytes.load(std::memory_order_relaxed);
  view.total_bytes = limit == 0 || limit > grant->card_memory_bytes ? grant->card_memory_bytes : limit;
  view.used_bytes = charged_bytes();
  const uint64_t measured = grant->used_bytes.load(std::memory_order_relaxed);
  if (measured > view.used_bytes) view.used_bytes = measured;
  if (view.used_bytes > view.total_bytes) view.used_bytes = view.total_bytes;
  view.free_bytes = view.total_bytes - view.used_bytes;
  return view;
}

}  // namespace sluice::guest
