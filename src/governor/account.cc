#include "governor/account.h"

#include "governor/governor.h"

namespace sluice::governor {
namespace {

constexpr int64_t kScale = 1000;
constexpr uint64_t kBinNs = 10'000'000;
constexpr uint64_t kSecondNs = 1'000'000'000;

uint64_t pack(const Credit& credit) {
  return (credit.settled_ns & kTimeMask) | (uint64_t{credit.permille} << 54);
}

int64_t time_difference(uint64_t later, uint64_t earlier) {
  // Sign extension of a 54-bit difference.
  return static_cast<int64_t>((later - earlier) << 10) >> 10;
}

int64_t clamped_growth(const Credit& credit, uint64_t now_ns) {
  int64_t elapsed = time_difference(now_ns, credit.settled_ns);
  // Beyond an hour only the clamp matters; without this bound the product could overflow.
  constexpr int64_t kHour = 3600ll * 1000 * 1000 * 1000;
  if (elapsed > kHour) elapsed = kHour;
  if (elapsed < -kHour) elapsed = -kHour;
  return elapsed * static_cast<int64_t>(credit.permille);
}

int64_t at_most_a_second(int64_t credit, uint32_t permille) {
  const int64_t most = static_cast<int64_t>(kSecondNs) * permille;
  return credit > most ? most : credit;
}

// Fills the bins whose start the settled time has passed on its way from `from_ns` to `to_ns`; the busy time in between
// counts as spread evenly. Whoever dies in here leaves a bin or two out of date, which one second heals.
void note_history(page::UsageCard& card, uint64_t from_ns, uint64_t to_ns, uint64_t busy_before_ns, uint64_t busy_ns) {
  const uint64_t last_bin = to_ns / kBinNs;
  uint64_t bin = from_ns / kBinNs + 1;
  if (last_bin >= page::kBusyBins && bin + page::kBusyBins <= last_bin) bin = last_bin - page::kBusyBins + 1;
  for (; bin <= last_bin; ++bin) {
    const uint64_t part = bin * kBinNs > from_ns ? busy_ns * (bin * kBinNs - from_ns) / (to_ns - from_ns) : 0;
    card.busy_history[bin % page::kBusyBins].store(busy_before_ns + part, std::memory_order_relaxed);
  }
}

}  // namespace

uint64_t settled_time(const Credit& credit, uint64_t near_ns) {
  return near_ns - static_cast<uint64_t>(time_difference(near_ns, credit.settled_ns));
}

int64_t credit_ns(const Credit& credit, uint64_t now_ns) {
  return (credit.at_settled + clamped_growth(credit, now_ns)) / kScale;
}

Credit load_credit(const page::Account& account) {
  for (int tries = 0;; ++tries) {
    const uint64_t before = __atomic_load_n(&account.credit[1], __ATOMIC_ACQUIRE);
    const uint64_t value = __atomic_load_n(&account.credit[0], __ATOMIC_ACQUIRE);
    const uint64_t after = __atomic_load_n(&account.credit[1], __ATOMIC_ACQUIRE);
    // A page full of nonsense cannot hold us here: after some rounds any value will do.
    if (before == after || tries == 64) {
      return {static_cast<int64_t>(value), after & kTimeMask, static_cast<uint32_t>(after >> 54)};
    }
  }
}

bool swap_credit(page::Account& account, Credit& expected, const Credit& desired) {
  __extension__ typedef unsigned __int128 Word;
  const Word from = (static_cast<Word>(pack(expected)) << 64) | static_cast<uint64_t>(expected.at_settled);
  const Word to = (static_cast<Word>(pack(desired)) << 64) | static_cast<uint64_t>(desired.at_settled);
  const Word found = __sync_val_compare_and_swap(reinterpret_cast<Word*>(&account.credit[0]), from, to);
  if (found == from) return true;
  const uint64_t high = static_cast<uint64_t>(found >> 64);
  expected = {static_cast<int64_t>(static_cast<uint64_t>(found)), high & kTimeMask, static_cast<uint32_t>(high >> 54)};
  return false;
}

bool settle_account(page::UsageCard& card, const Credit& seen, uint64_t to_ns, uint64_t busy_ns, int64_t floor_ns) {
  const int64_t advance = time_difference(to_ns, seen.settled_ns);
  if (advance <= 0) return true;
  Credit next = seen;
  next.settled_ns = to_ns & kTimeMask;
  if (seen.permille != 0) {
    next.at_settled += clamped_growth(seen, to_ns) - static_cast<int64_t>(busy_ns) * kScale;
    next.at_settled = at_most_a_second(next.at_settled, seen.permille);
    if (next.at_settled < floor_ns * kScale) next.at_settled = floor_ns * kScale;
  }
  Credit expected = seen;
  if (!swap_credit(card.account, expected, next)) return false;
  const uint64_t before = card.account.busy_total_ns.fetch_add(busy_ns, std::memory_order_relaxed);
  note_history(card, settled_time(seen, to_ns), to_ns, before, busy_ns);
  return true;
}

void charge_late(page::UsageCard& card, uint64_t busy_ns, uint64_t now_ns) {
  (void)now_ns;
  card.account.busy_total_ns.fetch_add(busy_ns, std::memory_order_relaxed);
  Credit seen = load_credit(card.account);
  for (int tries = 0; tries < 64 && seen.permille != 0; ++tries) {
    Credit next = seen;
    // One ns more of settled time, worth its quota, so that the change can be seen.
    next.settled_ns = (seen.settled_ns + 1) & kTimeMask;
    next.at_settled += static_cast<int64_t>(seen.permille) - static_cast<int64_t>(busy_ns) * kScale;
    if (swap_credit(card.account, seen, next)) return;
  }
}

void clamp_idle(page::UsageCard& card, uint64_t now_ns) {
  Credit seen = load_credit(card.account);
  for (int tries = 0; tries < 64; ++tries) {
    if (seen.permille == 0) return;
    const int64_t idle = time_difference(now_ns, seen.settled_ns);
    const int64_t burst = static_cast<int64_t>(kBurstNs) * kScale;
    if (idle <= 0 || seen.at_settled + clamped_growth(seen, now_ns) <= burst) return;
    Credit next = seen;
    // What was earned while waiting is kept (a neighbour's long kernel must not cost quota), unless it slept.
    const bool slept = idle > static_cast<int64_t>(kSecondNs);
    next.at_settled = seen.at_settled > burst && !slept ? seen.at_settled : burst;
    next.settled_ns = now_ns & kTimeMask;
    const uint64_t from_ns = settled_time(seen, now_ns);
    if (!swap_credit(card.account, seen, next)) continue;
    // The settled time moves here too: without this the bins passed would keep what they held a round of the ring ago.
    note_history(card, from_ns, now_ns, card.account.busy_total_ns.load(std::memory_order_relaxed), 0);
    return;
  }
}

void set_quota(page::UsageCard& card, uint32_t permille, uint64_t now_ns) {
  if (permille >= kWholeCard) permille = 0;
  Credit seen = load_credit(card.account);
  for (int tries = 0; tries < 64; ++tries) {
    if (seen.permille == permille && seen.settled_ns != 0) return;
    Credit next = seen;
    next.permille = permille;
    if (seen.settled_ns == 0 || seen.permille == 0) {
      // A new account, or one that was not kept.
      if (seen.settled_ns == 0) next.settled_ns = now_ns & kTimeMask;
      next.at_settled = static_cast<int64_t>(kOpenNs) * kScale -
                        time_difference(now_ns, next.settled_ns) * static_cast<int64_t>(permille);
    } else {
      next.at_settled += time_difference(now_ns, seen.settled_ns) *
                         (static_cast<int64_t>(seen.permille) - static_cast<int64_t>(permille));
    }
    if (swap_credit(card.account, seen, next)) return;
  }
}

uint64_t busy_last_second(const page::UsageCard& card, uint64_t now_ns) {
  const Credit credit = load_credit(card.account);
  const uint64_t settled = settled_time(credit, now_ns);
  const uint64_t from = now_ns - kSecondNs;
  if (now_ns < kSecondNs || settled <= from || settled_time(credit, now_ns) == 0) return 0;
  const uint64_t total = card.account.busy_total_ns.load(std::memory_order_relaxed);
  const uint64_t bin = from / kBinNs;
  const uint64_t low = card.busy_history[bin % page::kBusyBins].load(std::memory_order_relaxed);
  uint64_t high = total;
  if ((bin + 1) * kBinNs <= settled) {
    high = card.busy_history[(bin + 1) % page::kBusyBins].load(std::memory_order_relaxed);
  }
  if (high < low || high > total || high - low > 2 * kBinNs)
    return total > low && total - low < kSecondNs ? total - low : 0;
  const uint64_t at_from = low + (high - low) * (from - bin * kBinNs) / kBinNs;
  return total > at_from ? total - at_from : 0;
}

}  // namespace sluice::governor
