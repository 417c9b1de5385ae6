#include "guest/ledger.h"

#include "guest/map.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kLookAgainNs = 2'000'000;

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
bool Ledger::try_claim(uint32_t slot, uint64_t token, bool reuse) {
  page::Slot& entry = usage->slots[slot];
  const bool empty = entry.reserved_bytes.load(std::memory_order_acquire) == 0;
  // The agent has yet to see that whoever had it is gone, or charges what that one left.
  const bool held = (grant->held_slots[slot / 64].load(std::memory_order_relaxed) >> (slot % 64) & 1) != 0;
  if (!reuse && (held || grant->correction_bytes[slot].load(std::memory_order_relaxed) != 0)) return false;
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
  for (const bool reuse : {false, true}) {
    for (uint32_t slot = 0; result == kNoLedgerSlot && slot < page::kMaxProcesses; ++slot) {
      if (try_claim(slot, token, reuse)) result = slot;
    }
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
  uint64_t start_ns = 0;
  for (;;) {
    if (!lock()) {
      usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
      return Reserve::kBusy;
    }
    const Try answer = try_reserve(slot, bytes, limit);
    unlock();
    if (answer == Try::kGranted) return Reserve::kGranted;
    const uint64_t now_ns = answer == Try::kUnseen ? seams.clock->now_ns() : 0;
    if (start_ns == 0) start_ns = now_ns;
    if (answer == Try::kOver || now_ns - start_ns > kMostUnseenNs) {
      usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
      return answer == Try::kOver ? Reserve::kOverLimit : Reserve::kBusy;
    }
    seams.waiter->sleep_ns(kLookAgainNs);
  }
}

// Under the mutex.
Ledger::Try Ledger::try_reserve(uint32_t slot, uint64_t bytes, uint64_t limit) {
  const uint32_t look = grant->look_count.load(std::memory_order_acquire);
  Counted counted;
  count(counted, false);
  const uint64_t sum = sum_of(counted);
  points.at(kSummed);
  if (limit != 0 && (sum > limit || bytes > limit - sum)) return Try::kOver;
  usage->slots[slot].reserved_bytes.fetch_add(bytes, std::memory_order_acq_rel);
  points.at(kReserved);
  const bool told = seams.identity->raise_tally(card, slot, bytes);
  points.at(kTallied);
  // What the page said has let it through; what the locks say decides.
  const bool fits = limit == 0 || (told && charged_bytes() <= limit);
  // A look of the agent since the sum began may have moved a dead process's bytes from the tally to the corrections.
  const bool seen = limit == 0 || everybody_seen(slot, look);
  if (!fits || !seen) {
    give_back(slot, bytes);
    return fits ? Try::kUnseen : Try::kOver;
  }
  // Should anybody have freed a living process's slot, its bytes count again from here on.
  if (usage->slots[slot].state.load(std::memory_order_relaxed) != page::kSlotLive) {
    usage->slots[slot].exec_token.store(seams.identity->exec_token(), std::memory_order_relaxed);
    usage->slots[slot].state.store(page::kSlotLive, std::memory_order_release);
  }
  usage->account.ledger_reservations.fetch_add(1, std::memory_order_relaxed);
  return Try::kGranted;
}

bool Ledger::everybody_seen(uint32_t slot, uint32_t look) const {
  const uint64_t looked_ns = grant->looked_ns.load(std::memory_order_acquire);
  if (looked_ns == 0) return true;
  const uint64_t now_ns = seams.clock->now_ns();
  if (now_ns > looked_ns && now_ns - looked_ns > kAgentLooksNs) return true;
  if ((look & 1) != 0 || grant->deaths_open.load(std::memory_order_acquire) != 0) return false;
  if ((grant->held_slots[slot / 64].load(std::memory_order_acquire) >> (slot % 64) & 1) == 0) return false;
  for (uint32_t word = 0; word < page::kMaxProcesses / 64; ++word) {
    for (uint64_t held = grant->held_slots[word].load(std::memory_order_acquire); held != 0; held &= held - 1) {
      const uint32_t other = 64 * word + static_cast<uint32_t>(__builtin_ctzll(held));
      const uint64_t byte = page::slot_lock_byte(card, other);
      page::LockedRange found;
      if (other != slot && !seams.identity->locked_range(byte, byte + 1, found)) return false;
    }
  }
  return grant->look_count.load(std::memory_order_acquire) == look;
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
  return add_saturating(sum_of(counted), orphaned_bytes());
}

void Ledger::who_is_charged(Owners& owners) const {
  owners.count = 0;
  int last = 0;
  const auto ask = [&](uint64_t start, uint64_t end, page::LockedRange& found) {
    if (!seams.identity->locked_range(start, end, found)) return false;
    last = found.pid;
    return true;
  };
  page::each_tally(card, ask, [&](uint32_t, uint64_t units) {
    if (owners.count < page::kMaxProcesses) owners.list[owners.count++] = Charged{last, units};
  });
}

// An export that somebody sets over memory that he is not charged for would hide it. So it must be what the library
// sets (its own name and no more), by a process whose tally reaches that far.
uint64_t Ledger::exported_units(uint64_t name, const Owners& owners) const {
  const uint64_t begin = page::share_byte(card, page::ShareSide::kExport, name);
  page::LockedRange found;
  if (!seams.identity->locked_range(begin, begin + 1, found)) return 0;
  if (found.start != begin || found.end >= begin + page::kShareNameUnits) return 0;
  const uint64_t units = found.end - begin;
  uint64_t charged = 1;  // a tally leaves out what is no whole unit
  for (uint32_t i = 0; i < owners.count; ++i) charged += owners.list[i].pid == found.pid ? owners.list[i].units : 0;
  return units * page::kShareUnitBytes <= charged * page::kTallyUnitBytes ? units : 0;
}

uint64_t Ledger::exported_bytes(uint64_t name) const {
  Owners owners;
  who_is_charged(owners);
  return exported_units(name, owners) * page::kShareUnitBytes;
}

uint64_t Ledger::orphaned_bytes() const {
  if (seams.identity == nullptr) return 0;
  const auto ask = [&](uint64_t start, uint64_t end, page::LockedRange& found) {
    return seams.identity->locked_range(start, end, found);
  };
  Owners owners;
  bool known = false;  // nothing is asked about processes where nothing is shared
  uint64_t units = 0;
  const bool all = page::each_claim(card, ask, [&](uint64_t name, uint64_t claimed) {
    if (!known) who_is_charged(owners);
    known = true;
    const uint64_t exported = exported_units(name, owners);
    units += claimed > exported ? claimed - exported : 0;
  });
  return all ? units * page::kShareUnitBytes : ~0ull;
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
