// Go's math/rand (version 1 sources), because the published runs drew their arrivals from it: an additive lagged
// Fibonacci generator of 607 words with lag 273, started by a multiplicative generator and a table of 607 words.
//
// That table is itself the generator's state after 7.8e12 steps from seed 1. It is computed here, by jumping ahead in
// the recurrence (x^n modulo its characteristic polynomial), rather than carried as 607 constants; the test compares
// the drawn arrivals with the stored published ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::replay {

class GoRandom {
 public:
  static constexpr size_t kLength = 607;
  explicit GoRandom(int64_t seed);

  uint64_t bits64();
  int64_t int63() { return static_cast<int64_t>(bits64() & (~uint64_t{0} >> 1)); }
  uint32_t bits32() { return static_cast<uint32_t>(int63() >> 31); }
  int32_t int31() { return static_cast<int32_t>(int63() >> 32); }
  // In [0, n), n > 0, as rand.Intn draws it.
  int32_t below(int32_t n);
  // In [0, n), n > 0, as rand.Shuffle draws it.
  int32_t shuffle_below(int32_t n);

 private:
  std::array<uint64_t, kLength> state_;
  size_t tap_ = 0;
  size_t feed_;
};

}  // namespace sluice::replay
