// The account of one container on one card: a credit that grows with quota x time and falls by measured busy time, in
// memory that several processes share. Two 64-bit words change together by one 16-byte compare-and-swap, so a process
// that is killed between any two instructions leaves an exact account, and nobody ever waits for a lock.
//
//   word 0: K, the credit at time S, in 1/1000 ns (ns x 1/1000 of a card), signed
//   word 1: bits 0..53 S, the time (ns modulo 2^54) up to which busy time has been subtracted; bits 54..63 the quota q
//           in 1/1000 of a card, 0 = no cap
//
// Credit at time t: C(t) = K + q (t - S). S is the container's low-water mark: busy time of all its processes before S
// is in K, later busy time is not yet known to anybody. Settling moves S forward. A change of the quota at t keeps
// C(t).
#pragma once

#include <cstdint>

#include "page/usage.h"

namespace sluice::governor {

inline constexpr uint64_t kTimeMask = (1ull << 54) - 1;
inline constexpr uint32_t kWholeCard = 1000;  // permille; a quota of this or more is no cap

struct Credit {
  int64_t at_settled = 0;   // K, 1/1000 ns
  uint64_t settled_ns = 0;  // S modulo 2^54; 0 with quota 0: never used
  uint32_t permille = 0;

  bool operator==(const Credit& other) const {
    return at_settled == other.at_settled && settled_ns == other.settled_ns && permille == other.permille;
  }
};

// S as a full time stamp, taken to lie within 2^53 ns (104 days) of `near_ns`.
uint64_t settled_time(const Credit& credit, uint64_t near_ns);
// C(now) in ns of card time.
int64_t credit_ns(const Credit& credit, uint64_t now_ns);

Credit load_credit(const page::Account& account);
// False (and `expected` renewed) when somebody else changed it. Every change must move S or the quota: readers tell
// torn reads by that.
bool swap_credit(page::Account& account, Credit& expected, const Credit& desired);

// Moves S to `to_ns` and subtracts the busy time found in between. False when the account has moved since `seen` was
// loaded: look again from the new S. `floor_ns`: the credit is not let below this (policy burst forgives lent time).
bool settle_account(page::UsageCard& card, const Credit& seen, uint64_t to_ns, uint64_t busy_ns, int64_t floor_ns);
// Busy time that was found after S had passed it (a process that was stopped): subtracted as it is.
void charge_late(page::UsageCard& card, uint64_t busy_ns, uint64_t now_ns);
// The container was idle until now: what it earned while idle counts up to the burst.
void clamp_idle(page::UsageCard& card, uint64_t now_ns);
// Takes over a new quota.
void set_quota(page::UsageCard& card, uint32_t permille, uint64_t now_ns);
// Settled busy time in the second that ends now.
uint64_t busy_last_second(const page::UsageCard& card, uint64_t now_ns);

}  // namespace sluice::governor
