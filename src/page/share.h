// Memory that several processes of a container hold, said in record locks as the tally is (page/tally.h).
//
// The driver keeps exported memory on the card until the last who imported it lets go, whatever the process that
// allocated it does meanwhile. That process is charged for it. So that the charge stays with the container when it
// frees the memory or ends, both sides say what they hold by read locks on bytes that stand for the memory's name:
//   export  set by the process that is charged, for as long as it is;
//   claim   set by each process that imported the memory, for as long as it has it open.
// A name that somebody claims and nobody exports counts once, however many claim it. While the export stands a claim
// counts nothing: memory that is shared is charged where it was made.
//
// The length of a lock is the size in units of kShareUnitBytes, rounded up. Names are what both sides can see: a hash
// of the bytes that travel between them, or the identity of a file that does (guest/share.h).
#pragma once

#include <cstdint>

#include "page/tally.h"

namespace sluice::page {

inline constexpr uint64_t kShareUnitBytes = 2ull << 20;
inline constexpr uint32_t kShareNameBits = 38;
inline constexpr uint64_t kShareNameUnits = 1ull << 19;  // bytes of a name; a lock says one less at most: 1 TiB
inline constexpr uint64_t kShareBase = 1ull << 62;       // beyond all tallies; the last byte is the largest offset
inline constexpr uint32_t kMostClaims = 4096;            // names claimed on one card of a container
inline constexpr uint32_t kShareStack = 320;

enum class ShareSide : uint64_t { kExport = 0, kClaim = 1 };

constexpr uint64_t share_byte(uint32_t card, ShareSide side, uint64_t name) {
  const uint64_t area = static_cast<uint64_t>(side) * kMaxCards + card;
  return kShareBase + (((area << kShareNameBits) | (name & ((1ull << kShareNameBits) - 1))) * kShareNameUnits);
}
constexpr uint64_t share_end(uint32_t card, ShareSide side) {
  return share_byte(card, side, ~0ull) + kShareNameUnits;
}
constexpr uint64_t share_units(uint64_t bytes) {
  const uint64_t units = bytes / kShareUnitBytes + (bytes % kShareUnitBytes != 0 ? 1 : 0);
  return units < kShareNameUnits ? units : kShareNameUnits - 1;  // locks of neighbours must not touch: they would merge
}
static_assert(tally_byte(kMaxCards, 0, 0) < kShareBase);
static_assert(share_end(kMaxCards - 1, ShareSide::kClaim) == 1ull << 63);

// visit(name, units) for each name that is claimed on the card; units is the most that one of the locks says. `ask` as
// in tally.h. False: there are more than kMostClaims, or the locks are laid out as no claims are; the caller takes the
// card for full.
template <typename Ask, typename Visit>
bool each_claim(uint32_t card, Ask&& ask, Visit&& visit) {
  const uint64_t start = share_byte(card, ShareSide::kClaim, 0);
  // Ranges still to be asked about. A found lock leaves one on either side; the kernel's list is sorted for each owner,
  // so the stack grows with the number of processes, not of locks.
  LockedRange open[kShareStack];
  uint32_t depth = 0;
  open[depth++] = {start, share_end(card, ShareSide::kClaim)};
  for (uint32_t names = 0; depth != 0;) {
    const LockedRange range = open[--depth];
    LockedRange found;
    if (range.start >= range.end || !ask(range.start, range.end, found)) continue;
    if (++names > kMostClaims || depth + 2 > kShareStack) return false;
    const uint64_t first = found.start > range.start ? found.start : range.start;
    const uint64_t name = (first - start) / kShareNameUnits;
    const uint64_t begin = start + name * kShareNameUnits;
    const uint64_t end = begin + kShareNameUnits;
    uint64_t units = (found.end < end ? found.end : end) - begin;
    for (LockedRange longer; begin + units < end && ask(begin + units, end, longer);) {
      units = (longer.end < end ? longer.end : end) - begin;
      if (++names > kMostClaims) return false;
    }
    visit(name, units);
    open[depth++] = {end, range.end};
    open[depth++] = {range.start, begin > range.start ? begin : range.start};
  }
  return true;
}

}  // namespace sluice::page
