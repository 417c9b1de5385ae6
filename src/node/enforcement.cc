#include "node/enforcement.h"

#include <fmt/format.h>

#include <algorithm>

#include "page/grant.h"

namespace sluice::node {
namespace {

const agent::CardStatus* card_of(const std::string& uuid, const agent::ListAnswer& node) {
  const auto found =
      std::find_if(node.cards.begin(), node.cards.end(), [&](const auto& card) { return card.uuid == uuid; });
  return found == node.cards.end() ? nullptr : &*found;
}

bool caps_compute(const ContainerGrant& container) {
  return std::any_of(container.cards.begin(), container.cards.end(),
                     [](const ContainerCard& card) { return card.core_percent > 0; });
}

}  // namespace

const agent::GrantStatus* grant_status(const ContainerGrant& container, const agent::ListAnswer& node) {
  const auto found = std::find_if(node.grants.begin(), node.grants.end(),
                                  [&](const auto& grant) { return grant.id == container.grant_id; });
  return container.grant_id.empty() || found == node.grants.end() ? nullptr : &*found;
}

std::string not_in_force(const ContainerGrant& container, const agent::ListAnswer& node,
                         const std::vector<Stranger>& strangers) {
  if (!container.problem.empty()) return container.problem;
  const agent::GrantStatus* grant = grant_status(container, node);
  if (grant == nullptr) return "the agent holds no grant for it";
  for (const ContainerCard& own : container.cards) {
    const agent::CardStatus* card = card_of(own.uuid, node);
    if (card == nullptr) return fmt::format("card {} is not on the node", own.uuid);
    if (card->state != "ok") return fmt::format("card {} is {}", own.uuid, card->state);
    const auto granted = std::find_if(grant->cards.begin(), grant->cards.end(),
                                      [&](const auto& answer) { return answer.uuid == own.uuid; });
    if (granted == grant->cards.end()) return fmt::format("its grant lacks card {}", own.uuid);
    const bool same = container.whole_cards ||
                      (granted->memory_limit_mib == own.memory_mib && granted->core_percent == own.core_percent);
    if (!same) return fmt::format("its grant on card {} is another than its pod was given", own.uuid);
  }
  for (const Stranger& stranger : strangers) {
    const bool its_own = stranger.has_grant && stranger.pod_uid == container.pod_uid &&
                         (stranger.container.empty() || stranger.container == container.container);
    if (its_own) return "a process of it uses the card past Sluice's library";
  }
  if (caps_compute(container) && !container.whole_cards && grant->policy == page::kPolicyNative)
    return "the compute policy is native: memory alone is held";
  return "";
}

}  // namespace sluice::node
