// The usage page: what the programs of one container tell the node and each other. Mounted read-write at kUsagePath.
//
// Hostile input for the agent: it reads the file with pread (a mapping could be cut short under it) and uses its own
// mapping only as the address of futex words. Whoever writes nonsense here harms the container's own caps, never a
// neighbour's: what matters to others is taken from NVML and from the wall time of turns.
// Per card: one account block (shared by the container's processes, compare-and-swap), and per process a compute slot,
// a memory slot and a ring of settled busy intervals. The agent reads account and compute slots in one piece. A slot is
// owned through a POSIX record lock (F_SETLK) on the byte slot_lock_byte(card, slot) of this file, which the kernel
// drops when the process ends, however it ends.
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
  kSlotLive = 1,  // owned while its record lock is held; a live slot without a lock is a dead process's
};

// Why the guest of a container refused to serve, or what it last complained about (Account::refusal_code; doctor turns
// them into sentences). Written by guests, so the agent treats other values as kRefusalNone.
enum RefusalCode : uint32_t {
  kRefusalNone = 0,
  kRefusalGrantMissing = 1,     // no file at kGrantPath
  kRefusalGrantUnreadable = 2,  // it is there but cannot be opened or mapped
  kRefusalGrantMagic = 3,       // not a grant page
  kRefusalGrantVersion = 4,     // another major version
  kRefusalGrantSize = 5,        // shorter than its header claims, or a card count out of range
  kRefusalUsageMissing = 6,     // no file at kUsagePath
  kRefusalUsageUnwritable = 7,  // it cannot be opened for writing or mapped
  kRefusalUsageLayout = 8,      // magic, version or size do not fit the grant
  kRefusalPagesApart = 9,       // the two pages carry different grant ids
  kRefusalDriverMissing = 10,   // no library in kDriverDirectory that can be loaded
  kRefusalDriverSymbols = 11,   // it loads, but lacks a function that the guest cannot do without
  kRefusalSlotsFull = 12,       // kMaxProcesses processes hold this card already
  kRefusalLocks = 13,           // record locks do not work on the usage file
  kRefusalLast = 13,
};

// One process on one card; its own stores only (the agent alone clears a dead slot that still holds bytes).
struct alignas(64) Slot {
  std::atomic<uint32_t> state;       // SlotState
  std::atomic<uint32_t> contexts;    // contexts of the process on the card: 0 with bytes charged = torn down or dying
  std::atomic<uint64_t> exec_token;  // Identity::exec_token: how two copies of the library find their slot
  std::atomic<uint64_t> reserved_bytes;  // allocations and overhead charged to this process
  std::atomic<uint64_t> busy_ns;         // settled busy time, sum over its own intervals
  std::atomic<uint64_t> launches;
  std::atomic<uint64_t> throttled_ns;  // time its threads waited at the gate
  uint8_t reserved0[8];
};

// Why a process's threads wait at the gate.
enum BlockedBy : uint32_t {
  kBlockedByNothing = 0,
  kBlockedByBound = 1,   // enough is in flight; passes by itself
  kBlockedByTurn = 2,    // the next unit does not fit into what is left of the turn, or there is no turn
  kBlockedByCredit = 3,  // no credit, or the last second's budget is used up: not before Account::resume_ns
};

// What one process has under way on the card; its own stores only. Index = slot. Zeroed by whoever claims the slot.
struct alignas(64) ComputeSlot {
  // Low 16 bits: streams that may hold unfinished work ("dirty"); high 16: threads that wait at the gate. The dirty
  // count is raised before a launch and the gate word read again after it, so that a closed gate and no dirty slot mean
  // a drained container.
  std::atomic<uint32_t> activity;
  std::atomic<uint32_t> blocked;             // BlockedBy of the last refusal
  std::atomic<uint64_t> outstanding_ns;      // estimate of what is launched (or let through) and not settled
  std::atomic<uint32_t> units;               // how many units that is
  std::atomic<uint32_t> longest_unit_us;     // longest unit measured in the last seconds
  std::atomic<uint64_t> low_water_ns;        // busy time is settled up to here; kIdle: nothing outstanding
  std::atomic<uint64_t> predicted_drain_ns;  // CLOCK_MONOTONIC; when what is in flight should end
  std::atomic<uint64_t> overdue_ns;          // when the oldest unit in flight is overdue; kIdle: nothing in flight
  std::atomic<uint64_t> interval_head;       // intervals ever written to the slot's ring
  std::atomic<uint32_t> turn_seen;           // gate word under which `blocked` was found
  std::atomic<uint32_t> attached;            // 1: the process has a context on the card
};
inline constexpr uint64_t kIdle = ~0ull;
inline constexpr uint32_t kDirtyMask = 0xffff;
inline constexpr uint32_t kWaitingShift = 16;

// A settled busy interval, CLOCK_MONOTONIC.
struct Interval {
  std::atomic<uint64_t> start_ns;
  std::atomic<uint64_t> end_ns;
};

// Account of the container on one card, shared by its processes.
struct alignas(64) Account {
  // Line 0: credit of the container; governor/account.h gives the meaning. The first two words change together (one
  // 16-byte compare-and-swap).
  alignas(16) uint64_t credit[2];
  std::atomic<uint32_t> hysteresis;       // 1: open, 0: closed; outside turns
  std::atomic<uint32_t> slot_high;        // compute slots [0, slot_high) were claimed at some time
  std::atomic<uint64_t> resume_ns;        // not before this time is the next unit admitted (credit, budget)
  std::atomic<uint64_t> overdue_unit;     // overdue_ns of the unit in flight past which others were let through
  std::atomic<uint64_t> overdue_next_ns;  // when the next one may pass it
  std::atomic<uint64_t> busy_total_ns;    // settled busy time of the container, ever
  std::atomic<uint64_t> passed_ns;        // when a unit was last let through past one in flight that does not end
  // Line 1: the futex word towards the agent: counts changes of what the compute slots say.
  alignas(64) std::atomic<uint32_t> doorbell;
  uint32_t overdue_passed;                // let through past `overdue_unit`
  std::atomic<uint64_t> longest_unit_us;  // of the last seconds, over the container's processes
  uint8_t reserved3[48];
  // Line 2, 3: why programs were refused (codes for doctor), and counters.
  alignas(64) std::atomic<uint32_t> refusal_code;
  std::atomic<uint32_t> refused_allocations;
  std::atomic<uint64_t> ledger_waits_timed_out;
  std::atomic<uint64_t> overdue_passes;
  // The ledger's mutex: the record lock on ledger_lock_byte excludes processes; this word, the exec token of the holder
  // or 0, excludes threads and second copies of the library inside one process. A value that is not the reader's own
  // token is stale when the reader holds the record lock. See guest/ledger.h for the order of the two.
  std::atomic<uint64_t> ledger_owner;
  std::atomic<uint64_t> ledger_reservations;  // reservations granted, ever
  uint8_t reserved1[24];
  alignas(64) uint8_t reserved2[64];
};

inline constexpr uint32_t kBusyBins = 128;  // of 10 ms: more than a second

struct UsageCard {
  Account account;
  ComputeSlot compute[kMaxProcesses];
  Slot slots[kMaxProcesses];
  Interval intervals[kMaxProcesses][kIntervalRing];
  // busy_total_ns as it stood when the settled time passed the start of each 10 ms bin; index = bin number modulo.
  std::atomic<uint64_t> busy_history[kBusyBins];
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
constexpr uint64_t ledger_lock_byte(uint32_t card) {
  return kLockBase + card * (kMaxProcesses + 1ull);
}
constexpr uint64_t slot_lock_byte(uint32_t card, uint32_t slot) {
  return ledger_lock_byte(card) + 1 + slot;
}

static_assert(sizeof(Slot) == 64);
static_assert(sizeof(Account) == 256);
static_assert(sizeof(ComputeSlot) == 64);
static_assert(offsetof(Account, credit) == 0 && alignof(Account) >= 16);
static_assert(offsetof(Account, doorbell) == 64);
static_assert(offsetof(UsageCard, compute) == sizeof(Account));
static_assert(offsetof(Account, refusal_code) == 128);
static_assert(sizeof(UsageHeader) == 4096);

}  // namespace sluice::page
