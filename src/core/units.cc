#include "core/units.h"

namespace sluice::core {

int64_t card_units(int64_t card_mib, int64_t unit_mib) {
  if (card_mib <= 0 || unit_mib <= 0) return 0;
  return card_mib / unit_mib;
}

int64_t container_limit_mib(int64_t card_mib, int64_t units, int64_t card_units) {
  if (card_units <= 0 || units <= 0 || card_mib <= 0) return 0;
  // 64 bits are enough: a card has fewer than 2^31 MiB and at most that many units.
  return card_mib * units / card_units;
}

}  // namespace sluice::core
