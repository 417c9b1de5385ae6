// The shared ledger of one card: how much of its memory the container's processes are charged for, and the rule that a
// sum over the limit is refused.
//
// There is no stored total, since a process killed between "change the total" and "change my part" would leave it wrong
// for ever. The total is the sum over the slots, taken under a mutex; a process changes only its own slot, with one
// store. So whatever step a SIGKILL hits, the sum is right: a reservation is either in the slot or not made.
//
// Mutex: two things in a fixed order. The record lock on ledger_lock_byte excludes other processes and is dropped by
// the kernel when its holder dies. It does not exclude threads or a second copy of the library in this process (they
// "hold" it too), so Account::ledger_owner does that:
//   take:  word not mine -> lock the byte -> set the word to mine by compare-and-swap -> lock the byte again
//   leave: unlock the byte -> word to 0 by compare-and-swap
// The second locking matters: between a thread's look at the word and its compare-and-swap another thread of the
// process may have left, and its unlock drops the byte for all of them. Once the word is mine, nobody in this process
// is in the middle of leaving, so the second locking tells the truth. A word with another token is left over from a
// dead process (its owner would hold the byte) and may be overwritten. Waiting is bounded by kMutexWaitNs: behind a
// stopped process the allocation fails, counted, instead of hanging; in a queue that moves it lasts a second at most.
//
// The page can be written by everything in the container, so it is not believed alone. A slot counts as the larger of
// what the page says and what its process's tally says (page/tally.h), and this process's own slot at least as what it
// charged by its own memory. A reservation is published in both before the sum is taken that decides about it: two that
// race past a broken mutex see each other and both withdraw.
//
// What a process that dies leaves on the card is in nobody's tally any more, and no longer in the page if it has
// emptied that. So while there is an agent that looks, a reservation waits until it has seen everybody who lives and,
// by a reading of the card taken since, everybody who has died (grant.h, held_slots): a second or so at the very most.
//
// What stays charged after its process has died (slot live, lock gone, bytes not zero) counts on until the agent has
// seen that the card freed it and clears the slot; claimers leave such slots alone.
#pragma once

#include <cstdint>

#include "guest/points.h"
#include "guest/seams.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::guest {

inline constexpr uint64_t kMutexWaitNs = 50'000'000;        // behind one holder
inline constexpr uint64_t kMutexLongestNs = 1'000'000'000;  // in a queue that moves
inline constexpr uint64_t kAgentLooksNs = 1'000'000'000;    // an agent that has not looked for this long is away
inline constexpr uint64_t kMostUnseenNs = 5'000'000'000;    // a reservation that would have to wait longer is refused
inline constexpr uint32_t kNoLedgerSlot = ~0u;

enum class Reserve { kGranted, kOverLimit, kBusy };

// A view over the pages; holds no state of its own.
struct Ledger {
  const page::GrantCard* grant;
  page::UsageCard* usage;
  uint32_t card;
  Seams seams;
  Points points;

  // Finds this process's slot (another copy of the library may have claimed it) or claims a free one. kNoLedgerSlot:
  // none is free (or the mutex could not be had in time).
  uint32_t claim();

  // Charges `bytes` to the slot if the sum stays within the limit (0 = no limit).
  Reserve reserve(uint32_t slot, uint64_t bytes);
  // Charges without asking: what the card already spends (measured overhead).
  void charge(uint32_t slot, uint64_t bytes);
  void give_back(uint32_t slot, uint64_t bytes);

  // What is imported from somebody in the container who is no longer charged for it (page/share.h).
  uint64_t orphaned_bytes() const;
  // Who holds a name as its exporter: its bytes, 0 when nobody does whose charge covers it.
  uint64_t exported_bytes(uint64_t name) const;

  // Sum over the slots with the agent's corrections and orphaned memory, saturating. Lock-free: exact when nothing
  // changes.
  uint64_t charged_bytes() const;

  // Slots whose process is gone (no lock, no tally) while the page or a correction still charges them. The agent frees
  // them when the card has freed the memory, at most two seconds after the death.
  struct Dead {
    uint64_t bytes = 0;  // charged for them
    uint64_t mark = 0;   // differs when the set of them does
  };
  Dead dead(uint32_t own_slot) const;
  // Clears those of dead() in the page, where no agent has done so in time. The caller has seen the same mark for as
  // long as the card may need.
  void bury(uint32_t own_slot, uint64_t mark);
  // What programs are told: total = limit, or the card's size when there is no limit; used = the larger of the sum
  // here and the agent's figure from NVML; never more than total.
  struct View {
    uint64_t total_bytes;
    uint64_t used_bytes;
    uint64_t free_bytes;
  };
  View view() const;

  bool lock();
  void unlock();

 private:
  bool everybody_seen(uint32_t slot, uint32_t look) const;
  enum class Try { kGranted, kOver, kUnseen };
  Try try_reserve(uint32_t slot, uint64_t bytes, uint64_t limit);
  struct Counted {
    uint64_t bytes[page::kMaxProcesses];
  };
  void count(Counted& counted, bool tallies) const;
  uint64_t sum_of(const Counted& counted) const;
  // Of one process of the container, by its locks.
  struct Charged {
    int pid;
    uint64_t units;
  };
  struct Owners {
    Charged list[page::kMaxProcesses];
    uint32_t count;
  };
  void who_is_charged(Owners& owners) const;
  uint64_t exported_units(uint64_t name, const Owners& owners) const;
  template <typename Visit>
  void each_dead(uint32_t own_slot, Visit&& visit) const;
  uint32_t find_own(uint64_t token) const;
  bool try_claim(uint32_t slot, uint64_t token, bool reuse);
};

}  // namespace sluice::guest
