// Memory units. Kubernetes counts whole units of a card (GiB unless the cluster sets a finer unit); a container's limit
// is its part of the card in MiB. A 32510 MiB card has 31 units of 1 GiB and 10 of them are floor(32510 x 10 / 31) =
// 10487 MiB, so that all units together are the whole card and no MiB between the units is lost to everyone.
#pragma once

#include <cstdint>

namespace sluice::core {

inline constexpr int64_t kMibPerGib = 1024;
inline constexpr int32_t kWholeCoreMilli = 1000;  // compute of one card, in 1/1000
inline constexpr int32_t kCorePercentStep = 5;    // a percentage is a multiple of this

// floor(card_mib / unit_mib); 0 when either is not positive.
int64_t card_units(int64_t card_mib, int64_t unit_mib);

// floor(card_mib x units / card_units) MiB, for 0 <= units <= card_units; 0 when card_units is not positive.
int64_t container_limit_mib(int64_t card_mib, int64_t units, int64_t card_units);

inline constexpr int32_t core_milli_from_percent(int32_t percent) {
  return percent * (kWholeCoreMilli / 100);
}

}  // namespace sluice::core
