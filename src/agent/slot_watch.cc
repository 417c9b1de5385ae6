#include "agent/slot_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace sluice::agent {
namespace {

// Bytes that a page claims are bounded: sums stay far from overflow whatever is written there.
constexpr uint64_t kMostBytes = uint64_t{1} << 46;

// What the guests count for the slot (guest/ledger.h), corrections aside.
uint64_t counted_for(const SlotImage& image) {
  return std::max(image.live ? image.reserved_bytes : 0, image.tally_bytes);
}

}  // namespace

SlotWatch::Found SlotWatch::look(uint64_t now_ns, const std::vector<SlotOwner>& owners, const SlotImages& images) {
  Found found;
  Owners owner_of{};
  for (const SlotOwner& owner : owners) {
    if (owner.slot < page::kMaxProcesses) owner_of[owner.slot] = &owner;
  }
  for (uint32_t i = 0; i < page::kMaxProcesses; ++i) {
    Slot& slot = slots_[i];
    slot.image = images[i];
    slot.image.reserved_bytes = std::min(slot.image.reserved_bytes, kMostBytes);
    slot.image.tally_bytes = std::min(slot.image.tally_bytes, kMostBytes);
    if (owner_of[i] != nullptr) {
      if (slot.state != State::kOwned || slot.pid != owner_of[i]->pid) {
        if (slot.state == State::kOwned) found.died = true;  // another process took the slot between two looks
        if (slot.state != State::kEmpty) remember_elsewhere(now_ns, i, owner_of, images);
        slot.pid = owner_of[i]->pid;
        slot.used = kUnknownBytes;
        slot.counted = 0;
        slot.correction = 0;
        slot.state = State::kOwned;
      }
      slot.counted = slot.image.tally_bytes;
      continue;
    }
    if (slot.state == State::kOwned) {
      slot.state = State::kDead;
      slot.dead_since_ns = now_ns;
      slot.read = false;
      found.died = true;
    } else if (slot.state == State::kEmpty && slot.image.live) {
      // Lived and died between two looks, or before this agent was started.
      slot.state = State::kDead;
      slot.pid = 0;
      slot.dead_since_ns = now_ns;
      slot.read = false;
      found.died = true;
    }
    if (slot.state == State::kDead) charge_dead(i, found);
  }
  settle_dead(now_ns, 0, nullptr, found);
  return found;
}

// What it said may be gone from the page while the card still has its contexts; its tally is gone with it. From the
// reading on that tells of it the page has no part in its charge: whoever is left may write it.
void SlotWatch::charge_dead(uint32_t index, Found& found) {
  Slot& slot = slots_[index];
  uint64_t used = slot.used > 0 ? static_cast<uint64_t>(slot.used) : 0;
  if (slot.pid != 0) used = std::max(used, slot.counted);
  if (slot.read) {
    if (slot.image.live || slot.image.reserved_bytes > 0) found.clear.push_back(index);
    slot.image = {};
  }
  const uint64_t said = counted_for(slot.image);
  slot.correction = used > said ? used - said : 0;
}

// A slot whose page was emptied can be claimed before its last process is off the card. What that one left is charged
// at a slot that nobody uses.
void SlotWatch::remember_elsewhere(uint64_t now_ns, uint32_t from, const Owners& owner_of, const SlotImages& images) {
  const Slot& old = slots_[from];
  if (old.pid == 0) return;
  for (uint32_t i = page::kMaxProcesses; i-- > 0;) {
    if (slots_[i].state != State::kEmpty || owner_of[i] != nullptr || images[i].live) continue;
    slots_[i] = old;
    slots_[i].image = {};
    if (old.state == State::kOwned) {
      slots_[i].dead_since_ns = now_ns;
      slots_[i].read = false;
    }
    slots_[i].state = State::kDead;
    return;
  }
}

void SlotWatch::settle_dead(uint64_t now_ns, uint64_t started_ns, const CardReading* reading, Found& found) {
  for (uint32_t i = 0; i < page::kMaxProcesses; ++i) {
    Slot& slot = slots_[i];
    if (slot.state != State::kDead) continue;
    bool free = now_ns - slot.dead_since_ns >= kDeadHoldNs;
    if (!free && reading != nullptr && started_ns > slot.dead_since_ns && slot.pid != 0) {
      free = std::none_of(reading->processes.begin(), reading->processes.end(),
                          [&](const ProcessUse& use) { return use.pid == slot.pid; });
    }
    // A process that nothing is charged for and of which no reading tells needs no wait beyond that reading.
    if (!free && (slot.read || slot.pid == 0) && slot.used <= 0 && counted_for(slot.image) == 0 && slot.correction == 0)
      free = true;
    if (!free) continue;
    if (slot.image.live || slot.image.reserved_bytes > 0) found.clear.push_back(i);
    slot = Slot{};
  }
  count();
}

void SlotWatch::count() {
  alive_ = dead_ = 0;
  for (const Slot& slot : slots_) {
    alive_ += slot.state == State::kOwned ? 1 : 0;
    dead_ += slot.state == State::kDead ? 1 : 0;
  }
}

SlotWatch::Found SlotWatch::card_read(uint64_t now_ns, uint64_t started_ns, const CardReading& reading,
                                      const SlotImages& before) {
  Found found;
  std::unordered_map<int64_t, int64_t> used_of;
  for (const ProcessUse& use : reading.processes) used_of[use.pid] = use.used_bytes;
  int64_t used_sum = 0;
  int64_t used_alive = 0;  // what the page of living processes is held against
  uint64_t said_sum = 0;
  bool known = true;
  std::set<int64_t> counted;
  for (uint32_t i = 0; i < page::kMaxProcesses; ++i) {
    Slot& slot = slots_[i];
    if (slot.state == State::kEmpty || slot.pid == 0) continue;
    auto entry = used_of.find(slot.pid);
    if (slot.state == State::kDead) {
      slot.read = slot.read || started_ns > slot.dead_since_ns;
      if (entry == used_of.end()) continue;
      if (entry->second != kUnknownBytes) slot.used = entry->second;
      charge_dead(i, found);
    } else {
      slot.used = entry == used_of.end() ? 0 : entry->second;
      // Reservations go up before the card's figure and down after it: the larger of the two looks at the page is what
      // the card's figure can be held against.
      const uint64_t said = std::max(std::min(counted_for(before[i]), kMostBytes), counted_for(slot.image));
      slot.correction =
          slot.used > 0 && static_cast<uint64_t>(slot.used) > said ? static_cast<uint64_t>(slot.used) - said : 0;
      said_sum += std::max(std::min(before[i].reserved_bytes, kMostBytes), slot.image.reserved_bytes);
    }
    if (entry != used_of.end() && entry->second == kUnknownBytes) known = false;
    if (slot.used <= 0 || !counted.insert(slot.pid).second) continue;
    used_sum += slot.used;
    if (slot.state == State::kOwned) used_alive += slot.used;
  }
  used_ = known ? std::optional<int64_t>(used_sum) : std::nullopt;
  const bool apart = known && used_alive > static_cast<int64_t>(said_sum) + kLedgerToleranceBytes;
  const bool silent = known && used_alive > kLimitToleranceBytes && said_sum == 0;
  silent_rounds_ = apart || silent ? silent_rounds_ + 1 : 0;
  settle_dead(now_ns, started_ns, &reading, found);
  return found;
}

uint64_t SlotWatch::charged_bytes() const {
  uint64_t sum = 0;
  for (const Slot& slot : slots_) sum += counted_for(slot.image) + slot.correction;
  return sum;
}

uint32_t SlotWatch::deaths_open() const {
  return static_cast<uint32_t>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == State::kDead && slot.pid != 0 && !slot.read;
  }));
}

bool SlotWatch::holds(int64_t pid) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const Slot& slot) { return slot.state != State::kEmpty && slot.pid == pid && pid != 0; });
}

std::vector<SlotWatch::Process> SlotWatch::processes() const {
  std::vector<Process> list;
  for (uint32_t i = 0; i < page::kMaxProcesses; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state == State::kEmpty) continue;
    list.push_back({i, slot.pid, slot.state == State::kDead, slot.used, slot.image});
  }
  return list;
}

std::optional<std::string> SlotWatch::difference(int64_t limit_bytes) const {
  constexpr int64_t kMib = 1 << 20;
  if (!used_) return std::nullopt;
  const auto charged_mib = static_cast<int64_t>(charged_bytes()) / kMib;
  if (limit_bytes > 0 && *used_ > limit_bytes + kLimitToleranceBytes) {
    return fmt::format("uses {} MiB of the card by the card's word, its limit is {} MiB", *used_ / kMib,
                       limit_bytes / kMib);
  }
  if (silent_rounds_ >= 2) {
    uint64_t said = 0;
    for (const Slot& slot : slots_) said += slot.image.live ? slot.image.reserved_bytes : 0;
    return fmt::format("uses {} MiB of the card by the card's word, its page says {} MiB ({} MiB are charged)",
                       *used_ / kMib, said / kMib, charged_mib);
  }
  return std::nullopt;
}

}  // namespace sluice::agent
