// This process's slot on each card, and what a fork does to it.
#include "guest/guest.h"
#include "guest/notify.h"

namespace sluice::guest {

uint32_t claim_slot(Guest* guest, uint32_t card) {
  renew_after_fork(guest);
  uint32_t slot = card_slot(guest, card);
  if (slot != kNoSlot) return slot;
  slot = ledger_of(guest, card).claim();
  if (slot == kNoLedgerSlot) return kNoSlot;
  // Two threads may have claimed at once: the same token finds the same slot.
  guest->cards[card].slot.store(slot + 1, std::memory_order_release);
  return slot;
}

void renew_after_fork(Guest* guest) {
  if (guest->refusal != page::kRefusalNone || !guest->seams.identity->forked()) return;
  // Locks of the parent's threads may be held for ever in the child. This one is only ever held here.
  while (!guest->fork_lock.try_lock()) {
    if (!guest->seams.identity->forked()) return;
    guest->seams.waiter->spin_pause();
  }
  if (guest->seams.identity->forked()) {
    for (uint32_t card = 0; card < guest->card_count; ++card) {
      guest->cards[card].slot.store(0, std::memory_order_relaxed);
    }
    guest->devices_lock.reset();
    memory_forget(guest);
    compute_forked(guest);
    guest->seams.identity->renew();
  }
  guest->fork_lock.unlock();
}

}  // namespace sluice::guest
