#include "guest/ledger.h"

#include "guest/map.h"

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
  uint64_t last_ns = 0;
  uint64_t before = 0;
  uint64_t granted = 0;
  for (uint32_t round = 0;; ++round) {
    uint64_t seen = word.load(std::memory_order_acquire);
    const uint64_t holder = seen;
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
    if (last_ns == 0) last_ns = now_ns + kMutexLongestNs;
    // A queue that moves is no stopped process, however slow the machine.
    const uint64_t count = usage->account.ledger_reservations.load(std::memory_order_relaxed);
    if (deadline_ns == 0 || holder != before || count != granted) {
      deadline_ns = now_ns + kMutexWaitNs < last_ns ? now_ns + kMutexWaitNs : last_ns;
    }
    before = holder;
    granted = count;
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
        seams.identity->owner_pid(page::slot_lock_byte(card, slot)) == 0 && seams.identity->hold_slot(card, slot)) {
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
  if (!seams.identity->hold_slot(card, slot)) return false;
  points.at(kClaimLocked);
  // The owner may have charged it between the look above and the lock, and died.
  if (entry.reserved_bytes.load(std::memory_order_acquire) != 0) {
    seams.identity->leave_slot(card, slot);
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
  seams.identity->prepare();
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
  Counted counted;
  count(counted, false);
  const uint64_t sum = sum_of(counted);
  points.at(kSummed);
  bool fits = limit == 0 || (sum <= limit && bytes <= limit - sum);
  if (fits) {
    usage->slots[slot].reserved_bytes.fetch_add(bytes, std::memory_order_acq_rel);
    points.at(kReserved);
    const bool told = seams.identity->raise_tally(card, slot, bytes);
    points.at(kTallied);
    // What the page said has let it through; what the locks say decides.
    fits = limit == 0 || (told && charged_bytes() <= limit);
    if (!fits) give_back(slot, bytes);
  }
  if (fits) {
    // Should anybody have freed a living process's slot, its bytes count again from here on.
    if (usage->slots[slot].state.load(std::memory_order_relaxed) != page::kSlotLive) {
      usage->slots[slot].exec_token.store(seams.identity->exec_token(), std::memory_order_relaxed);
      usage->slots[slot].state.store(page::kSlotLive, std::memory_order_release);
    }
    usage->account.ledger_reservations.fetch_add(1, std::memory_order_relaxed);
  }
  unlock();
  if (!fits) usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
  return fits ? Reserve::kGranted : Reserve::kOverLimit;
}

// Page first and tally second, and the other way round when giving back: the page never says less than the tally unless
// somebody else has written to it.
void Ledger::charge(uint32_t slot, uint64_t bytes) {
  usage->slots[slot].reserved_bytes.fetch_add(bytes, std::memory_order_acq_rel);
  seams.identity->raise_tally(card, slot, bytes);
}

void Ledger::give_back(uint32_t slot, uint64_t bytes) {
  seams.identity->lower_tally(card, slot, bytes);
  std::atomic<uint64_t>& word = usage->slots[slot].reserved_bytes;
  uint64_t have = word.load(std::memory_order_relaxed);
  // Never below zero, even if the page was scribbled over: a huge unsigned number would refuse everything.
  while (!word.compare_exchange_weak(have, have > bytes ? have - bytes : 0, std::memory_order_acq_rel)) {
  }
  points.at(kGivenBack);
}

// What each slot is charged, by the page and, if wanted, by the tallies; without the agent's corrections.
void Ledger::count(Counted& counted, bool tallies) const {
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    const page::Slot& entry = usage->slots[slot];
    const bool live = entry.state.load(std::memory_order_acquire) == page::kSlotLive;
    counted.bytes[slot] = live ? entry.reserved_bytes.load(std::memory_order_acquire) : 0;
  }
  if (!tallies || seams.identity == nullptr) return;
  const auto ask = [&](uint64_t start, uint64_t end, page::LockedRange& found) {
    return seams.identity->locked_range(start, end, found);
  };
  page::each_tally(card, ask, [&](uint32_t slot, uint64_t units) {
    const uint64_t bytes = units * page::kTallyUnitBytes;
    if (bytes > counted.bytes[slot]) counted.bytes[slot] = bytes;
  });
  const Identity::OwnTally own = seams.identity->own_tally(card);
  if (own.slot < page::kMaxProcesses && own.bytes > counted.bytes[own.slot]) counted.bytes[own.slot] = own.bytes;
}

uint64_t Ledger::sum_of(const Counted& counted) const {
  // The agent's corrections count whatever the page says about the slot, and so does what the container has on the card
  // past its library: the page can be written by the tenant, the grant cannot.
  uint64_t sum = grant->outside_bytes.load(std::memory_order_relaxed);
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    sum = add_saturating(sum, grant->correction_bytes[slot].load(std::memory_order_relaxed));
    sum = add_saturating(sum, counted.bytes[slot]);
  }
  return sum;
}

uint64_t Ledger::charged_bytes() const {
  Counted counted;
  count(counted, true);
  return sum_of(counted);
}

template <typename Visit>
void Ledger::each_dead(uint32_t own_slot, Visit&& visit) const {
  Counted counted;
  count(counted, true);
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    const uint64_t bytes =
        add_saturating(counted.bytes[slot], grant->correction_bytes[slot].load(std::memory_order_relaxed));
    if (slot == own_slot || bytes == 0) continue;
    const uint64_t byte = page::slot_lock_byte(card, slot);
    page::LockedRange found;
    if (seams.identity->owner_pid(byte) != 0 || seams.identity->locked_range(byte, byte + 1, found)) continue;
    const uint64_t first = page::tally_byte(card, slot, 0);
    if (seams.identity->locked_range(first, page::tally_byte(card, slot + 1, 0), found)) continue;
    visit(slot, bytes);
  }
}

Ledger::Dead Ledger::dead(uint32_t own_slot) const {
  Dead dead;
  each_dead(own_slot, [&](uint32_t slot, uint64_t bytes) {
    dead.bytes = add_saturating(dead.bytes, bytes);
    const uint64_t token = usage->slots[slot].exec_token.load(std::memory_order_relaxed);
    dead.mark = mix64(dead.mark ^ mix64(token ^ mix64(bytes + slot)));
  });
  return dead;
}

void Ledger::bury(uint32_t own_slot, uint64_t mark) {
  if (!lock()) return;
  if (dead(own_slot).mark == mark) {
    each_dead(own_slot, [&](uint32_t slot, uint64_t) {
      // State first: a claimer leaves a slot with bytes alone whatever its state.
      usage->slots[slot].state.store(page::kSlotFree, std::memory_order_relaxed);
      usage->slots[slot].reserved_bytes.store(0, std::memory_order_release);
    });
  }
  unlock();
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
