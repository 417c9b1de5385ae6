// The real machine for the turn keeper: CLOCK_MONOTONIC and futexes.
#pragma once

#include "agent/turn_keeper.h"

namespace sluice::agent {

// Waits on many words at once by futex_waitv (Linux 5.16); on older kernels on the last word alone (the keeper's own)
// and no longer than 200 us, so that doorbells are seen by looking.
class LinuxTurnHost final : public TurnHost {
 public:
  LinuxTurnHost();
  uint64_t now_ns() override;
  void wait_any(std::span<const Word> words, uint64_t deadline_ns) override;
  void wake(std::atomic<uint32_t>* word) override;
  void spin_pause() override;
  bool spins() const override { return spins_; }

 private:
  bool many_ = true;  // futex_waitv works
  const bool spins_;
};

}  // namespace sluice::agent
