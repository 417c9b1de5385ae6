// The arbiter of one card: who may use it now. Pure: step(now, what each container reports) -> gate words and the time
// of the next step.
//
// Containers that share a card by independent gates lose quota to each other's time slices (30+50 gives 21+40), so as
// soon as two of them use the card and somebody has a share, they take turns: one holds the card, and the next begins
// when the holder has drained. The order is start-time fair queueing on wall time / weight: every container has a tag,
// the eligible one with the smallest start tag is next, and tags may lag the virtual time by a bounded amount, so that
// a container that was kept waiting by a long kernel catches up, but one that slept does not hoard. The exactness of a
// share does not come from here but from the credit that each container keeps against its own measured busy time: a
// container without credit is not eligible. What the order decides is who bears the losses of hand-overs, in
// proportion.
//
// All six policies and the high priority are eligibility and weight rules of this one machine (shares_of, class_of).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::core {

// Numbers as in page::Policy.
enum class ComputePolicy : uint32_t { kFair = 0, kPreemptive = 1, kWeighted = 2, kFixed = 3, kBurst = 4, kNative = 5 };

// What was asked for a container.
struct ShareRequest {
  uint32_t core_permille = 0;  // 1/1000 of the card; 0 = no cap
  uint32_t weight = 1;
  bool high_priority = false;
  bool unlimited = false;  // no ceiling under any policy: a whole card, or limits that are switched off
};

// Ceilings in 1/1000 of the card that the policy makes of the requests, 0 = none; same order. Unlimited ones count
// among the others and have none. fair: 1/max_containers;
// preemptive: 1/N; weighted: by weight; fixed and burst: as asked; native: none.
std::vector<uint32_t> shares_of(ComputePolicy policy, uint32_t max_containers, std::span<const ShareRequest> requests);

struct ArbiterSettings {
  uint64_t turn_ns = 4'000'000;
  uint64_t arm_ahead_ns = 200'000;  // the next holder is named this long before the predicted drain
  uint64_t watch_ns = 1'200'000;    // after a turn's end the keeper spins for the drain this long
  uint64_t idle_end_ns = 50'000;    // an open and idle holder loses its turn after this
  uint64_t overrun_ns =
      10'000'000;                // or twice the holder's longest unit, as far as that is believed: then the next starts
  uint64_t late_ns = 3'000'000;  // and this long after what is in flight should have ended the turn ends early
  uint64_t active_window_ns = 100'000'000;
  uint64_t brief_window_ns = 1'000'000'000;  // for which a high priority that is silent counts as at work
  uint64_t extend_ns = 1'000'000;            // steps in which a turn is prolonged while nobody else is eligible
  uint64_t lag_ns = 24'000'000;              // how far a tag may lag, in ns of the container's own share
  uint64_t lead_ns = 500'000'000;            // and lead
  bool take_back = true;                     // a higher class ends a turn at once; false in tests only
  uint64_t long_unit_ns = 5'000'000;         // units beyond this lift the one-second budget of the whole card
};

// What a container reports, summed over its processes. Everything here may be a lie: it can only harm its author.
struct ContainerView {
  bool attached = false;           // some process has a context on the card
  bool waiting = false;            // a thread waits at the gate
  bool dirty = false;              // work may be in flight
  uint32_t dirty_processes = 0;    // of how many processes
  bool blocked_by_turn = false;    // found under the present gate word: the next unit does not fit the turn
  bool blocked_by_credit = false;  // found under the present gate word: no credit before resume_ns
  uint64_t resume_ns = 0;          // not eligible before this time
  uint64_t predicted_drain_ns = 0;
  uint64_t due_ns = 0;  // when what is in flight should have ended, as foreseen when it was last heard of; 0: unknown
  uint64_t longest_unit_ns = 0;
};

struct GateDecision {
  bool turns = false;       // turns are in force on the card
  bool open = false;        // this container holds the turn
  bool lent = false;        // on lent idle time
  bool armed = false;       // it is next
  bool long_units = false;  // somebody on the card runs long units
  bool watch = false;       // somebody else has a context on the card
  bool brief = false;       // somebody else with high priority is at work: little is kept in flight
  uint32_t turn = 0;        // number of the open turn, modulo 2^24
  uint64_t turn_end_ns = 0;
  uint32_t beside = 0;  // processes of others that have not drained after their turn
  bool operator==(const GateDecision&) const = default;
};

struct ArbiterCounters {
  uint64_t turns = 0;
  uint64_t wall_ns = 0;  // of its turns, idle time that others could have had excepted
  uint64_t overruns = 0;
  uint64_t overlap_ns = 0;       // ran on beside the next holder
  uint64_t longest_wait_ns = 0;  // from eligible to open
};

class Arbiter {
 public:
  explicit Arbiter(const ArbiterSettings& settings = {}) : settings_(settings) {}

  void set_policy(ComputePolicy policy) { policy_ = policy; }
  // On a busy machine threads wake late: the next holder is named earlier.
  void set_arm_ahead(uint64_t ns) { settings_.arm_ahead_ns = ns; }
  // And turns are longer there, so that hand-overs stay a small part of the card. From the next turn on.
  void set_turn(uint64_t ns) { settings_.turn_ns = ns; }
  // Containers are known by the caller's ids. `permille` is the ceiling (shares_of), 0 = none. Adding a known id
  // changes it. A removed holder's turn is over at once.
  void put(uint64_t id, uint32_t permille, uint32_t weight, bool high_priority);
  void remove(uint64_t id);

  struct Outcome {
    std::vector<GateDecision> gates;  // same order as ids()
    uint64_t next_ns = 0;             // step again no later than this
    bool watch_closely = false;       // a hand-over is due within the next arm_ahead_ns: spin rather than sleep
    bool turns = false;
  };
  // `views` in the order of ids(). Time never goes back.
  const Outcome& step(uint64_t now_ns, std::span<const ContainerView> views);

  const std::vector<uint64_t>& ids() const { return ids_; }
  const ArbiterCounters& counters(size_t index) const { return entries_[index].counters; }
  uint32_t active() const { return active_; }
  bool is_active(size_t index, uint64_t now_ns) const {
    const uint64_t last_ns = entries_[index].last_active_ns;
    return last_ns != 0 && now_ns - last_ns <= settings_.active_window_ns;
  }
  // Index of the turn's holder, -1 when nobody has the card.
  int holder() const { return holder_; }

 private:
  enum class Phase { kFree, kHeld, kDraining };
  struct Entry {
    uint32_t permille = 0;
    uint32_t weight = 1;
    bool high_priority = false;
    double finish = 0;               // finish tag, ns of wall time per share
    uint64_t last_active_ns = 0;     // 0: never
    uint64_t eligible_since_ns = 0;  // 0: is not
    uint64_t laggard_since_ns = 0;   // overrun and still dirty since; 0: no
    uint64_t laggard_turn_ns = 0;    // no turn before this, while it is one
    uint64_t laggard_pause_ns = 0;   // before the next of these: longer each time
    uint64_t laggard_from_ns = 0;    // its gate was closed for the turn that it overran
    uint64_t seen_unit_ns = 0;       // longest drain beyond a turn that was seen to its end of late
    uint64_t seen_at_ns = 0;
    double wait_ns = 0;  // for how long others may be kept waiting for its drains, beyond what is given anyway
    ArbiterCounters counters;
  };

  void observe(uint64_t now_ns, std::span<const ContainerView> views);
  bool turns_wanted(uint64_t now_ns) const;
  void limit_priority(std::span<const ContainerView> views);
  double share(size_t index) const;
  int class_of(size_t index, const ContainerView& view, uint64_t at_ns) const;
  int choose(uint64_t at_ns, std::span<const ContainerView> views, bool holder_continues) const;
  double plain_lag(size_t index) const;
  double lag_tag(size_t index) const;
  double start_tag(size_t index) const;
  void advance(uint64_t now_ns, std::span<const ContainerView> views);
  uint64_t expected_end(uint64_t now_ns, const ContainerView& view) const;
  bool is_late(uint64_t now_ns, std::span<const ContainerView> views) const;
  bool step_held(uint64_t now_ns, std::span<const ContainerView> views);
  uint64_t believed_unit(size_t index, const ContainerView& view) const;
  uint64_t patience(size_t index, const ContainerView& view) const;
  void become_laggard(Entry& entry, uint64_t now_ns, uint64_t from_ns);
  void drain_seen(Entry& entry, uint64_t now_ns, uint64_t took_ns);
  void spend_wait(uint64_t now_ns);
  bool step_draining(uint64_t now_ns, std::span<const ContainerView> views);
  bool step_free(uint64_t now_ns, std::span<const ContainerView> views);
  void open(size_t index, uint64_t now_ns, std::span<const ContainerView> views);
  void close(uint64_t now_ns);
  void end_turn(uint64_t now_ns);
  void charge(size_t index, uint64_t wall_ns);
  void publish(uint64_t now_ns, std::span<const ContainerView> views);

  ArbiterSettings settings_;
  ComputePolicy policy_ = ComputePolicy::kFixed;
  std::vector<uint64_t> ids_;
  std::vector<Entry> entries_;
  Phase phase_ = Phase::kFree;
  bool turns_ = false;
  bool long_units_ = false;
  uint32_t active_ = 0;
  int holder_ = -1;
  int armed_ = -1;
  bool lent_ = false;  // the holder runs on lent idle time
  uint32_t turn_number_ = 0;
  uint64_t opened_ns_ = 0;
  uint64_t charged_ns_ = 0;  // the turn's wall time is charged up to here
  uint64_t turn_end_ns_ = 0;
  uint64_t closed_ns_ = 0;
  uint64_t idle_since_ns_ = 0;  // 0: the holder is not idle
  uint64_t idle_total_ns_ = 0;
  double virtual_time_ = 0;
  double priority_turn_ = 0;  // longest turn of a high priority, as a tag; 0: nobody has one
  uint64_t observed_ns_ = 0;
  double priority_until_ = 0;  // tag up to which a high priority comes first
  Outcome outcome_;
};

}  // namespace sluice::core
