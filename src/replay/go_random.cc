#include "replay/go_random.h"

#include <vector>

namespace sluice::replay {
namespace {

constexpr size_t kLength = GoRandom::kLength;
constexpr size_t kTap = 273;
constexpr uint64_t kCookedSteps = 7'800'000'000'000u;

// Park and Miller's generator with multiplier 48271, modulus 2^31 - 1.
uint64_t next_seed(uint64_t x) {
  return x * 48271u % 2147483647u;
}

uint64_t reduced(int64_t seed) {
  constexpr int64_t kModulus = 2147483647;
  seed %= kModulus;
  if (seed < 0) seed += kModulus;
  return seed == 0 ? 89482311u : static_cast<uint64_t>(seed);
}

// Three draws make one word; twenty draws are thrown away first.
std::array<uint64_t, kLength> seeded(int64_t seed, int high_shift, int low_shift) {
  std::array<uint64_t, kLength> words;
  uint64_t x = reduced(seed);
  for (int i = 0; i < 20; ++i) x = next_seed(x);
  for (uint64_t& word : words) {
    x = next_seed(x);
    word = x << high_shift;
    x = next_seed(x);
    word ^= x << low_shift;
    x = next_seed(x);
    word ^= x;
  }
  return words;
}

// Polynomials of degree below 607 over the integers modulo 2^64. Both pointers of the generator walk downwards, so its
// outputs y obey y[t] = y[t - 607] + y[t - 273], hence x^607 = x^334 + 1.
using Polynomial = std::vector<uint64_t>;

Polynomial product(const Polynomial& a, const Polynomial& b) {
  std::vector<uint64_t> wide(2 * kLength - 1, 0);
  for (size_t i = 0; i < kLength; ++i)
    if (a[i] != 0)
      for (size_t j = 0; j < kLength; ++j) wide[i + j] += a[i] * b[j];
  for (size_t i = wide.size() - 1; i >= kLength; --i) {
    wide[i - kTap] += wide[i];
    wide[i - kLength] += wide[i];
  }
  wide.resize(kLength);
  return wide;
}

// x^power.
Polynomial power_of_x(uint64_t power) {
  Polynomial result(kLength, 0), square(kLength, 0);
  result[0] = 1;
  square[1] = 1;
  for (; power != 0; power >>= 1) {
    if (power & 1) result = product(result, square);
    square = product(square, square);
  }
  return result;
}

// The table: the state after kCookedSteps steps from seed 1. Outputs before step 0 are the seeded words, newest first:
// step t overwrites the word at (334 - 1 - t) mod 607, so the word there is y[t - 607].
std::array<uint64_t, kLength> cook() {
  const std::array<uint64_t, kLength> start = seeded(1, 20, 10);
  constexpr size_t kFeed = kLength - kTap;
  auto place = [](uint64_t step) { return (kFeed + kLength - 1 - step % kLength) % kLength; };
  std::vector<uint64_t> outputs(2 * kLength);  // outputs[i] = y[i - 607]
  for (size_t i = 0; i < kLength; ++i) outputs[i] = start[place(i)];
  for (size_t i = kLength; i < outputs.size(); ++i) outputs[i] = outputs[i - kLength] + outputs[i - kTap];
  // The last 607 outputs before kCookedSteps are y[n - 607 + i], that is x^n applied to outputs[i ...].
  const Polynomial jump = power_of_x(kCookedSteps);
  std::array<uint64_t, kLength> cooked;
  for (size_t i = 0; i < kLength; ++i) {
    uint64_t word = 0;
    for (size_t j = 0; j < kLength; ++j) word += jump[j] * outputs[i + j];
    cooked[place(kCookedSteps + i)] = word;  // step n + i would overwrite y[n + i - 607]
  }
  return cooked;
}

}  // namespace

GoRandom::GoRandom(int64_t seed) : feed_(kLength - kTap) {
  static const std::array<uint64_t, kLength> cooked = cook();
  state_ = seeded(seed, 40, 20);
  for (size_t i = 0; i < kLength; ++i) state_[i] ^= cooked[i];
}

uint64_t GoRandom::bits64() {
  tap_ = (tap_ + kLength - 1) % kLength;
  feed_ = (feed_ + kLength - 1) % kLength;
  return state_[feed_] += state_[tap_];
}

int32_t GoRandom::below(int32_t n) {
  if ((n & (n - 1)) == 0) return int31() & (n - 1);
  constexpr uint32_t kRange = uint32_t{1} << 31;
  const int32_t largest = static_cast<int32_t>(kRange - 1 - kRange % static_cast<uint32_t>(n));
  int32_t value = int31();
  while (value > largest) value = int31();
  return value % n;
}

int32_t GoRandom::shuffle_below(int32_t n) {
  const uint32_t range = static_cast<uint32_t>(n);
  uint64_t product = uint64_t{bits32()} * range;
  if (static_cast<uint32_t>(product) < range) {
    const uint32_t threshold = (0u - range) % range;
    while (static_cast<uint32_t>(product) < threshold) product = uint64_t{bits32()} * range;
  }
  return static_cast<int32_t>(product >> 32);
}

}  // namespace sluice::replay
