// The tally: what a process has charged to a card, said once more where no write to a file can change it.
//
// The usage page is a file that every program of the container may write, so a tenant could zero the slots and find the
// card empty in the eyes of its other processes. Record locks are kept by the kernel, can be seen by everybody who has
// the file open (F_GETLK), are changed by nobody but their owner and end with it. So each copy of the library locks as
// many bytes, far beyond the file's end, as it has charged units of kTallyUnitBytes: the length of the lock is the
// figure. A slot counts as the larger of what the page says and what the locks say. Whole units, so that small
// allocations cost no system call; the part of a unit is what a tampered page can hide, per process.
//
// A slot has kTallyLanes stretches of lock bytes: two copies of the library in one process hold a lane each.
#pragma once

#include <cstdint>

#include "page/usage.h"

namespace sluice::page {

inline constexpr uint64_t kTallyUnitBytes = 16ull << 20;
inline constexpr uint32_t kTallyLanes = 4;
inline constexpr uint64_t kTallyLaneUnits = 1ull << 24;  // the most a lane can say: 256 TiB
inline constexpr uint64_t kTallyBase = 1ull << 41;       // beyond all slot_lock_byte()

constexpr uint64_t tally_byte(uint32_t card, uint32_t slot, uint32_t lane) {
  return kTallyBase + ((static_cast<uint64_t>(card) * kMaxProcesses + slot) * kTallyLanes + lane) * kTallyLaneUnits;
}
static_assert(slot_lock_byte(kMaxCards, 0) < kTallyBase);

// Locked bytes [start, end), and by whom, where the asker's kernel says (0: not visible from here).
struct LockedRange {
  uint64_t start = 0;
  uint64_t end = 0;
  int pid = 0;
};

// Units that the locks say of one slot. `ask(start, end, LockedRange&)`: some lock of another owner that touches
// [start, end), not always the first one; false when there is none. Whoever locks more than his own makes the figure
// larger, never smaller: a lane's owner has its first bytes.
template <typename Ask>
uint64_t tally_units(uint32_t card, uint32_t slot, Ask&& ask) {
  const uint64_t slot_end = tally_byte(card, slot, kTallyLanes);
  uint64_t units = 0;
  const auto said = [&](uint32_t lane, const LockedRange& found) {
    const uint64_t lane_end = tally_byte(card, slot, lane + 1);
    return (found.end < lane_end ? found.end : lane_end) - tally_byte(card, slot, lane);
  };
  for (uint32_t lane = 0; lane < kTallyLanes;) {
    LockedRange found;
    const uint64_t from = tally_byte(card, slot, lane);
    if (!ask(from, slot_end, found)) break;
    const uint64_t first = found.start > from ? found.start : from;
    const uint32_t at = lane + static_cast<uint32_t>((first - from) / kTallyLaneUnits);
    for (; lane < at; ++lane) {
      LockedRange earlier;
      if (ask(tally_byte(card, slot, lane), tally_byte(card, slot, lane + 1), earlier)) units += said(lane, earlier);
    }
    units += said(at, found);
    lane = at + 1;
  }
  return units;
}

// visit(slot, units) for each slot of the card of which the locks say something. A bounded number of questions,
// whatever is locked.
template <typename Ask, typename Visit>
void each_tally(uint32_t card, Ask&& ask, Visit&& visit) {
  const uint64_t slot_units = kTallyLanes * kTallyLaneUnits;
  for (uint32_t slot = 0; slot < kMaxProcesses;) {
    LockedRange found;
    const uint64_t from = tally_byte(card, slot, 0);
    if (!ask(from, tally_byte(card, kMaxProcesses, 0), found)) return;
    const uint64_t first = found.start > from ? found.start : from;
    const uint32_t at = slot + static_cast<uint32_t>((first - from) / slot_units);
    for (; slot <= at; ++slot) {
      if (const uint64_t units = tally_units(card, slot, ask); units != 0) visit(slot, units);
    }
  }
}

}  // namespace sluice::page
