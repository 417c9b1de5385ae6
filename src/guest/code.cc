#include "guest/code.h"

#include "guest/compute_internal.h"

namespace sluice::guest {

namespace {

// A measurement is not possible while another thread is inside an allocation: a few tries, then the driver's own figure
// of free memory decides, which a neighbour's doings blur.
constexpr int kTries = 20;
constexpr uint64_t kPauseNs = 500'000;

Measured measure_patiently(Guest* guest, uint32_t card) {
  guest->memory.cards[card].overhead_stale.store(1, std::memory_order_relaxed);
  for (int i = 0;; ++i) {
    const Measured measured = measure_overhead(guest, card, true);
    if (measured != Measured::kBusy || i == kTries) return measured;
    guest->seams.waiter->sleep_ns(kPauseNs);
  }
}

}  // namespace

CodeLoad::CodeLoad(Guest* guest) : guest_(guest), card_(current_card(guest)) {
  if (!booked(guest, card_)) {
    card_ = kNoCard;
    return;
  }
  overhead_bytes_ = guest->memory.cards[card_].overhead_bytes.load(std::memory_order_acquire);
  free_bytes_ = driver_free_bytes();
}

uint64_t CodeLoad::driver_free_bytes() const {
  QuietCapture quiet(guest_);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  return guest_->cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
}

bool CodeLoad::over(uint64_t more_bytes) const {
  const uint64_t limit = guest_->cards[card_].grant->memory_limit_bytes.load(std::memory_order_relaxed);
  return limit != 0 && ledger_of(guest_, card_).charged_bytes() + more_bytes > limit;
}

bool CodeLoad::check(bool surely_loaded) {
  if (card_ == kNoCard) return false;
  const uint64_t free_now = driver_free_bytes();
  const uint64_t lost = free_now < free_bytes_ ? free_bytes_ - free_now : 0;
  if (!surely_loaded && lost == 0) return false;
  uint64_t unmeasured = 0;
  if (measure_patiently(guest_, card_) == Measured::kYes) {
    const uint64_t overhead = guest_->memory.cards[card_].overhead_bytes.load(std::memory_order_acquire);
    grown_bytes_ = overhead > overhead_bytes_ ? overhead - overhead_bytes_ : 0;
  } else {
    grown_bytes_ = unmeasured = lost;
  }
  // A container may be over its limit by other causes (it was lowered); what costs nothing goes on working then.
  if (grown_bytes_ == 0 || !over(unmeasured)) return false;
  refresh_pools(guest_, card_);
  if (!over(unmeasured)) return false;
  guest_->cards[card_].usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void code_unloaded(Guest* guest) {
  const uint32_t current = current_card(guest);
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    if ((current != kNoCard && card != current) || !booked(guest, card)) continue;
    guest->memory.cards[card].overhead_stale.store(1, std::memory_order_relaxed);
    measure_overhead(guest, card, true);
  }
}

}  // namespace sluice::guest
