// Start-up of a guest, common to both libraries.
#include "guest/guest.h"
#include "guest/sys.h"

namespace sluice::guest {

void start(Guest* guest) {
  uint32_t expected = kNew;
  if (!guest->state.compare_exchange_strong(expected, kStarting, std::memory_order_acq_rel)) {
    while (guest->state.load(std::memory_order_acquire) != kReady) {
      if (guest->starter.load(std::memory_order_acquire) == static_cast<uint32_t>(sys::thread_id())) return;
      sys::yield();
    }
    return;
  }
  guest->starter.store(static_cast<uint32_t>(sys::thread_id()), std::memory_order_release);
  guest->resolve(guest);  // re-entered before the driver is open: answers NOT_INITIALIZED
  guest->refusal = guest->attach(guest);
  if (guest->seams.driver != nullptr) guest->resolve(guest);
  if (guest->refusal == page::kRefusalNone && guest->seams.driver == nullptr) {
    guest->refusal = page::kRefusalDriverMissing;
  }
  for (uint32_t card = 0; card < page::kMaxCards; ++card) guest->cards[card].device = -1;
  if (guest->refusal != page::kRefusalNone) {
    for (uint32_t card = 0; card < guest->card_count; ++card) note_refusal(guest, card, guest->refusal);
  }
  guest->starter.store(0, std::memory_order_release);
  guest->state.store(kReady, std::memory_order_release);
}

void note_refusal(Guest* guest, uint32_t card, uint32_t code) {
  if (card < guest->card_count && guest->cards[card].usage != nullptr) {
    guest->cards[card].usage->account.refusal_code.store(code, std::memory_order_relaxed);
  }
}

Ledger ledger_of(Guest* guest, uint32_t card) {
  return Ledger{guest->cards[card].grant, guest->cards[card].usage, card, guest->seams, guest->points};
}

}  // namespace sluice::guest
