#include "node/strangers.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::node {
namespace {

// After so many looks a process that was told to end is said to stay.
constexpr int kLooksUntilStays = 10;

// By the container's id where the runtime's ids are known; a static pod's UID in its group is not the API's.
void name_owner(Stranger& stranger, const std::vector<PodOnNode>& pods) {
  if (!stranger.process.owner) return;
  const CgroupOwner& owner = *stranger.process.owner;
  for (const PodOnNode& pod : pods) {
    const auto container = pod.containers.find(owner.container_id);
    if (container == pod.containers.end() && pod.uid != owner.pod_uid) continue;
    stranger.name_space = pod.name_space;
    stranger.pod = pod.name;
    stranger.pod_uid = pod.uid;
    if (container != pod.containers.end()) stranger.container = container->second;
    return;
  }
  stranger.pod_uid = owner.pod_uid;
}

// The grant of the stranger's own container on that card; of its pod where the container is not known.
const ContainerGrant* grant_of(const Stranger& stranger, const std::vector<ContainerGrant>& grants) {
  for (const ContainerGrant& grant : grants) {
    if (stranger.pod_uid.empty() || grant.pod_uid != stranger.pod_uid) continue;
    if (!stranger.container.empty() && grant.container != stranger.container) continue;
    const bool on_card = std::any_of(grant.cards.begin(), grant.cards.end(),
                                     [&](const ContainerCard& card) { return card.uuid == stranger.card_uuid; });
    if (on_card) return &grant;
  }
  return nullptr;
}

std::string whose(const Stranger& stranger) {
  if (stranger.pod.empty()) {
    return stranger.pod_uid.empty() ? "outside of any pod" : fmt::format("of a pod with UID {}", stranger.pod_uid);
  }
  const std::string pod = fmt::format("pod {}/{}", stranger.name_space, stranger.pod);
  return stranger.container.empty() ? "of " + pod : fmt::format("of container '{}' of {}", stranger.container, pod);
}

std::string sentence(const Stranger& stranger) {
  return fmt::format("process {} ({}) {} uses card {} ({}) {}", stranger.process.pid, stranger.process.command,
                     whose(stranger), stranger.card_index, stranger.card_uuid,
                     stranger.has_grant ? "past Sluice's library: its limits do not hold" : "without a grant");
}

}  // namespace

bool StrangerWatch::may_stop(const Stranger& stranger) const {
  if (options_.policy != StrangerPolicy::kStop || !stranger.process.owner || stranger.pod.empty()) return false;
  const std::vector<std::string>& exempt = options_.exempt_namespaces;
  return std::find(exempt.begin(), exempt.end(), stranger.name_space) == exempt.end();
}

void StrangerWatch::decide(const Stranger& stranger, Known& known, Found& found) const {
  ++known.looks;
  const bool stop = may_stop(stranger);
  if (!known.told) {
    known.told = true;
    found.news.push_back({StrangerNews::Kind::kFound, stranger, sentence(stranger)});
  }
  if (!stop || known.looks < options_.looks_before_stop) return;
  ++known.stops;
  found.to_stop.push_back(stranger.process);
  if (known.stops == 1)
    found.news.push_back({StrangerNews::Kind::kStopped, stranger, sentence(stranger) + "; it is stopped"});
  if (known.stops == kLooksUntilStays)
    found.news.push_back({StrangerNews::Kind::kStays, stranger, sentence(stranger) + "; it cannot be stopped"});
}

StrangerWatch::Found StrangerWatch::look(const StrangerInput& input) {
  Found found;
  std::map<int64_t, std::optional<ProcessSeen>> looked;
  std::map<Key, Known> known;
  for (const agent::CardStatus& card : *input.cards) {
    for (const agent::ProcessStatus& process : card.strangers) {
      auto seen = looked.find(process.pid);
      if (seen == looked.end()) seen = looked.emplace(process.pid, input.look_at(process.pid)).first;
      if (!seen->second) continue;  // it has ended; the card's list is older than that
      Stranger stranger;
      stranger.process = *seen->second;
      stranger.card_index = static_cast<int32_t>(card.index);
      stranger.card_uuid = card.uuid;
      stranger.used_mib = process.used_mib;
      name_owner(stranger, *input.pods);
      const ContainerGrant* grant = grant_of(stranger, *input.grants);
      if (grant != nullptr && grant->whole_cards) continue;  // the card is its own, no library stands in front
      stranger.has_grant = grant != nullptr;
      const Key key{process.pid, stranger.process.start_ticks, card.uuid};
      if (known.contains(key)) continue;
      const auto before = known_.find(key);
      Known& state = known[key] = before == known_.end() ? Known{} : before->second;
      decide(stranger, state, found);
      found.present.push_back(std::move(stranger));
    }
  }
  known_ = std::move(known);
  return found;
}

}  // namespace sluice::node
