// The usage page: what the programs of one container tell the node and each other. Mounted read-write at kUsagePath.
//
// Hostile input for the agent: it reads the file with pread (a mapping could be cut short under it) and uses its own
// mapping only as the address of futex words. Whoever writes nonsense here harms the container's own caps, never a
// neighbour's: what matters to others is taken from NVML and from the wall time of turns.
// Per card: one account block (shared by the container's processes, compare-and-swap) and a slot per process with the
// rings of its settled busy intervals. A slot is owned through a POSIX record lock (F_SETLK) on the byte
// slot_lock_byte(card, slot) of this file, which the kernel drops when the process ends, however it ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "page/grant.h"

namespace sluice::page {

inline constexpr uint64_t kUsageMagic = 0x3145474153554c53;  // "SLUSAGE1" as little-endian bytes
inline constexpr uint32_t kIntervalRing = 64;                // busy intervals kept per process, a power of two

enum SlotState : uint32_t {
  kSlotFree = 0,
  kSlotLive = 1,
};

// One process on one card; its own stores only (the agent alone clears a dead slot).
struct alignas(64) Slot {
  std::atomic<uint32_t> state;           // SlotState
  std::atomic<uint32_t> ledger_spin;     // excludes threads and second copies of the library within the process
  std::atomic<uint64_t> exec_token;      // AT_RANDOM of the exec: how two copies of the library find their slot
  std::atomic<uint64_t> reserved_bytes;  // allocations and overhead charged to this process
  std::atomic<uint64_t> busy_ns;         // settled busy time, sum over its own intervals
  std::atomic<uint64_t> launches;
  std::atomic<uint64_t> throttled_ns;    // time its threads waited at the gate
  std::atomic<uint64_t> low_water_ns;    // its busy time is settled up to here (CLOCK_MONOTONIC); ~0 = idle
  std::atomic<uint32_t> outstanding_us;  // estimate of what it has in flight
  std::atomic<uint32_t> dirty;           // streams with work after their last marker
};

// A settled busy interval, CLOCK_MONOTONIC.
struct Interval {
  std::atomic<uint64_t> start_ns;
  std::atomic<uint64_t> end_ns;
};

// Account of the container on one card, shared by its processes.
struct alignas(64) Account {
  // Line 0: credit = quota x (time - since) - busy; see governor/governor.h for the meaning of each word.
  std::atomic<int64_t> words[8];
  // Line 1: futex words towards the agent.
  alignas(64) std::atomic<uint32_t> want_turn;   // bit 0: somebody waits or has work; the rest counts changes
  std::atomic<uint32_t> turn_done;               // number of the last turn that the container has drained
  std::atomic<uint64_t> predicted_drain_ns;      // CLOCK_MONOTONIC; when what is in flight should end
  std::atomic<uint64_t> longest_unit_us;
  uint8_t reserved0[40];
  // Line 2, 3: why programs were refused (codes for doctor), and counters.
  alignas(64) std::atomic<uint32_t> refusal_code;
  std::atomic<uint32_t> refused_allocations;
  std::atomic<uint64_t> ledger_waits_timed_out;
  std::atomic<uint64_t> overdue_passes;
  uint8_t reserved1[40];
  alignas(64) uint8_t reserved2[64];
};

struct UsageCard {
  Account account;
  Slot slots[kMaxProcesses];
  Interval intervals[kMaxProcesses][kIntervalRing];
  std::atomic<uint64_t> interval_heads[kMaxProcesses];  // intervals ever written by the slot's process
};

struct alignas(64) UsageHeader {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t bytes;
  uint32_t card_count;
  uint32_t reserved0;
  uint64_t grant_id;
  uint8_t reserved1[4096 - 32];
};

struct Usage {
  UsageHeader header;
  UsageCard cards[kMaxCards];  // card_count of them are in the file
};

constexpr uint32_t usage_bytes(uint32_t card_count) {
  return static_cast<uint32_t>(sizeof(UsageHeader) + card_count * sizeof(UsageCard));
}

// Record-lock bytes lie beyond the file's end: locking a byte does not need it to exist. One mutex byte per card
// (the ledger's), then one per slot.
inline constexpr uint64_t kLockBase = 1ull << 40;
constexpr uint64_t ledger_lock_byte(uint32_t card) { return kLockBase + card * (kMaxProcesses + 1ull); }
constexpr uint64_t slot_lock_byte(uint32_t card, uint32_t slot) { return ledger_lock_byte(card) + 1 + slot; }

static_assert(sizeof(Slot) == 64);
static_assert(sizeof(Account) == 256);
static_assert(offsetof(Account, want_turn) == 64);
static_assert(offsetof(Account, refusal_code) == 128);
static_assert(sizeof(UsageHeader) == 4096);

}  // namespace sluice::page
