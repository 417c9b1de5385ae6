#include "governor/governor.h"

namespace sluice::governor {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

// When a credit that grows with the quota reaches `target_ns`.
uint64_t time_of_credit(uint64_t now_ns, int64_t credit, uint64_t target_ns, uint32_t permille) {
  const int64_t missing = static_cast<int64_t>(target_ns) - credit;
  if (missing <= 0) return now_ns;
  return now_ns + static_cast<uint64_t>(missing) * kWholeCard / permille + 1;
}

Decision refuse(uint64_t now_ns, page::BlockedBy why, uint64_t retry_ns) {
  Decision decision;
  decision.blocked = why;
  decision.retry_ns = smaller(larger(retry_ns, now_ns + 1'000), now_ns + kGateWaitNs);
  return decision;
}

Decision admit(const Limits& limits, const Ask& ask, uint64_t room_ns) {
  Decision decision;
  decision.admit = true;
  const uint64_t segment = smaller(room_ns, segment_ns(limits));
  decision.allowance_ns = ask.known ? larger(ask.estimate_ns, segment) : ask.estimate_ns;
  return decision;
}

// The unit in flight may be waiting for one that stands at the gate (a flag, a peer): when the oldest is overdue, one
// is let through; each further one while the same unit is the oldest doubles the wait. Debt like any other.
bool past_overdue(uint64_t now_ns, page::Account& account, const InFlight& in_flight, const Limits& limits,
                  const Ask& ask) {
  const uint64_t overdue = in_flight.oldest_overdue_ns;
  if (__builtin_expect(limits.mutations != 0, 0)) {
    if ((limits.mutations & kMutateNoLiveness) != 0) return false;
    const bool ran = in_flight.units != 0 && now_ns > in_flight.low_water_ns + kOverdueLeastNs;
    if ((limits.mutations & kMutateAllLiveness) != 0 && ran) return true;
  }
  if (overdue == page::kIdle || now_ns < overdue || ask.behind) return false;
  if (account.overdue_unit.load(std::memory_order_relaxed) != overdue) {
    account.overdue_unit.store(overdue, std::memory_order_relaxed);
    account.overdue_passed = 0;
    account.overdue_next_ns.store(now_ns, std::memory_order_relaxed);
  }
  if (now_ns < account.overdue_next_ns.load(std::memory_order_relaxed)) return false;
  const uint32_t passed = account.overdue_passed < 16 ? account.overdue_passed : 16;
  account.overdue_passed = passed + 1;
  account.overdue_next_ns.store(now_ns + (kOverdueLeastNs << passed), std::memory_order_relaxed);
  account.overdue_passes.fetch_add(1, std::memory_order_relaxed);
  account.passed_ns.store(now_ns, std::memory_order_relaxed);
  return true;
}

// Room that the last second's budget leaves, in ns; ~0 when it does not apply. Without it a container that paused could
// run its burst on top of a full second.
uint64_t budget_room(uint64_t now_ns, const page::UsageCard& card, const Limits& limits, const InFlight& in_flight) {
  if ((limits.mutations & kMutateBudget) != 0 || (limits.gate & page::kGateLong) != 0 ||
      in_flight.longest_unit_ns > kLongUnitNs)
    return ~0ull;
  const uint64_t budget = kSecondNs / kWholeCard * limits.permille + kBudgetSlackNs;
  const uint64_t busy = busy_last_second(card, now_ns);
  // More than this share and its burst could have given is from before the share was lowered.
  if (busy > budget + kBurstNs) return ~0ull;
  const uint64_t used = busy + in_flight.outstanding_ns;
  return used < budget ? budget - used : 0;
}

// Hysteresis over the credit. In turns it is small; alone, all cards of the container open together.
bool credit_gate(page::Account& account, const Limits& limits, int64_t credit, uint64_t opens_at, uint64_t closes_at) {
  const bool open = account.hysteresis.load(std::memory_order_relaxed) != 0;
  // They close together too, or a rank whose card stays open waits in a collective for one whose card has closed, and
  // burns its credit. A card whose program does not use up its share anyway stays out of this.
  const bool alone = !limits.siblings_ready && credit < static_cast<int64_t>(2 * kOpenNs);
  if (open && (alone || credit <= static_cast<int64_t>(closes_at))) {
    account.hysteresis.store(0, std::memory_order_relaxed);
    return false;
  }
  if (!open && credit >= static_cast<int64_t>(opens_at) && limits.siblings_ready) {
    account.hysteresis.store(1, std::memory_order_relaxed);
    return true;
  }
  return open;
}

// A mutation: twice the hysteresis is all that is ever kept.
void clamp_always(page::UsageCard& card, uint64_t now_ns) {
  Credit seen = load_credit(card.account);
  const int64_t excess = credit_ns(seen, now_ns) - static_cast<int64_t>(2 * kOpenNs);
  if (excess <= 0) return;
  Credit next = seen;
  next.settled_ns = (seen.settled_ns + 1) & kTimeMask;
  next.at_settled -= excess * 1000;
  swap_credit(card.account, seen, next);
}

// What is in flight and has not run yet: all of it but what can have run since the low-water mark.
uint64_t remaining(uint64_t now_ns, const InFlight& in_flight) {
  const uint64_t ran = now_ns > in_flight.low_water_ns ? now_ns - in_flight.low_water_ns : 0;
  return in_flight.outstanding_ns > ran ? in_flight.outstanding_ns - ran : 0;
}

// In a turn: does the unit fit into what is left of it?
bool fits_turn(uint64_t now_ns, const InFlight& in_flight, const Ask& ask, uint64_t left_ns) {
  if (in_flight.units != 0) return remaining(now_ns, in_flight) + ask.estimate_ns <= left_ns;
  if (left_ns >= ask.estimate_ns && ask.known) return true;
  // Longer than a turn, or of unknown length: only at its beginning, so that it overruns once and not twice.
  if (!ask.known) return left_ns >= kInFlightNs;
  return ask.estimate_ns > kInFlightNs && left_ns >= kOpenNs;
}

}  // namespace

Limits read_limits(const page::GrantCard& card, uint64_t now_ns) {
  Limits limits;
  limits.permille = card.core_permille.load(std::memory_order_relaxed);
  if (limits.permille >= kWholeCard) limits.permille = 0;
  limits.policy = card.policy.load(std::memory_order_relaxed);
  if (limits.policy == page::kPolicyNative) limits.permille = 0;
  limits.gate = card.gate.load(std::memory_order_seq_cst);
  limits.turn_end_ns = card.turn_end_ns.load(std::memory_order_relaxed);
  const uint64_t heartbeat = card.heartbeat_ns.load(std::memory_order_relaxed);
  const bool fresh = heartbeat != 0 && (now_ns <= heartbeat || now_ns - heartbeat <= kHeartbeatStaleNs);
  limits.fresh = fresh;
  limits.turns = fresh && (limits.gate & page::kGateTurns) != 0;
  return limits;
}

InFlight sum_in_flight(const page::UsageCard& card) {
  InFlight sum;
  uint32_t high = card.account.slot_high.load(std::memory_order_acquire);
  if (high > page::kMaxProcesses) high = page::kMaxProcesses;
  for (uint32_t i = 0; i < high; ++i) {
    const page::ComputeSlot& slot = card.compute[i];
    const uint32_t activity = slot.activity.load(std::memory_order_seq_cst);
    sum.dirty += activity & page::kDirtyMask;
    sum.waiting += activity >> page::kWaitingShift;
    sum.outstanding_ns += slot.outstanding_ns.load(std::memory_order_relaxed);
    sum.units += slot.units.load(std::memory_order_relaxed);
    sum.low_water_ns = smaller(sum.low_water_ns, slot.attached.load(std::memory_order_relaxed) == 0
                                                     ? page::kIdle
                                                     : slot.low_water_ns.load(std::memory_order_relaxed));
    sum.oldest_overdue_ns = smaller(sum.oldest_overdue_ns, slot.attached.load(std::memory_order_relaxed) == 0
                                                               ? page::kIdle
                                                               : slot.overdue_ns.load(std::memory_order_relaxed));
    sum.longest_unit_ns =
        larger(sum.longest_unit_ns, uint64_t{slot.longest_unit_us.load(std::memory_order_relaxed)} * 1000);
  }
  return sum;
}

uint64_t overdue_after(uint64_t now_ns, uint64_t longest_ns, bool known) {
  return now_ns + (known ? larger(kOverdueLeastNs, 4 * longest_ns) : kOverdueUnknownNs);
}

bool credit_ready(uint64_t now_ns, const page::UsageCard& card) {
  const Credit credit = load_credit(card.account);
  return credit.permille == 0 || credit_ns(credit, now_ns) >= static_cast<int64_t>(kOpenNs);
}

Decision step(uint64_t now_ns, page::UsageCard& card, const Limits& limits, const InFlight& in_flight, const Ask& ask) {
  page::Account& account = card.account;
  const bool nothing = in_flight.units == 0;
  uint64_t room = limits.in_flight_ns > in_flight.outstanding_ns ? limits.in_flight_ns - in_flight.outstanding_ns : 0;

  uint64_t left = ~0ull;
  if (limits.turns) {
    if ((limits.gate & page::kGateOpen) == 0) return refuse(now_ns, page::kBlockedByTurn, now_ns + kGateWaitNs);
    left = limits.turn_end_ns > now_ns ? limits.turn_end_ns - now_ns : 0;
  }

  const bool lent = limits.turns && (limits.gate & page::kGateLent) != 0;
  const bool free_running = limits.policy == page::kPolicyBurst && !limits.turns && limits.fresh;
  // Without a cap the bound alone counts; long units still go two at a time, or the card would idle after each.
  int64_t covered = INT64_MAX;
  if (limits.permille != 0 && !lent && !free_running) {
    if (ask.first && nothing && in_flight.waiting == 0) clamp_idle(card, now_ns);
    if ((limits.mutations & kMutateClamp) != 0) clamp_always(card, now_ns);
    const Credit credit = load_credit(account);
    const int64_t now_credit = credit_ns(credit, now_ns);
    const bool narrow = limits.turns && (limits.mutations & kMutateHysteresis) == 0;
    const uint64_t opens_at = narrow ? kTurnOpenNs : kOpenNs;
    const bool open = credit_gate(account, limits, now_credit, opens_at, narrow ? kTurnCloseNs : 0);
    const uint64_t budget = budget_room(now_ns, card, limits, in_flight);
    if (!open || budget == 0 || (budget < ask.estimate_ns && !nothing)) {
      uint64_t retry = open ? now_ns + kInFlightNs : time_of_credit(now_ns, now_credit, opens_at, limits.permille);
      account.resume_ns.store(retry, std::memory_order_relaxed);
      if (past_overdue(now_ns, account, in_flight, limits, ask)) return admit(limits, ask, 0);
      if (in_flight.oldest_overdue_ns != page::kIdle)
        retry = smaller(retry, larger(in_flight.oldest_overdue_ns, now_ns));
      return refuse(now_ns, page::kBlockedByCredit, retry);
    }
    account.resume_ns.store(0, std::memory_order_relaxed);
    covered = now_credit - static_cast<int64_t>(in_flight.outstanding_ns);
    room = smaller(room, budget);
  }

  if (limits.turns && !fits_turn(now_ns, in_flight, ask, left)) {
    if (past_overdue(now_ns, account, in_flight, limits, ask)) return admit(limits, ask, 0);
    return refuse(now_ns, page::kBlockedByTurn, now_ns + kGateWaitNs);
  }
  if (limits.turns) {
    const uint64_t before = remaining(now_ns, in_flight);
    room = smaller(room, left > before ? left - before : 0);
  }
  if (nothing) return admit(limits, ask, covered > 0 ? smaller(room, static_cast<uint64_t>(covered)) : 0);

  // What should have ended long since, and has not, does not stand for what will still run: kernels that wait for each
  // other would wait at the gate. A stream that has nothing in flight may put in one unit. (Processes get the card in
  // time slices: each stream at work may have to wait for those of the others.)
  const uint64_t expected_ns = 2 * in_flight.outstanding_ns + in_flight.dirty * kStuckNs;
  const bool stuck = now_ns > in_flight.low_water_ns && now_ns - in_flight.low_water_ns >= expected_ns &&
                     (limits.mutations & kMutateStuck) == 0;
  if (ask.known && stuck && !ask.behind && covered >= static_cast<int64_t>(ask.estimate_ns)) {
    account.passed_ns.store(now_ns, std::memory_order_relaxed);
    return admit(limits, ask, 0);
  }

  const bool few = in_flight.units + 1 <= kInFlightUnits;
  const bool within = room >= ask.estimate_ns || few;
  if (ask.known && within && covered >= static_cast<int64_t>(ask.estimate_ns)) {
    return admit(limits, ask, smaller(room, static_cast<uint64_t>(covered)));
  }
  if (past_overdue(now_ns, account, in_flight, limits, ask)) return admit(limits, ask, 0);
  const uint64_t retry = now_ns + kGateWaitNs;
  return refuse(now_ns, page::kBlockedByBound, smaller(retry, larger(in_flight.oldest_overdue_ns, now_ns)));
}

}  // namespace sluice::governor
