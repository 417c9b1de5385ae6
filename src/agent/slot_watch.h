// What the watchdog concludes about one grant on one card. Three witnesses: the kernel (which slots' locks are held, by
// which pid), the card (which pids it lists, with how many bytes) and the page (what the programs say of themselves).
// The first two are believed; the page is compared with them.
//
//  - A live process is charged what the card spends on it, where that is more than it says: correction = card - page.
//  - A dead process's bytes stay charged until a reading of the card taken after its death no longer lists it, at most
//    kDeadHoldNs: the driver frees later than the kernel. Then its slot is cleared. Until a reading has told what it
//    has there, nobody knows: that is published, and the guests wait with what they want to allocate.
//  - The page is a file that the tenant may write: where the tally says more, the tally is what counts for the slot, by
//    the guests' own rule too, so a correction is what the card says beyond both.
//  - Differences that honest programs do not show are reported.
//
// Pure: no clock, no I/O. Corrections only ever raise a charge (docs of the grant page).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/cards.h"
#include "agent/grant_pages.h"
#include "page/usage.h"

namespace sluice::agent {

inline constexpr uint64_t kDeadHoldNs = 2'000'000'000;

// A slot as copied from the page.
struct SlotImage {
  bool live = false;
  uint64_t reserved_bytes = 0;
  uint64_t tally_bytes = 0;  // by the kernel's locks (page/tally.h): true in whole units, and nobody else's to change
  uint64_t busy_ns = 0;
  uint64_t launches = 0;
  uint64_t throttled_ns = 0;
};
using SlotImages = std::array<SlotImage, page::kMaxProcesses>;

// How far page and card may be apart before somebody is told: overhead that is corrected anyway stays below it.
inline constexpr int64_t kLedgerToleranceBytes = int64_t{1} << 30;
inline constexpr int64_t kLimitToleranceBytes = int64_t{64} << 20;

class SlotWatch {
 public:
  struct Process {
    uint32_t slot = 0;
    int64_t pid = 0;  // 0: not known
    bool dead = false;
    int64_t used_bytes = kUnknownBytes;  // by the card
    SlotImage image;
  };

  struct Found {
    bool died = false;            // a process ended since the last look
    std::vector<uint32_t> clear;  // slots to be cleared in the page, once the corrections are published
  };
  // Locks and page, many times a second.
  Found look(uint64_t now_ns, const std::vector<SlotOwner>& owners, const SlotImages& images);

  // A reading of the card that was started at started_ns, with the page's slots as they were before and after it.
  // Slots to be cleared come out as in look().
  Found card_read(uint64_t now_ns, uint64_t started_ns, const CardReading& reading, const SlotImages& before);

  uint64_t correction_bytes(uint32_t slot) const { return slots_[slot].correction; }
  // What the card spends on the grant by its own word; nullopt before the first reading or where it does not say.
  std::optional<int64_t> used_bytes() const { return used_; }
  // What the programs' page says, plus corrections.
  uint64_t charged_bytes() const;
  // Asked for every grant of a card many times a second, so they are counted when something changes.
  bool any_alive() const { return alive_ > 0; }   // some slot's lock is held
  bool any_waiting() const { return dead_ > 0; }  // a dead process is still charged: the card should be read soon
  uint32_t deaths_open() const;                   // dead processes of which no reading has told since
  bool held(uint32_t slot) const { return slots_[slot].state == State::kOwned; }  // at the last look
  bool holds(int64_t pid) const;
  std::vector<Process> processes() const;

  // One sentence when page and card differ as honest programs' do not, for two readings in a row.
  std::optional<std::string> difference(int64_t limit_bytes) const;

 private:
  enum class State { kEmpty, kOwned, kDead };
  struct Slot {
    State state = State::kEmpty;
    int64_t pid = 0;
    uint64_t dead_since_ns = 0;
    bool read = false;             // dead, and a reading that began later has told of it
    int64_t used = kUnknownBytes;  // by the card, last reading
    uint64_t correction = 0;
    uint64_t counted = 0;  // what its programs counted for it while it lived, last look
    SlotImage image;
  };
  using Owners = std::array<const SlotOwner*, page::kMaxProcesses>;
  void remember_elsewhere(uint64_t now_ns, uint32_t from, const Owners& owner_of, const SlotImages& images);
  void charge_dead(uint32_t index, Found& found);
  void settle_dead(uint64_t now_ns, uint64_t started_ns, const CardReading* reading, Found& found);
  void count();

  std::array<Slot, page::kMaxProcesses> slots_{};
  uint32_t alive_ = 0, dead_ = 0;  // slots in these states
  std::optional<int64_t> used_;
  int silent_rounds_ = 0;  // readings in a row in which the page said much less than the card
};

}  // namespace sluice::agent
