// The governor: may this unit of work go to the card now? Pure and freestanding; one rule, shared by the guest, the
// tests and the accuracy harness. It never sees what a unit will really cost: it gets an estimate, which bounds what is
// in flight, and a credit, which only measured busy time lowers (governor/account.h).
//
// Alone on the card the gate has hysteresis (open from 3 ms of credit until there is none), so that a capped program
// runs in stretches of some milliseconds instead of unit by unit. In turns the arbiter makes the stretches, and a wide
// hysteresis would leave the card idle while both sides save up; half a millisecond is kept so that a container whose
// credit is used up ends its turn instead of trickling.
//
// A unit is admitted when nothing is in flight, or when the credit covers it and everything in flight and what is in
// flight stays within 1 ms or two units: long units go one at a time by themselves, short ones keep the card fed. A
// unit of unknown cost goes alone. The clamp to the burst while idle, the budget of the last second and the way past an
// overdue unit (it may be waiting for the very unit that the gate holds back) are explained at their code.
#pragma once

#include <cstdint>

#include "governor/account.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::governor {

inline constexpr uint64_t kOpenNs = 3'000'000;    // hysteresis when alone: opens at this credit
inline constexpr uint64_t kTurnOpenNs = 500'000;  // in turns
inline constexpr uint64_t kTurnCloseNs = 50'000;
inline constexpr uint64_t kBurstNs = 30'000'000;
inline constexpr uint64_t kInFlightNs = 1'000'000;
inline constexpr uint64_t kTurnInFlightNs = 2'000'000;  // in a turn, whose end bounds what is in flight more closely
// Beside a neighbour of high priority: what is in flight is what its requests wait for. Costs the card 1 to 2 %.
inline constexpr uint64_t kBriefInFlightNs = 250'000;
inline constexpr uint32_t kInFlightUnits = 2;
inline constexpr uint64_t kMostSegmentNs = 1'000'000;  // see segment_ns()
inline constexpr uint64_t kUnknownNs = 1'000'000;      // what a unit of unknown cost counts in flight
inline constexpr uint32_t kUnknownUnits = 1024;
inline constexpr uint64_t kBudgetSlackNs = 6'000'000;  // over quota x 1 s in any second
inline constexpr uint64_t kLongUnitNs = 5'000'000;     // units beyond this: no one-second budget on the card
inline constexpr uint64_t kStuckNs = 1'500'000;        // in flight beyond twice its estimate and this per stream: waits
inline constexpr uint64_t kOverdueLeastNs = 20'000'000;
inline constexpr uint64_t kOverdueUnknownNs = 200'000'000;
inline constexpr uint64_t kHeartbeatStaleNs = 500'000'000;
inline constexpr uint64_t kGateWaitNs = 5'000'000;  // no wait at the gate is longer
inline constexpr int64_t kNoFloorNs = -1'000'000'000'000;
inline constexpr int64_t kBurstFloorNs = -6'000'000;  // policy burst: lent time is forgiven beyond this

// Rules that a mutation test takes out, to see that a bar notices; bits beside guest::Mutation's. Always 0 in the
// shipped library.
enum Mutation : uint32_t {
  kMutateNoLiveness = 1u << 16,   // nobody passes an overdue unit
  kMutateAllLiveness = 1u << 17,  // whatever has run for 20 ms counts as overdue
  kMutateClamp = 1u << 18,        // the credit is clamped while work waits too
  kMutateBudget = 1u << 19,       // no budget of the last second
  kMutateHysteresis = 1u << 20,   // the wide hysteresis in turns too
  kMutateStuck = 1u << 21,        // what does not end counts as what will still run
};

// What the node says, as read from the grant.
struct Limits {
  uint32_t permille = 0;  // 0 = no cap
  uint32_t policy = page::kPolicyFixed;
  uint32_t gate = 0;  // page::kGate* bits
  uint64_t turn_end_ns = 0;
  bool fresh = false;                   // the node's heartbeat is
  bool turns = false;                   // kGateTurns and a fresh heartbeat
  uint64_t in_flight_ns = kInFlightNs;  // most estimated work in flight
  bool siblings_ready = true;           // the container's gates on its other cards would open too
  uint32_t mutations = 0;
};
// At most this much estimated work between two markers: half of what may be in flight, so that one segment runs while
// the next is filled. Each marker takes the card's time: with 250 us it was 0.3 % of it.
inline uint64_t segment_ns(const Limits& limits) {
  return limits.in_flight_ns / 2 < kMostSegmentNs ? limits.in_flight_ns / 2 : kMostSegmentNs;
}
Limits read_limits(const page::GrantCard& card, uint64_t now_ns);

// What is under way, summed over the container's processes.
struct InFlight {
  uint64_t outstanding_ns = 0;
  uint32_t units = 0;
  uint32_t dirty = 0;
  uint32_t waiting = 0;
  uint64_t low_water_ns = page::kIdle;  // nothing before this is outstanding
  uint64_t oldest_overdue_ns = page::kIdle;
  uint64_t longest_unit_ns = 0;
};
InFlight sum_in_flight(const page::UsageCard& card);

// When a unit launched now counts as overdue: max(20 ms, 4 x the longest time measured for its function or graph), or
// 200 ms when it was never measured.
uint64_t overdue_after(uint64_t now_ns, uint64_t longest_ns, bool known);

struct Ask {
  uint64_t estimate_ns = 0;
  bool known = false;   // false: never measured
  bool behind = false;  // its stream holds other work that has not ended: it cannot help what is overdue
  bool first = true;    // not asked before and turned away: an idle container becomes busy with it
};

struct Decision {
  bool admit = false;
  uint64_t allowance_ns =
      0;  // estimated work that may be let through without asking again, >= the estimate if admitted
  page::BlockedBy blocked = page::kBlockedByNothing;
  uint64_t retry_ns = 0;  // ask again no later than this
};

// One question at time `now_ns`. Changes the account's hysteresis, resume time and overdue words.
Decision step(uint64_t now_ns, page::UsageCard& card, const Limits& limits, const InFlight& in_flight, const Ask& ask);

// Would the container's gate be open on this card, as far as credit goes? For cards that open in phase.
bool credit_ready(uint64_t now_ns, const page::UsageCard& card);

}  // namespace sluice::governor
