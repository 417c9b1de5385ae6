// Filling a slot: from the pod's signed allocation to grant and CDI spec. Idempotent: the kubelet asks before every
// start of a container, and again after every error.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "node/pod_grants.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(100);

}  // namespace

// What an earlier container of the pod was started by, or this one before: verified then, and not to be changed by who
// edits the pod's annotations now.
std::optional<PodGrants::Given> PodGrants::given_before(const std::string& pod_uid) {
  std::lock_guard guard(mutex_);
  for (uint64_t id : slots_.of_pod(pod_uid)) {
    const std::string& text = slots_.find(id)->allocation;
    if (text.empty()) continue;
    if (Result<kube::Allocation> allocation = kube::parse_allocation(text); allocation)
      return Given{std::move(*allocation), text};
  }
  return std::nullopt;
}

// The pod's record, verified; nullopt for whole cards, which the kubelet itself chooses. A pod that was bound without
// Sluice's scheduler gets its record a moment later, so it is waited for. `pod` becomes the newest copy.
Result<std::optional<PodGrants::Given>> PodGrants::allocation_of(LocalPodPtr& pod) {
  if (pod->kind() == PodKind::kWhole) return std::optional<Given>();
  std::optional<kube::Verifier> verifier;
  {
    std::lock_guard guard(mutex_);
    verifier = verifier_;
  }
  if (!verifier) return unavailable("no public key of the scheduler is set (--allocation-key); no card can be given");
  const auto end = Clock::now() + std::chrono::milliseconds(options_.allocation_wait_ms);
  while (true) {
    Result<kube::Allocation> allocation =
        kube::read_allocation(pod->pod.annotations, pod->pod.uid, options_.node_name, *verifier);
    if (allocation)
      return std::optional(Given{std::move(*allocation), pod->pod.annotations.at(kube::kAnnotationAllocation)});
    const bool missing = allocation.error().code == ErrorCode::kNotFound;
    if (std::optional<Given> given = given_before(pod->pod.uid); given) {
      counters_.bad_records += missing ? 0 : 1;
      complain(*pod, "SluiceAllocationChanged",
               fmt::format("{}; the pod keeps the cards that it was given before", allocation.error().message));
      return given;
    }
    if (!missing) {
      ++counters_.bad_records;
      return std::move(allocation.error());
    }
    if (Clock::now() >= end) {
      return unavailable(
          "the pod was bound to this node without Sluice's scheduler and has no card yet; it starts when the scheduler "
          "has given it one");
    }
    std::this_thread::sleep_for(kPoll);
    pod = pods_.newest(pod);
  }
}

Result<PodGrants::Wanted> PodGrants::wanted_of(const LocalPod& pod, const kube::Allocation* allocation,
                                               const std::string& container, const OwnerQuestion& question) const {
  Wanted wanted;
  if (allocation == nullptr) {
    for (const std::string& uuid : question.ids) wanted.shares.push_back({uuid, 0, 0, 0});
    return wanted;
  }
  auto own = allocation->containers.find(container);
  if (own == allocation->containers.end() || own->second.empty()) {
    return invalid(fmt::format("the pod's allocation names no card for container {}", container));
  }
  int64_t units = 0;
  for (const kube::CardShare& card : own->second) {
    units += card.units;
    wanted.shares.push_back({card.uuid, card.units, 0, card.core_milli});
  }
  for (const kube::CardShare& card : allocation->cards) wanted.pod_units += card.units;
  if (units != static_cast<int64_t>(question.ids.size())) {
    return invalid(fmt::format("the pod's allocation gives container {} {} units, the kubelet {}", container, units,
                               question.ids.size()));
  }
  if (pod.kind() == PodKind::kMemoryCore && wanted.shares.front().core_milli == 0) {
    return invalid(fmt::format("the pod asks for compute and its allocation gives container {} none", container));
  }
  return wanted;
}

agent::PodGrantRequest PodGrants::request_for(const Slot& slot, const LocalPod& pod, const std::string& container,
                                              const Wanted& wanted) const {
  agent::PodGrantRequest request;
  request.id = slot.grant;
  request.name = fmt::format("{}/{}/{}", pod.pod.name_space, pod.pod.name, container);
  request.pod = pod.pod.full_name();
  request.pod_uid = pod.pod.uid;
  request.kind = pod.request.total.kind;
  request.shares = wanted.shares;
  if (auto wishes = pod.wishes.find(container); wishes != pod.wishes.end()) {
    if (options_.allow_priority) {
      request.weight = wishes->second.weight;
      request.high_priority = wishes->second.high_priority;
    }
    request.switched_off = wishes->second.no_limits && options_.allow_disable && request.kind != core::Kind::kWhole;
  }
  request.enforced = mode_ != core::NodeMode::kShare && !request.switched_off;
  return request;
}

// Whichever container starts, no other ordinary init container runs; and when it is an ordinary init container itself,
// no main one does. What those held on the cards is given back, so that a pod is charged as Kubernetes counts it: the
// larger of the two, not the sum. Where it may be either (both use the same ids), main containers are left alone: the
// pod's status, which would tell, lags.
void PodGrants::release_others(const Owner& owner, const std::set<uint64_t>& kept) {
  const auto& shares = owner.pod->request.shares;
  const bool init_starts = std::all_of(owner.containers.begin(), owner.containers.end(), [&](size_t position) {
    return shares[position].role == core::ContainerRole::kInit;
  });
  std::set<uint64_t> ended;
  {
    std::lock_guard guard(mutex_);
    for (uint64_t id : slots_.of_pod(owner.pod->pod.uid)) {
      Slot& slot = *slots_.find(id);
      if (slot.grant == 0 || kept.contains(slot.grant)) continue;
      auto share = std::find_if(shares.begin(), shares.end(),
                                [&](const core::ContainerShare& one) { return one.name == slot.owner.container; });
      if (share == shares.end() || share->role == core::ContainerRole::kSidecar) continue;
      if (share->role != core::ContainerRole::kInit && !init_starts) continue;
      ended.insert(slot.grant);
      slot.grant = 0;
      if (Result<void> saved = save(slot); !saved)
        log::warning("a slot cannot be written", {{"reason", saved.error().message}});
    }
  }
  for (uint64_t grant : ended) node_.end_pod_grant(grant);
}

// Of unequal containers with the same ids the first start is the first container's. Later ones wait until the status
// has caught up with the init container that ran: a guess would leave the slot of the one that starts unfilled.
// A status that still says "waiting" after that long is believed: the init container could not be started.
bool PodGrants::status_tells(const Owner& owner, bool last_try) {
  std::lock_guard guard(mutex_);
  for (uint64_t id : slots_.of_pod(owner.pod->pod.uid)) {
    const Slot& slot = *slots_.find(id);
    for (size_t i = 0; i + 1 < owner.containers.size(); ++i) {
      const std::string& name = owner.pod->request.shares[owner.containers[i]].name;
      if (slot.owner.container != name || slot.resource == core::kResourceCore) continue;
      auto state = owner.pod->states.find(name);
      const bool ended = state != owner.pod->states.end() && state->second.terminated;
      const bool running = state != owner.pod->states.end() && state->second.running;
      if (!ended && (running || !last_try)) return false;
    }
  }
  return true;
}

Result<void> PodGrants::fill(const OwnerQuestion& question, Owner owner) {
  Result<std::optional<Given>> allocation = std::optional<Given>();
  if (question.resource != core::kResourceCore) {
    allocation = allocation_of(owner.pod);
    if (!allocation) {
      complain(*owner.pod, "SluiceNoAllocation", allocation.error().message);
      return std::move(allocation.error());
    }
  }
  {
    std::lock_guard guard(mutex_);
    auto known = known_.find(owner.pod->pod.uid);
    owner =
        narrow(question, std::move(owner), known == known_.end() ? std::nullopt : std::optional(known->second.record),
               slots_.in_order(question.resource));
  }
  for (const auto end = Clock::now() + std::chrono::milliseconds(options_.capacity_wait_ms);;) {
    Result<void> done = fill_once(question, owner, *allocation ? &**allocation : nullptr, Clock::now() >= end);
    if (done) return done;
    if (done.error().code != ErrorCode::kExhausted || Clock::now() >= end + kPoll) {
      complain(*owner.pod, "SluiceCardRefused", done.error().message);
      return done;
    }
    std::this_thread::sleep_for(kPoll);
    // The status may have moved on: an init container whose share stands in the way has ended.
    owner.pod = pods_.newest(owner.pod);
  }
}

Result<void> PodGrants::fill_once(const OwnerQuestion& question, const Owner& owner, const Given* given,
                                  bool last_try) {
  const bool compute = question.resource == core::kResourceCore;
  std::lock_guard one_at_a_time(filling_);
  const kube::Pod& pod = owner.pod->pod;
  const auto& shares = owner.pod->request.shares;
  // Equal containers that use one set of ids after another share one grant. Unequal ones cannot: the one that starts
  // now, by the pod's status, gets its own.
  std::vector<Wanted> all;
  for (size_t i = 0; i < owner.containers.size() && !compute; ++i) {
    const kube::Allocation* allocation = given == nullptr ? nullptr : &given->allocation;
    Result<Wanted> wanted = wanted_of(*owner.pod, allocation, shares[owner.containers[i]].name, question);
    if (!wanted) return std::move(wanted.error());
    all.push_back(std::move(*wanted));
  }
  // (An answer of env delivery is final: its container can only have the grant that the answer names.)
  const bool equal =
      options_.delivery == DeliveryKind::kCdi &&
      std::all_of(all.begin(), all.end(), [&](const Wanted& w) { return w.shares == all.front().shares; });
  if (!equal && !status_tells(owner, last_try)) {
    return exhausted(
        fmt::format("{}: an init container and a later one use the same device ids with different shares; "
                    "waiting for the pod's status to say which of them starts",
                    pod.full_name()));
  }
  const size_t chosen = equal ? owner.containers.size() - 1 : starting_now(owner);
  const std::string& container = shares[owner.containers[chosen]].name;
  Result<std::vector<Slot>> slots = claim_slots(question, owner, chosen, equal, given);
  if (!slots) return std::move(slots.error());
  if (compute) return {};
  if (slots->empty()) {
    return unavailable(
        fmt::format("no slot is known for the device ids of container {} of {}: the agent's records were "
                    "lost; delete the pod",
                    container, pod.full_name()));
  }
  release_others(owner, {slots->front().grant});
  Result<agent::GrantAnswer> answer =
      node_.grant_for_pod(request_for(slots->front(), *owner.pod, container, all[chosen]));
  if (!answer) return std::move(answer.error()).wrap(fmt::format("container {}", container));
  for (const Slot& slot : *slots) {
    if (Result<void> written = write_out(slot, &*answer, all[chosen].pod_units); !written) return written;
  }
  return {};
}

// The slots that stand for these ids become the container's, on disk too. With `equal` all of them; else the one of the
// container at owner.containers[chosen]. Slots that another pod got by elimination are taken back, and its grant ends.
Result<std::vector<Slot>> PodGrants::claim_slots(const OwnerQuestion& question, const Owner& owner, size_t chosen,
                                                 bool equal, const Given* given) {
  const kube::Pod& pod = owner.pod->pod;
  const std::string& container = owner.pod->request.shares[owner.containers[chosen]].name;
  std::set<uint64_t> mistaken;
  std::vector<Slot> claimed;
  {
    std::lock_guard guard(mutex_);
    std::vector<uint64_t> ids = slots_.with_ids(question.resource, question.ids, pod.uid, owner.sure);
    // The last slots are this pod's, one per container; before them may stand those of a pod that was turned away.
    if (!equal && ids.size() >= owner.containers.size()) ids = {ids[ids.size() - owner.containers.size() + chosen]};
    uint64_t grant = 0;
    for (uint64_t id : ids) {
      const Slot& slot = *slots_.find(id);
      if (slot.owned() && slot.owner.pod_uid != pod.uid) {
        log::warning("a slot was found by elimination for the wrong pod and is taken back",
                     {{"had", slot.owner.text()}, {"pod", pod.full_name()}});
        if (slot.grant != 0) mistaken.insert(slot.grant);
      } else if (grant == 0) {
        grant = slot.grant;
      }
    }
    for (uint64_t id : ids) {
      Slot& slot = *slots_.find(id);
      const Slot before = slot;
      slot.owner = {pod.uid, pod.name_space, pod.name, container};
      slot.allocation = given == nullptr ? "" : given->text;
      slot.sure = owner.sure || (slot.owner == before.owner && before.sure);
      if (question.resource != core::kResourceCore)
        slot.grant = grant == 0 ? new_grant_id(ids.back(), mistaken) : grant;
      grant = slot.grant;
      if (!(slot == before)) {
        if (Result<void> saved = save(slot); !saved) {
          slot = before;  // the next try writes it down too
          return std::move(saved.error());
        }
      }
      claimed.push_back(slot);
    }
  }
  for (uint64_t grant : mistaken) node_.end_pod_grant(grant);
  return claimed;
}

// A grant is named after its slot, unless a program of another pod may still hold that name. (Env delivery: the answer
// has said the name, so it is waited for.)
uint64_t PodGrants::new_grant_id(uint64_t slot, const std::set<uint64_t>& mistaken) const {
  return mistaken.contains(slot) && options_.delivery == DeliveryKind::kCdi ? random_slot() : slot;
}

// Delivery without CDI: what the container is told of its card is final now, before the kubelet says whose it is. The
// oldest pod with a container of this size that no earlier answer was made for is taken. Limits do not depend on the
// guess: they stand in the grant page, which is written when the owner is known; a wrong guess between two equal pods
// on different cards shows in the environment's card number and UUID alone. Every card's device node is handed in, the
// page says which of them the programs may see.
Result<ContainerAnswer> PodGrants::answer_by_guess(Slot& slot) {
  const std::vector<agent::CardFacts> cards = node_.card_facts();
  LocalPodPtr guess;
  for (const LocalPodPtr& pod : pods_.all()) {
    if (pod->pod.terminal() || pod->kind() == PodKind::kNone) continue;
    if (guess && std::tie(guess->pod.created_at, guess->pod.uid) <= std::tie(pod->pod.created_at, pod->pod.uid))
      continue;
    for (const core::ContainerShare& share : pod->request.shares) {
      if (pod->ids_wanted(share, slot.resource) != static_cast<int64_t>(slot.ids.size())) continue;
      const bool answered = std::any_of(slots_.all().begin(), slots_.all().end(), [&](const auto& entry) {
        const Slot& other = entry.second;
        const ContainerName& whose = other.owned() ? other.owner : other.guess;
        return other.resource == slot.resource && whose.pod_uid == pod->pod.uid && whose.container == share.name;
      });
      if (answered) continue;
      guess = pod;
      slot.guess = {pod->pod.uid, pod->pod.name_space, pod->pod.name, share.name};
      break;
    }
  }
  agent::GrantAnswer answer;
  int64_t pod_units = 0;
  auto add = [&](const std::string& uuid, int64_t units) {
    for (const agent::CardFacts& card : cards) {
      if (card.info.uuid != uuid) continue;
      agent::GrantCardAnswer one;
      one.index = card.info.index;
      one.uuid = uuid;
      one.card_units = card.units;
      one.units = units;
      answer.cards.push_back(std::move(one));
    }
  };
  if (slot.resource == core::kResourceWholeCards) {
    for (const std::string& uuid : slot.ids) add(uuid, 0);
  } else if (guess && verifier_) {
    Result<kube::Allocation> allocation =
        kube::read_allocation(guess->pod.annotations, guess->pod.uid, options_.node_name, *verifier_);
    if (allocation) {
      for (const kube::CardShare& card : allocation->cards) pod_units += card.units;
      for (const kube::CardShare& card : allocation->containers[slot.guess.container]) add(card.uuid, card.units);
    }
  }
  std::vector<std::string> nodes;
  for (const agent::CardFacts& card : cards) {
    if (card.info.minor >= 0) nodes.push_back(fmt::format("/dev/nvidia{}", card.info.minor));
  }
  Result<ContainerEdits> edits = edits_for(slot, &answer, pod_units, nodes);
  if (!edits) return std::move(edits.error());
  return to_answer(*edits);
}

}  // namespace sluice::node
