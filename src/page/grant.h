// The grant page: what a node tells the programs of one container about their cards, and the only thing they read.
//
// One file, mounted read-only at kGrantPath, written in place by the agent alone through its own mapping; programs map
// it shared and read it with atomic loads. Fixed layout, no pointers, no pids, every field one writer (the agent). Hot
// words have cache lines of their own: the gate word is read at every launch, heartbeat and limits change rarely.
// A new major layout is a new file; the old one then announces it in `successor`. Reader's rule: wrong magic, another
// major version or a size smaller than the header claims means no grant, and the guest fails closed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::page {

// Fixed paths inside a container (or private mount namespace). No environment variable moves them.
inline constexpr char kContainerRoot[] = "/run/sluice/container";
inline constexpr char kGrantPath[] = "/run/sluice/container/grant/page";
inline constexpr char kUsagePath[] = "/run/sluice/container/usage";
// The real driver's files, out of every search path, under their SONAMEs.
inline constexpr char kDriverDirectory[] = "/run/sluice/container/driver";

inline constexpr uint64_t kGrantMagic = 0x31544e5247434c53;  // "SLCGRNT1" as little-endian bytes
inline constexpr uint16_t kMajor = 1;
inline constexpr uint16_t kMinor = 1;           // 1: what the agent has seen of who lives
inline constexpr uint32_t kMaxCards = 16;       // cards per container
inline constexpr uint32_t kMaxProcesses = 256;  // processes per container and card

// Compute policies; the numbers are an interface (docs/cli.md, `sluice run --policy`).
enum Policy : uint32_t {
  kPolicyFair = 0,
  kPolicyPreemptive = 1,
  kPolicyWeighted = 2,
  kPolicyFixed = 3,
  kPolicyBurst = 4,
  kPolicyNative = 5,
};

// The gate word. Turn numbers wrap at 2^24.
inline constexpr uint32_t kGateOpen = 1u << 0;   // this container holds the card's turn
inline constexpr uint32_t kGateTurns = 1u << 1;  // turns are in force: without kGateOpen nothing is launched
inline constexpr uint32_t kGateArmed = 1u << 2;  // named as next holder: the first launcher spins
inline constexpr uint32_t kGateLent = 1u << 3;   // the turn is lent idle time: no credit is needed (burst)
inline constexpr uint32_t kGateLong = 1u << 4;  // some container of the card runs units over 5 ms: no one-second budget
inline constexpr uint32_t kGateWatch =
    1u << 5;  // somebody else is on the card: report work in the compute slot, capped or not
inline constexpr uint32_t kGateFree = 1u << 6;   // no cap and nobody else: the guest does nothing at all
inline constexpr uint32_t kGateBrief = 1u << 7;  // a neighbour of high priority is at work: little is kept in flight
inline constexpr uint32_t kGateTurnShift = 8;

// Limit flags.
inline constexpr uint32_t kFlagHighPriority = 1u << 0;

struct alignas(64) GrantCard {
  // Line 0: fixed for the life of the grant.
  uint8_t uuid[16];  // CUuuid bytes
  uint32_t index;    // the card's index in NVML order on the node
  uint32_t reserved0;
  uint64_t card_memory_bytes;       // NVML total of the card
  uint64_t context_estimate_bytes;  // what a first context is charged until NVML corrects it
  uint8_t reserved1[24];

  // Line 1: the gate. Futex word: programs wait on `gate`, the agent wakes after each change.
  alignas(64) std::atomic<uint32_t> gate;
  // How many times the gate has become kGateFree: what a stream launched meanwhile was neither marked nor measured.
  std::atomic<uint32_t> free_count;
  std::atomic<uint64_t> turn_end_ns;  // CLOCK_MONOTONIC; meaningful while kGateOpen and kGateTurns
  // Processes of other containers whose work may run beside this one's turns (they have not drained after theirs): the
  // card then serves both in time slices, and the guest measures when it is away.
  std::atomic<uint32_t> beside;
  uint8_t reserved3[44];

  // Line 2: limits, changed while programs run.
  alignas(64) std::atomic<uint64_t> memory_limit_bytes;  // 0 = no limit: memory calls pass through, unaccounted
  std::atomic<uint32_t> core_permille;  // 1/1000 of a card; 0 = no cap. fair and preemptive shares are put here too
  std::atomic<uint32_t> policy;
  std::atomic<uint32_t> weight;
  std::atomic<uint32_t> flags;
  std::atomic<uint32_t> limits_version;  // grows with each change
  // What the agent has seen of the container's processes. A process gets no memory before its slot is among the held
  // ones, nor while one that is has no lock any more: what the dead still have on the card is the agent's to charge.
  std::atomic<uint32_t> deaths_open;  // processes that ended, and that no reading of the card tells of yet
  std::atomic<uint64_t> looked_ns;    // CLOCK_MONOTONIC of the latest look; 0: nobody looks
  std::atomic<uint32_t> look_count;   // odd while corrections and what goes with them are being written
  uint8_t reserved4[20];

  // Line 3: the agent's own measurements, for the view that programs get.
  alignas(64) std::atomic<uint64_t> used_bytes;  // what the card spends on the container, by NVML; 0 = not known
  std::atomic<uint32_t> utilisation_permille;    // share of the card over the last second; programs read it
                                                 // while the heartbeat is fresh
  std::atomic<uint32_t> containers_active;       // containers that used the card within 100 ms
  std::atomic<uint64_t> heartbeat_ns;  // CLOCK_MONOTONIC, written at 10 Hz by the card's turn keeper; 0 = none yet
  // What the container has on the card past its library (a driver of its own), by NVML: charged like its slots. Where
  // an older agent writes the page: 0.
  std::atomic<uint64_t> outside_bytes;
  std::atomic<uint64_t> held_slots[kMaxProcesses / 64];  // bit per slot: its lock was held at the latest look

  // What a process's slot is charged on top of its own figure (context overhead beyond the estimate, bytes of a dead
  // process that the card still holds). Only ever raises a charge. Index = slot.
  alignas(64) std::atomic<uint64_t> correction_bytes[kMaxProcesses];
};

struct alignas(64) GrantHeader {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t bytes;       // size of the whole file
  uint32_t card_count;  // 1..kMaxCards
  uint32_t successor;   // not 0: a newer layout of this grant stands beside it as page.<successor>
  uint64_t grant_id;    // random, also in the usage page's header: the two belong together
  char container[96];   // name for people, NUL-terminated

  alignas(64) std::atomic<uint64_t> heartbeat_ns;  // CLOCK_MONOTONIC, written at 10 Hz by the agent: it lives
  uint8_t reserved0[56];
};

struct Grant {
  GrantHeader header;
  GrantCard cards[kMaxCards];  // card_count of them are in the file
};

constexpr uint32_t grant_bytes(uint32_t card_count) {
  return static_cast<uint32_t>(sizeof(GrantHeader) + card_count * sizeof(GrantCard));
}

static_assert(sizeof(GrantHeader) == 192);
static_assert(offsetof(GrantHeader, heartbeat_ns) == 128);
static_assert(offsetof(GrantCard, gate) == 64);
static_assert(offsetof(GrantCard, turn_end_ns) == 72);
static_assert(offsetof(GrantCard, memory_limit_bytes) == 128);
static_assert(offsetof(GrantCard, looked_ns) == 160);
static_assert(offsetof(GrantCard, used_bytes) == 192);
static_assert(offsetof(GrantCard, correction_bytes) == 256);
static_assert(sizeof(GrantCard) == 256 + 8 * kMaxProcesses);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace sluice::page
