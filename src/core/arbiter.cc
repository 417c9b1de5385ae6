#include "core/arbiter.h"

#include <algorithm>
#include <limits>

namespace sluice::core {
namespace {

constexpr uint32_t kWhole = 1000;
constexpr uint64_t kLongestUnitNs = 10'000'000'000;
constexpr uint64_t kLaggardTurnsNs = 100'000'000;  // between the short turns of one that has not drained, at first
constexpr uint64_t kMostLaggardTurnsNs = 1'600'000'000;
constexpr uint64_t kBelievedUnitNs = 50'000'000;  // without having been seen
constexpr uint64_t kSeenForNs = 60'000'000'000;
constexpr double kFirstOfAll = -std::numeric_limits<double>::infinity();
constexpr double kPriorityLead = 4;  // lags by which a high priority may go ahead of those who wait
// The losses of hand-overs, per ns of wall time, beside a high priority with and without a cap.
constexpr double kForgivenCapped = 0.03;
constexpr double kForgivenUncapped = 0.005;
constexpr double kLeastShare = 0.01;  // of an uncapped container beside capped ones that fill the card

}  // namespace

std::vector<uint32_t> shares_of(ComputePolicy policy, uint32_t max_containers, std::span<const ShareRequest> requests) {
  std::vector<uint32_t> shares(requests.size(), 0);
  uint64_t weights = 0;
  for (const ShareRequest& request : requests) weights += std::max(1u, request.weight);
  for (size_t i = 0; i < requests.size(); ++i) {
    switch (policy) {
      case ComputePolicy::kFair:
        shares[i] = std::max(1u, kWhole / std::max(1u, max_containers));
        break;
      case ComputePolicy::kPreemptive:
        shares[i] = std::max(1u, kWhole / static_cast<uint32_t>(requests.size()));
        break;
      case ComputePolicy::kWeighted:
        shares[i] = std::max(1u, static_cast<uint32_t>(uint64_t{kWhole} * std::max(1u, requests[i].weight) / weights));
        break;
      case ComputePolicy::kFixed:
      case ComputePolicy::kBurst:
        shares[i] = requests[i].core_permille;
        break;
      case ComputePolicy::kNative:
        break;
    }
    // A ceiling of the whole card is none.
    if (shares[i] >= kWhole || requests[i].unlimited) shares[i] = 0;
  }
  return shares;
}

void Arbiter::put(uint64_t id, uint32_t permille, uint32_t weight, bool high_priority) {
  size_t index = 0;
  while (index < ids_.size() && ids_[index] != id) ++index;
  if (index == ids_.size()) {
    ids_.push_back(id);
    entries_.emplace_back();
    entries_.back().finish = virtual_time_;
    entries_.back().wait_ns = 2.0 * static_cast<double>(kBelievedUnitNs);
  }
  entries_[index].permille = permille >= kWhole ? 0 : permille;
  entries_[index].weight = std::max(1u, weight);
  entries_[index].high_priority = high_priority;
}

void Arbiter::remove(uint64_t id) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] != id) continue;
    const int index = static_cast<int>(i);
    if (holder_ == index) {
      holder_ = -1;
      phase_ = Phase::kFree;
    }
    if (armed_ == index) armed_ = -1;
    if (holder_ > index) --holder_;
    if (armed_ > index) --armed_;
    ids_.erase(ids_.begin() + index);
    entries_.erase(entries_.begin() + index);
    return;
  }
}

double Arbiter::share(size_t index) const {
  if (policy_ == ComputePolicy::kNative) return 1.0;
  if (entries_[index].permille != 0) return entries_[index].permille / static_cast<double>(kWhole);
  // The uncapped divide by weight what the capped leave.
  double capped = 0;
  double weights = 0;
  for (const Entry& entry : entries_) {
    if (entry.permille != 0) {
      capped += entry.permille / static_cast<double>(kWhole);
    } else {
      weights += entry.weight;
    }
  }
  return std::max(kLeastShare, (1.0 - capped) * entries_[index].weight / weights);
}

void Arbiter::observe(uint64_t now_ns, std::span<const ContainerView> views) {
  active_ = 0;
  long_units_ = false;
  priority_turn_ = 0;
  double rate = kForgivenCapped;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const double turn = static_cast<double>(settings_.turn_ns) / std::max(0.05, share(i));
    if (entries_[i].high_priority) priority_turn_ = std::max(priority_turn_, turn);
    if (entries_[i].high_priority && entries_[i].permille == 0) rate = kForgivenUncapped;
  }
  const double passed = static_cast<double>(now_ns - std::min(now_ns, observed_ns_));
  const double forgiven = rate * passed;
  observed_ns_ = now_ns;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    const ContainerView& view = views[i];
    const double most_wait = 2.0 * static_cast<double>(std::max(kBelievedUnitNs, entry.seen_unit_ns));
    entry.wait_ns = std::min(entry.wait_ns + share(i) * passed, most_wait);
    const bool slept = !is_active(i, now_ns);
    if (view.waiting || view.dirty) entry.last_active_ns = now_ns;
    const bool active = is_active(i, now_ns);
    if (active) ++active_;
    if (active && view.longest_unit_ns > settings_.long_unit_ns) long_units_ = true;
    const bool eligible = view.waiting && (view.resume_ns <= now_ns || entry.permille == 0);
    if (!eligible) entry.eligible_since_ns = 0;
    if (eligible && entry.eligible_since_ns == 0) {
      entry.eligible_since_ns = now_ns;
      // What it misses from here on counts against a high priority that keeps it waiting; what it slept does not.
      if (priority_turn_ != 0 && slept) entry.finish = std::max(entry.finish, virtual_time_);
    }
    // A high priority bears no part of the losses, which is not held against it (nor what it claims beyond its credit,
    // as far as that is no more than this).
    if (priority_turn_ != 0 && entry.finish < virtual_time_) entry.finish += forgiven;
    if (entry.laggard_since_ns != 0) {
      const uint64_t overlap = now_ns - entry.laggard_since_ns;
      entry.counters.overlap_ns += overlap;
      if (static_cast<int>(i) != holder_) charge(i, overlap);  // its own turn is charged as such
      entry.laggard_since_ns = view.dirty ? now_ns : 0;
      if (!view.dirty) drain_seen(entry, now_ns, now_ns - entry.laggard_from_ns);
    }
  }
}

// Up to which tag a high priority comes first: four lags beyond the one that has waited most. Less than the lag that is
// kept (lag_tag), or what a waiting one has missed would be forgotten while it waits, and an uncapped container of high
// priority would keep the card for good.
void Arbiter::limit_priority(std::span<const ContainerView> views) {
  priority_until_ = std::numeric_limits<double>::infinity();
  if (priority_turn_ == 0) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].high_priority || entries_[i].eligible_since_ns == 0 || !views[i].waiting) continue;
    priority_until_ = std::min(priority_until_, start_tag(i) + kPriorityLead * plain_lag(i));
  }
}

bool Arbiter::turns_wanted(uint64_t now_ns) const {
  if (policy_ == ComputePolicy::kNative || active_ < 2) return false;
  if (policy_ != ComputePolicy::kFixed && policy_ != ComputePolicy::kBurst) return true;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (is_active(i, now_ns) && (entries_[i].permille != 0 || entries_[i].high_priority)) return true;
  }
  return false;
}

// 0: may not run; the higher the sooner.
int Arbiter::class_of(size_t index, const ContainerView& view, uint64_t at_ns) const {
  const Entry& entry = entries_[index];
  if (!view.waiting) return 0;
  // Who has not drained since an overrun, stopped or hung, would let further turns pass as well. It gets a short one
  // now and then all the same: what hangs may wait for the very work that stands at its gate.
  if (entry.laggard_since_ns != 0) return at_ns >= entry.laggard_turn_ns ? 2 : 0;
  const bool credit = entry.permille == 0 || view.resume_ns <= at_ns;
  if (!credit) return policy_ == ComputePolicy::kBurst ? 1 : 0;
  // First among all while it has not left the others behind: what it says about its credit may be a lie.
  return entry.high_priority && start_tag(index) <= priority_until_ ? 3 : 2;
}

double Arbiter::plain_lag(size_t index) const {
  return static_cast<double>(settings_.lag_ns) / std::max(0.05, share(index));
}

// How far the tag may lag: while somebody has high priority, by all that it may go ahead and a turn of its.
double Arbiter::lag_tag(size_t index) const {
  return priority_turn_ == 0 ? plain_lag(index) : (1 + kPriorityLead) * plain_lag(index) + priority_turn_;
}

double Arbiter::start_tag(size_t index) const {
  return std::max(entries_[index].finish, virtual_time_ - lag_tag(index));
}

// Who should have the card at `at_ns`, -1 for nobody. With `holder_continues` the present holder counts as waiting.
int Arbiter::choose(uint64_t at_ns, std::span<const ContainerView> views, bool holder_continues) const {
  int best = -1;
  int best_class = 0;
  double best_tag = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    ContainerView view = views[i];
    const bool is_holder = holder_continues && static_cast<int>(i) == holder_;
    if (is_holder) view.waiting = view.waiting || view.dirty;
    const int rank = class_of(i, view, at_ns);
    if (rank == 0) continue;
    double tag = entries_[i].laggard_since_ns != 0 ? kFirstOfAll : start_tag(i);
    // What the holder has used of the present turn is not in its tag yet.
    if (is_holder) tag += static_cast<double>(at_ns - std::min(at_ns, charged_ns_)) / share(i);
    if (rank > best_class || (rank == best_class && tag < best_tag)) {
      best = static_cast<int>(i);
      best_class = rank;
      best_tag = tag;
    }
  }
  return best;
}

void Arbiter::charge(size_t index, uint64_t wall_ns) {
  // Bounded ahead as well as behind: whoever overran for minutes is not shut out for hours.
  const double lead = static_cast<double>(settings_.lead_ns) / share(index);
  entries_[index].finish =
      std::min(start_tag(index) + static_cast<double>(wall_ns) / share(index), virtual_time_ + lead);
}

void Arbiter::open(size_t index, uint64_t now_ns, std::span<const ContainerView> views) {
  Entry& entry = entries_[index];
  const bool laggard = entry.laggard_since_ns != 0;
  if (!laggard) virtual_time_ = std::max(virtual_time_, start_tag(index));
  if (laggard) {
    entry.laggard_pause_ns = std::min(2 * entry.laggard_pause_ns, kMostLaggardTurnsNs);
    entry.laggard_turn_ns = now_ns + entry.laggard_pause_ns;
  }
  holder_ = static_cast<int>(index);
  armed_ = -1;
  phase_ = Phase::kHeld;
  turn_number_ = (turn_number_ + 1) & 0xffffff;
  opened_ns_ = charged_ns_ = now_ns;
  turn_end_ns_ = now_ns + (laggard ? settings_.extend_ns : settings_.turn_ns);
  idle_since_ns_ = 0;
  idle_total_ns_ = 0;
  lent_ = class_of(index, views[index], now_ns) == 1;
  ++entry.counters.turns;
  if (entry.eligible_since_ns != 0) {
    entry.counters.longest_wait_ns = std::max(entry.counters.longest_wait_ns, now_ns - entry.eligible_since_ns);
  }
}

void Arbiter::close(uint64_t now_ns) {
  phase_ = Phase::kDraining;
  closed_ns_ = now_ns;
}

// Charges the holder for the turn's wall time and leaves the card free.
void Arbiter::end_turn(uint64_t now_ns) {
  if (holder_ >= 0) {
    const uint64_t wall = now_ns - charged_ns_;
    charge(static_cast<size_t>(holder_), wall);
    entries_[static_cast<size_t>(holder_)].counters.wall_ns += wall;
  }
  holder_ = -1;
  lent_ = false;
  phase_ = Phase::kFree;
}

bool Arbiter::step_free(uint64_t now_ns, std::span<const ContainerView> views) {
  const int next = choose(now_ns, views, false);
  if (next < 0) return false;
  open(static_cast<size_t>(next), now_ns, views);
  return true;
}

// When the present turn should end: at its time, or when what is in flight drains if nothing more fits into it.
uint64_t Arbiter::expected_end(uint64_t now_ns, const ContainerView& view) const {
  const bool full = view.dirty && (view.blocked_by_turn || view.blocked_by_credit);
  return full ? std::min(turn_end_ns_, std::max(now_ns, view.predicted_drain_ns)) : turn_end_ns_;
}

// The holder does not get on (hung, stopped) while somebody else waits: what is left of its turn would be lost.
bool Arbiter::is_late(uint64_t now_ns, std::span<const ContainerView> views) const {
  const ContainerView& view = views[static_cast<size_t>(holder_)];
  if (!view.dirty || view.due_ns == 0 || entries_[static_cast<size_t>(holder_)].laggard_since_ns != 0) return false;
  if (now_ns < view.due_ns + settings_.late_ns + 2 * believed_unit(static_cast<size_t>(holder_), view)) return false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (static_cast<int>(i) != holder_ && class_of(i, views[i], now_ns) >= 2) return true;
  }
  return false;
}

bool Arbiter::step_held(uint64_t now_ns, std::span<const ContainerView> views) {
  // Reports were made before the gate opened: they say nothing about this turn.
  if (opened_ns_ == now_ns) return false;
  const size_t held = static_cast<size_t>(holder_);
  const ContainerView& view = views[held];
  // What a laggard has left behind runs on whoever holds the turn: it says nothing about this one.
  const bool drained = !view.dirty || entries_[held].laggard_since_ns != 0;
  const bool idle = drained && !view.waiting;
  if (idle && idle_since_ns_ == 0) idle_since_ns_ = now_ns;
  if (!idle) idle_since_ns_ = 0;
  // Given up: drained, and what it waits for cannot come within this turn.
  const bool gives_up = drained && view.waiting && (view.blocked_by_turn || view.blocked_by_credit);
  if (gives_up || (idle && now_ns - idle_since_ns_ >= settings_.idle_end_ns) || is_late(now_ns, views)) {
    close(now_ns);
    return true;
  }
  // Somebody of a higher class takes the card at once: high priority, or the owner of lent time.
  const int rival = choose(now_ns, views, false);
  ContainerView claims = view;
  claims.waiting = true;
  const int own_class = lent_ ? 1 : std::max(2, class_of(held, claims, now_ns));
  if (settings_.take_back && rival >= 0 && rival != holder_ &&
      class_of(static_cast<size_t>(rival), views[static_cast<size_t>(rival)], now_ns) > own_class) {
    armed_ = rival;
    close(now_ns);
    return true;
  }
  const uint64_t end_ns = expected_end(now_ns, view);
  if (now_ns + settings_.arm_ahead_ns < end_ns) return false;
  const int next = choose(end_ns, views, true);
  if (next == holder_ || next < 0) {
    // Keeps the card without draining. A full turn when others wait and it is still this one's go; in small steps
    // when nobody else may run, so that whoever may soon need not wait for long.
    bool others = false;
    for (size_t i = 0; i < entries_.size(); ++i) {
      others = others || (i != held && class_of(i, views[i], end_ns) != 0);
    }
    const uint64_t wall = now_ns - charged_ns_;
    charge(held, wall);
    entries_[held].counters.wall_ns += wall;
    charged_ns_ = now_ns;
    virtual_time_ = std::max(virtual_time_, start_tag(held));
    // A new number tells those who wait because nothing more fitted into the turn; but not while the turn stays what it
    // is, or they would ask again and be turned away until what is in flight has drained.
    const uint64_t end = now_ns + settings_.arm_ahead_ns + (others ? settings_.turn_ns : settings_.extend_ns);
    if (end < turn_end_ns_ + settings_.extend_ns / 2) return false;
    if (view.blocked_by_turn) turn_number_ = (turn_number_ + 1) & 0xffffff;
    turn_end_ns_ = end;
    return false;
  }
  armed_ = next;
  if (now_ns >= turn_end_ns_) {
    close(now_ns);
    return true;
  }
  return false;
}

// How long a unit of the container may take. What it says is believed up to 50 ms; beyond that, up to what its drains
// have been seen to take when they were overrun.
uint64_t Arbiter::believed_unit(size_t index, const ContainerView& view) const {
  return std::min({view.longest_unit_ns, kLongestUnitNs, std::max(kBelievedUnitNs, entries_[index].seen_unit_ns)});
}

// How long the holder's drain is waited for. Two of its units, but others do not stand still for it any longer than its
// share of the time comes to: whoever has long units is at its gate for as long before the next one.
uint64_t Arbiter::patience(size_t index, const ContainerView& view) const {
  const Entry& entry = entries_[index];
  // Once is enough: a laggard that still has not drained is not waited for at every turn of its.
  if (entry.laggard_since_ns != 0) return 0;
  return std::max(settings_.overrun_ns,
                  std::min(2 * believed_unit(index, view), static_cast<uint64_t>(std::max(0.0, entry.wait_ns))));
}

void Arbiter::become_laggard(Entry& entry, uint64_t now_ns, uint64_t from_ns) {
  entry.laggard_from_ns = from_ns;
  entry.laggard_pause_ns = kLaggardTurnsNs;
  entry.laggard_turn_ns = now_ns + kLaggardTurnsNs;
}

void Arbiter::drain_seen(Entry& entry, uint64_t now_ns, uint64_t took_ns) {
  const uint64_t took = std::min(took_ns, kLongestUnitNs);
  if (took >= entry.seen_unit_ns || now_ns - entry.seen_at_ns > kSeenForNs) entry.seen_unit_ns = took;
  if (took >= entry.seen_unit_ns / 2) entry.seen_at_ns = now_ns;
}

// The holder's drain has ended, or is not waited for any more.
void Arbiter::spend_wait(uint64_t now_ns) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (static_cast<int>(i) == holder_ || entries_[i].eligible_since_ns == 0) continue;
    entries_[static_cast<size_t>(holder_)].wait_ns -= static_cast<double>(now_ns - closed_ns_);
    return;
  }
}

bool Arbiter::step_draining(uint64_t now_ns, std::span<const ContainerView> views) {
  const size_t held = static_cast<size_t>(holder_);
  const ContainerView& view = views[held];
  Entry& entry = entries_[held];
  if (!view.dirty) {
    // Within what was believed: no reason to believe more.
    if (now_ns - closed_ns_ >= entry.seen_unit_ns / 2) entry.seen_at_ns = now_ns;
    spend_wait(now_ns);
    end_turn(now_ns);
    return true;
  }
  if (now_ns - closed_ns_ >= patience(held, view)) {
    if (entry.laggard_since_ns == 0) {
      ++entry.counters.overruns;
      become_laggard(entry, now_ns, closed_ns_);
      spend_wait(now_ns);
    }
    entry.laggard_since_ns = now_ns;
    end_turn(now_ns);
    return true;
  }
  if (armed_ < 0 && view.predicted_drain_ns <= now_ns + settings_.arm_ahead_ns) armed_ = choose(now_ns, views, false);
  return false;
}

void Arbiter::advance(uint64_t now_ns, std::span<const ContainerView> views) {
  // Each round changes the phase; three changes (drained, free, held) are the most that one instant can bring.
  for (int round = 0; round < 4; ++round) {
    bool changed = false;
    switch (phase_) {
      case Phase::kFree:
        changed = step_free(now_ns, views);
        break;
      case Phase::kHeld:
        changed = step_held(now_ns, views);
        break;
      // A gate that closes in this very step is seen by the programs only afterwards: what is read before that says
      // nothing about a drain.
      case Phase::kDraining:
        changed = closed_ns_ != now_ns && step_draining(now_ns, views);
        break;
    }
    if (!changed) return;
  }
}

void Arbiter::publish(uint64_t now_ns, std::span<const ContainerView> views) {
  uint32_t attached = 0;
  uint32_t laggards = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    attached += views[i].attached ? 1 : 0;
    laggards += entries_[i].laggard_since_ns != 0 ? views[i].dirty_processes : 0;
  }
  const auto at_work = [&](const Entry& entry) {
    return entry.high_priority && entry.last_active_ns != 0 &&
           now_ns - entry.last_active_ns <= settings_.brief_window_ns;
  };
  const bool brief = std::any_of(entries_.begin(), entries_.end(), at_work);
  outcome_.gates.resize(entries_.size());
  uint64_t next = now_ns + settings_.active_window_ns;
  for (size_t i = 0; i < entries_.size(); ++i) {
    GateDecision& gate = outcome_.gates[i];
    gate = {};
    gate.long_units = long_units_;
    gate.watch = attached > 1 && policy_ != ComputePolicy::kNative;
    gate.brief = brief && !entries_[i].high_priority && policy_ != ComputePolicy::kNative;
    if (!turns_) continue;
    gate.turns = true;
    gate.beside = laggards - (entries_[i].laggard_since_ns != 0 ? views[i].dirty_processes : 0);
    const int index = static_cast<int>(i);
    if (index == holder_ && phase_ == Phase::kHeld) {
      gate.open = true;
      gate.lent = lent_;
      gate.turn = turn_number_;
      gate.turn_end_ns = turn_end_ns_;
    } else if (index == armed_) {
      gate.armed = true;
    }
    if (views[i].waiting && index != holder_ && views[i].resume_ns > now_ns) next = std::min(next, views[i].resume_ns);
    if (entries_[i].laggard_since_ns != 0) next = std::min(next, now_ns + settings_.extend_ns);
  }
  outcome_.watch_closely = false;
  if (turns_ && phase_ == Phase::kHeld) {
    const uint64_t end = expected_end(now_ns, views[static_cast<size_t>(holder_)]);
    // What drains tells by the doorbell; a drain that is late is not to be waited for in a busy loop.
    next = std::min(next, armed_ >= 0 ? end : std::max(end - settings_.arm_ahead_ns, now_ns + settings_.idle_end_ns));
    if (idle_since_ns_ != 0) next = std::min(next, idle_since_ns_ + settings_.idle_end_ns);
  }
  if (turns_ && phase_ == Phase::kDraining) {
    const uint64_t drain = views[static_cast<size_t>(holder_)].predicted_drain_ns;
    // Estimates may be off: what is left of short work is watched all the way.
    outcome_.watch_closely = now_ns - closed_ns_ <= settings_.watch_ns ||
                             (drain <= now_ns + settings_.arm_ahead_ns && now_ns <= drain + settings_.arm_ahead_ns);
    next = std::min({next, std::max(now_ns + settings_.idle_end_ns, closed_ns_ + settings_.overrun_ns),
                     std::max(now_ns + settings_.idle_end_ns,
                              drain > settings_.arm_ahead_ns ? drain - settings_.arm_ahead_ns : 0)});
  }
  if (turns_ && armed_ >= 0 && phase_ == Phase::kHeld) outcome_.watch_closely = true;
  outcome_.next_ns = std::max(next, now_ns + 1);
  outcome_.turns = turns_;
}

const Arbiter::Outcome& Arbiter::step(uint64_t now_ns, std::span<const ContainerView> views) {
  observe(now_ns, views);
  limit_priority(views);
  const bool wanted = turns_wanted(now_ns);
  if (wanted && !turns_) {
    // Whoever has work in flight drains first; the one with most to drain counts as the holder of a turn that ends.
    turns_ = true;
    holder_ = -1;
    armed_ = -1;
    phase_ = Phase::kFree;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!views[i].dirty) continue;
      if (holder_ >= 0) {
        entries_[i].laggard_since_ns = now_ns;
        become_laggard(entries_[i], now_ns, now_ns);
        continue;
      }
      holder_ = static_cast<int>(i);
      charged_ns_ = opened_ns_ = now_ns;
      close(now_ns);
    }
  } else if (!wanted && turns_) {
    if (holder_ >= 0) end_turn(now_ns);
    turns_ = false;
    armed_ = -1;
    for (Entry& entry : entries_) entry.laggard_since_ns = 0;
  }
  if (turns_) advance(now_ns, views);
  publish(now_ns, views);
  return outcome_;
}

}  // namespace sluice::core
