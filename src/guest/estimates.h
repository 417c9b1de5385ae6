// What units of work cost as far as we have measured, per (function, grid, block), per graph exec, per kind and size of
// device copies. Estimates bound what is in flight and nothing else; they never enter an account. So a wrong one is
// harmless, which allows a plain cache: four ways per set, the oldest entry of a set is forgotten (its next unit is
// "unknown" and goes alone), readers take no lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "guest/map.h"

namespace sluice::guest {

struct Estimate {
  std::atomic<uint64_t> key;         // 0: free
  std::atomic<uint32_t> cost_ns;     // moving average, 0: never measured; 4 s at most
  std::atomic<uint32_t> longest_ns;  // longest measured, forgotten slowly
  std::atomic<uint32_t> measured;    // units, ever; saturates
};

class Estimates {
 public:
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kSets = 4096;
  static constexpr uint32_t kManyUnits = 1u << 20;

  // The entry of a key, made when absent; nullptr only when the kernel has no memory.
  Estimate* entry(uint64_t key) {
    Estimate* table = table_.load(std::memory_order_acquire);
    if (__builtin_expect(table == nullptr, 0)) table = make();
    if (table == nullptr) return nullptr;
    Estimate* set = &table[(key >> 32 & (kSets - 1)) * kWays];
    for (uint32_t way = 0; way < kWays; ++way) {
      if (set[way].key.load(std::memory_order_relaxed) == key) return &set[way];
    }
    return replace(set, key);
  }

  // `units` units of this key took `measured_ns` each.
  static void learn(Estimate* entry, uint64_t measured_ns, uint32_t units) {
    const uint32_t sure = entry->measured.load(std::memory_order_relaxed);
    if (sure < kManyUnits) entry->measured.store(sure + units, std::memory_order_relaxed);
    const uint32_t measured = static_cast<uint32_t>(measured_ns < 4'000'000'000u ? measured_ns : 4'000'000'000u);
    const uint32_t before = entry->cost_ns.load(std::memory_order_relaxed);
    int64_t next = measured;
    if (before != 0) next = int64_t{before} + (int64_t{measured} - int64_t{before}) / 4;
    entry->cost_ns.store(static_cast<uint32_t>(next < 1 ? 1 : next), std::memory_order_relaxed);
    const uint32_t longest = entry->longest_ns.load(std::memory_order_relaxed);
    entry->longest_ns.store(measured > longest ? measured : longest - (longest - measured) / 64,
                            std::memory_order_relaxed);
  }

 private:
  Estimate* make() {
    Estimate* fresh = static_cast<Estimate*>(sys::map_pages(sizeof(Estimate) * kSets * kWays));
    Estimate* expected = nullptr;
    if (fresh == nullptr || table_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return fresh;
    sys::unmap_pages(fresh, sizeof(Estimate) * kSets * kWays);
    return expected;
  }

  Estimate* replace(Estimate* set, uint64_t key) {
    Estimate* victim = nullptr;
    for (uint32_t way = 0; way < kWays && victim == nullptr; ++way) {
      if (set[way].key.load(std::memory_order_relaxed) == 0) victim = &set[way];
    }
    if (victim == nullptr) victim = &set[next_victim_.fetch_add(1, std::memory_order_relaxed) % kWays];
    victim->cost_ns.store(0, std::memory_order_relaxed);
    victim->longest_ns.store(0, std::memory_order_relaxed);
    victim->measured.store(0, std::memory_order_relaxed);
    victim->key.store(key, std::memory_order_relaxed);
    return victim;
  }

  std::atomic<Estimate*> table_{nullptr};
  std::atomic<uint32_t> next_victim_{0};
};

// Keys of units. Never 0.
inline uint64_t unit_key(uint64_t what, uint64_t grid, uint64_t block) {
  const uint64_t key = mix64(what ^ mix64(grid * 0x9e3779b97f4a7c15ull + block));
  return key == 0 ? 1 : key;
}

}  // namespace sluice::guest
