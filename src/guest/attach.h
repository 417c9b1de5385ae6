// Finding and checking the two pages of a grant. Everything that does not fit is a refusal with a reason: a library
// that cannot see the limits must not serve the card.
#pragma once

#include "guest/guest.h"
#include "guest/record_locks.h"

namespace sluice::guest {

// Maps the pages at the given paths into `guest` (grant, usage, cards, card_count) and opens the usage file for locks.
// The pages checked are in place as far as they were good, so that the reason can be noted. Returns page::RefusalCode.
uint32_t attach_pages(Guest* guest, const char* grant_path, const char* usage_path, RecordLocks* locks);

}  // namespace sluice::guest
