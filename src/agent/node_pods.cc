// Grants of Kubernetes pods. The scheduler has chosen the cards; here they are checked against what is on the node (a
// second guard: no record, however it came about, puts more on a card than it has) and made into the same grants that
// stand-alone programs get. Such a grant lives until its pod has gone, not until its processes have.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "agent/node.h"
#include "base/log.h"
#include "core/units.h"

namespace sluice::agent {
namespace {

constexpr int64_t kMib = 1 << 20;

bool same_shares(const std::vector<RecordShare>& a, const std::vector<RecordShare>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const RecordShare& x, const RecordShare& y) {
    return x.card_uuid == y.card_uuid && x.units == y.units && x.core_milli == y.core_milli;
  });
}

}  // namespace

// Rule, need, have, in the scheduler's words.
Error Node::too_much(const std::vector<GrantCard>& cards, Error otherwise) const {
  for (const GrantCard& wanted : cards) {
    for (const core::Card& card : core_.cards) {
      if (card.index != wanted.share.card_index) continue;
      if (card.free_units < wanted.share.units) {
        return exhausted(fmt::format("card memory: needs {} units of card {}, has {} free", wanted.share.units,
                                     card.index, card.free_units));
      }
      if (card.free_core_milli < wanted.share.core_milli) {
        return exhausted(fmt::format("card compute: needs {} % of card {}, has {} % free", wanted.share.core_milli / 10,
                                     card.index, card.free_core_milli / 10));
      }
    }
  }
  otherwise.code = ErrorCode::kExhausted;
  return otherwise;
}

Result<GrantAnswer> Node::grant_for_pod(const PodGrantRequest& request) {
  std::lock_guard guard(mutex_);
  if (auto known = grants_.find(request.id); known != grants_.end()) {
    const Grant& grant = *known->second;
    const bool whole = request.kind == core::Kind::kWhole;
    std::vector<RecordShare> have = grant.record.shares;
    if (whole) {
      for (RecordShare& share : have) share.units = share.core_milli = 0;
    }
    if (grant.record.pod_uid != request.pod_uid || grant.record.kind != request.kind ||
        !same_shares(have, request.shares)) {
      return Error{ErrorCode::kExists, fmt::format("grant {} is already '{}' with other cards or shares",
                                                   grant_id_text(request.id), grant.record.name)};
    }
    if (!grant.pages)
      return unavailable(fmt::format("the pages of grant {} cannot be used", grant_id_text(request.id)));
    if (!grant.closing) return answer_for(grant, {});
    return unavailable(fmt::format("grant {} is being released", grant_id_text(request.id)));
  }
  Result<std::unique_ptr<Grant>> made = make_pod_grant(request);
  if (!made) return std::move(made.error());
  core::Placement placement;
  for (const GrantCard& card : (*made)->cards) placement.shares.push_back(card.share);
  // Asked before anything is made, so that a refusal leaves nothing to clear away.
  core::Node probe = core_;
  if (Result<void> fits = core::take(probe, placement); !fits) return too_much((*made)->cards, std::move(fits.error()));
  GrantRecord& record = (*made)->record;
  PageSpec spec{record.id, record.name, static_cast<uint32_t>((*made)->cards.size()), ::geteuid(), true};
  Result<std::shared_ptr<GrantPages>> pages = GrantPages::create(grants_directory_.get(), grants_path_, spec);
  if (!pages && pages.error().code == ErrorCode::kExists) {
    // Left by an agent that died in between: no record names them.
    GrantPages::remove(grants_directory_.get(), grants_path_, record.id);
    pages = GrantPages::create(grants_directory_.get(), grants_path_, spec);
  }
  if (!pages) return std::move(pages.error()).wrap("the grant's pages");
  (*made)->pages = std::move(*pages);
  record.page = (*made)->pages->page_identity();
  record.usage = (*made)->pages->usage_identity();
  return book(std::move(*made), placement, {});
}

// Everything but pages and bookkeeping.
Result<std::unique_ptr<Grant>> Node::make_pod_grant(const PodGrantRequest& request) {
  auto grant = std::make_unique<Grant>();
  GrantRecord& record = grant->record;
  record.id = request.id;
  record.name = request.name.substr(0, kMaxNameBytes);
  record.pod = request.pod;
  record.pod_uid = request.pod_uid;
  record.kind = request.kind;
  record.enforced = request.enforced;
  record.switched_off = request.switched_off;
  record.weight = request.weight;
  record.high_priority = request.high_priority;
  record.owner_uid = static_cast<int64_t>(::geteuid());
  record.started_unix = static_cast<int64_t>(std::time(nullptr));
  if (request.shares.empty() || request.shares.size() > page::kMaxCards) {
    return invalid(fmt::format("a container's cards: needs 1 to {}, have {}", page::kMaxCards, request.shares.size()));
  }
  for (const RecordShare& wanted : request.shares) {
    GrantCard card;
    card.unit = unit_by_uuid(wanted.card_uuid);
    if (card.unit == nullptr) {
      return not_found(fmt::format("card {} of the pod's allocation is not on this node now", wanted.card_uuid));
    }
    if (!card.unit->lock.valid()) return unavailable(card.unit->held_by);
    if (card.unit->lost) {
      return unavailable(
          fmt::format("card {} ({}) is lost: it does not answer", card.unit->info.index, card.unit->info.uuid));
    }
    const int64_t card_mib = card.unit->info.memory_bytes / kMib;
    const int64_t card_units = core::card_units(card_mib, options_.unit_mib);
    card.share = {card.unit->info.index, wanted.units, 0, wanted.core_milli};
    if (request.kind == core::Kind::kWhole) card.share = {card.unit->info.index, card_units, card_mib, 1000};
    if (card.share.units < 1 || card.share.units > card_units) {
      return invalid(fmt::format("card memory: the pod's allocation has {} units of card {}, which has {}",
                                 card.share.units, card.share.card_index, card_units));
    }
    card.share.memory_mib = core::container_limit_mib(card_mib, card.share.units, card_units);
    record.shares.push_back({wanted.card_uuid, card.share.units, card.share.memory_mib, card.share.core_milli});
    grant->cards.push_back(std::move(card));
  }
  record.policy = policy_for(*grant->cards.front().unit, request.kind);
  return grant;
}

void Node::end_pod_grant(uint64_t id) {
  std::lock_guard guard(mutex_);
  std::erase_if(waiting_records_, [&](const GrantRecord& record) {
    if (record.id != id) return false;
    ::unlink(fmt::format("{}/{}.json", records_path_, grant_id_text(id)).c_str());
    GrantPages::remove(grants_directory_.get(), grants_path_, id);
    return true;
  });
  auto found = grants_.find(id);
  if (found == grants_.end()) return;
  Grant& grant = *found->second;
  if (!grant.closing && grant.pages) grant.pages->close_for_new_programs();
  grant.closing = true;
  probe_grant(grant, monotonic_ns());
  for (const GrantCard& card : grant.cards) {
    if (card.watch->any_alive() || card.watch->any_waiting()) return;  // the watchdog's probe ends it
  }
  end_grant(id, "its container has ended for good");
}

std::optional<GrantRecord> Node::record_of(uint64_t id) {
  std::lock_guard guard(mutex_);
  auto found = grants_.find(id);
  if (found == grants_.end() || found->second->closing) return std::nullopt;
  return found->second->record;
}

std::vector<GrantRecord> Node::pod_records() {
  std::lock_guard guard(mutex_);
  std::vector<GrantRecord> records;
  for (const auto& [id, grant] : grants_) {
    if (!grant->record.pod_uid.empty() && !grant->closing) records.push_back(grant->record);
  }
  for (const GrantRecord& record : waiting_records_) {
    if (!record.pod_uid.empty()) records.push_back(record);
  }
  return records;
}

std::vector<CardFacts> Node::card_facts() {
  std::lock_guard guard(mutex_);
  std::vector<CardFacts> facts;
  // A lost card whose place another has taken, and that holds nothing any more, has been exchanged.
  auto exchanged = [this](const CardUnit& unit) {
    if (!unit.lost || unit.info.minor < 0 || kind_on(unit.info.index) != core::Kind::kNone) return false;
    return std::any_of(units_.begin(), units_.end(),
                       [&](const auto& other) { return !other->lost && other->info.minor == unit.info.minor; });
  };
  for (const auto& unit : units_) {
    if (exchanged(*unit)) continue;
    CardFacts one;
    one.info = unit->info;
    one.usable = unit->lock.valid() && !unit->lost;
    if (!unit->lock.valid())
      one.problem = unit->held_by;
    else if (unit->lost)
      one.problem = "does not answer";
    else if (unit->reading.mig)
      one.problem = "is in MIG mode, where programs run on parts of it past any share";
    else if (unit->reading.exclusive_process)
      one.problem = "is in a compute mode that admits one process only";
    for (const core::Card& card : core_.cards) {
      if (card.index != unit->info.index) continue;
      one.units = card.units;
      one.free_units = card.free_units;
      one.free_core_percent = card.free_core_milli / 10;
    }
    facts.push_back(std::move(one));
  }
  return facts;
}

void Node::set_default_policy(std::optional<uint32_t> policy) {
  std::lock_guard guard(mutex_);
  if (options_.policy == policy) return;
  options_.policy = policy;
  for (auto& unit : units_) apply_policy(*unit);
}

void Node::set_max_grants_per_card(int32_t most) {
  std::lock_guard guard(mutex_);
  if (options_.max_grants_per_card == most) return;
  options_.max_grants_per_card = most;
  for (auto& unit : units_) apply_policy(*unit);
}

}  // namespace sluice::agent
