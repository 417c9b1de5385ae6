// Making and changing grants: which cards (through the placement core), the pages, the record, the answer.
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "agent/node.h"
#include "base/log.h"
#include "core/place.h"
#include "core/units.h"

namespace sluice::agent {
namespace {

constexpr int64_t kMib = 1 << 20;

std::string unit_name(int64_t unit_mib) {
  return unit_mib == 1024 ? "GiB" : fmt::format("units of {} MiB", unit_mib);
}

core::NodeMode mode_for(core::Kind kind) {
  switch (kind) {
    case core::Kind::kMemory:
      return core::NodeMode::kMemory;
    case core::Kind::kMemoryCore:
      return core::NodeMode::kCoreMemory;
    default:
      return core::NodeMode::kDefault;
  }
}

Result<core::Request> core_request(const GrantRequest& request) {
  if (request.whole_cards > 0) {
    if (request.gpu_mem_units > 0 || request.core_percent > 0) {
      return invalid("whole cards and shares of cards: needs one of the two, have both");
    }
    core::Request whole;
    whole.kind = core::Kind::kWhole;
    whole.cards = static_cast<int32_t>(request.whole_cards);
    return whole;
  }
  auto text = [](int64_t number) { return number > 0 ? std::optional(std::to_string(number)) : std::nullopt; };
  return core::parse_request(text(request.gpu_mem_units), text(request.core_percent),
                             request.cards > 1 ? std::optional(std::to_string(request.cards)) : std::nullopt);
}

// What a first context costs until the card's own figure corrects it: it grows with the number of multiprocessors, from
// about 100 MiB on small cards to 600 on large ones; by memory size this is close enough for a first charge.
int64_t context_estimate_bytes(int64_t card_bytes) {
  const int64_t estimate = card_bytes / 96;
  return std::clamp<int64_t>(estimate, 128 * kMib, 600 * kMib);
}

uint64_t random_id() {
  uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof(id), 0) != sizeof(id)) id = monotonic_ns();
  }
  return id;
}

}  // namespace

Result<Node::Choice> Node::choose(const GrantRequest& request) {
  Result<core::Request> wanted = core_request(request);
  if (!wanted) return std::move(wanted.error());
  core::Node candidates = core_;
  candidates.mode = mode_for(wanted->kind);
  candidates.cards.clear();
  std::string left_out;
  auto leave_out = [&](const CardUnit& unit, std::string_view why) {
    left_out += fmt::format("; card {} {}", unit.info.index, why);
  };
  for (size_t i = 0; i < units_.size(); ++i) {
    const CardUnit& unit = *units_[i];
    const auto& pinned = request.card_uuids;
    if (!pinned.empty() && std::find(pinned.begin(), pinned.end(), unit.info.uuid) == pinned.end()) continue;
    const core::Kind kind = kind_on(unit.info.index);
    if (!unit.lock.valid())
      leave_out(unit, "is not ours: " + unit.held_by);
    else if (unit.lost)
      leave_out(unit, "is lost");
    else if (kind != core::Kind::kNone && kind != wanted->kind && kind != core::Kind::kWhole &&
             !(options_.mixed && wanted->kind != core::Kind::kWhole))
      leave_out(unit, fmt::format("serves {} requests, and a card serves one kind at a time", core::to_string(kind)));
    else if (request.policy && kind != core::Kind::kNone && *request.policy != unit.policy_in_force)
      leave_out(unit, fmt::format("is under policy {}", policy_name(unit.policy_in_force)));
    else
      candidates.cards.push_back(core_.cards[i]);
  }
  if (candidates.cards.empty()) {
    Error error =
        exhausted(fmt::format("cards: needs {} that can serve this request, have 0{}", wanted->cards, left_out));
    if (units_.empty()) error = not_found("no card: this machine has none that answers");
    return error;
  }
  const core::Node nodes[] = {candidates};
  Result<core::Placed> placed = core::place(nodes, *wanted, {}, unit_name(options_.unit_mib));
  if (!placed) {
    Error error = std::move(placed.error());
    error.message += left_out;
    return error;
  }
  return Choice{std::move(placed->placement), wanted->kind};
}

Node::PageLimits Node::limits_of(const Grant& grant, const GrantCard& card) const {
  PageLimits limits;
  const CardInfo& info = card.unit->info;
  if (Result<std::vector<uint8_t>> uuid = parse_uuid(info.uuid); uuid) limits.uuid = std::move(*uuid);
  limits.index = static_cast<uint32_t>(info.index);
  limits.card_memory_bytes = static_cast<uint64_t>(info.memory_bytes);
  limits.context_estimate_bytes = static_cast<uint64_t>(context_estimate_bytes(info.memory_bytes));
  // Whole cards: no limit, the programs see the card as it is.
  const bool whole = grant.record.kind == core::Kind::kWhole || !grant.record.enforced;
  limits.memory_limit_bytes = whole ? 0 : static_cast<uint64_t>(card.share.memory_mib * kMib);
  limits.policy = card.unit->policy_in_force;
  limits.weight = static_cast<uint32_t>(grant.record.weight);
  limits.flags = grant.record.high_priority ? page::kFlagHighPriority : 0;
  return limits;
}

void Node::fill_page(Grant& grant) {
  for (uint32_t i = 0; i < grant.cards.size(); ++i) {
    const GrantCard& card = grant.cards[i];
    if (card.unit == nullptr) continue;
    page::GrantCard& page = grant.pages->card(i);
    const PageLimits limits = limits_of(grant, card);
    std::copy(limits.uuid.begin(), limits.uuid.end(), page.uuid);
    page.index = limits.index;
    page.card_memory_bytes = limits.card_memory_bytes;
    page.context_estimate_bytes = limits.context_estimate_bytes;
    page.memory_limit_bytes.store(limits.memory_limit_bytes);
    page.core_permille.store(share_of(grant, card).core_permille);
    page.policy.store(limits.policy);
    page.weight.store(limits.weight);
    page.flags.store(limits.flags);
    page.limits_version.fetch_add(1);
  }
  grant.pages->header().heartbeat_ns.store(monotonic_ns());
}

Result<std::unique_ptr<Grant>> Node::make_grant(const Peer& peer, const GrantRequest& request, const Choice& choice,
                                                std::vector<std::string>& notes) {
  auto grant = std::make_unique<Grant>();
  GrantRecord& record = grant->record;
  record.id = random_id();
  record.pod = request.pod;
  record.kind = choice.kind;
  record.started_unix = static_cast<int64_t>(std::time(nullptr));
  Result<Holder> holder = make_holder(peer, request.runner_pid != 0 ? request.runner_pid : peer.pid);
  if (!holder) return std::move(holder.error()).wrap("the grant's runner");
  // A grant that root asks for on behalf of a user's process belongs to that user.
  Result<int64_t> uid = process_uid(holder->process.pid);
  record.owner_uid = uid && is_admin(peer) ? *uid : peer.uid;
  record.name = request.name.empty() ? fmt::format("{}-{}", process_command(holder->process.pid), holder->process.pid)
                                     : request.name;
  record.name.resize(std::min(record.name.size(), kMaxNameBytes));
  const bool trusted = is_admin(peer) || options_.allow_priority;
  if (!trusted && (request.weight != 1 || request.high_priority)) {
    notes.push_back("weight and high priority are not honoured: the agent was started without --allow-priority");
  }
  record.weight = trusted ? request.weight : 1;
  record.high_priority = trusted && request.high_priority;
  record.holders.push_back(holder->process);
  grant->holders.push_back(std::move(*holder));
  for (const core::Share& share : choice.placement.shares) {
    GrantCard card;
    card.unit = unit_of(share.card_index);
    card.share = share;
    record.shares.push_back({card.unit->info.uuid, share.units, share.memory_mib, share.core_milli});
    grant->cards.push_back(std::move(card));
  }
  const CardUnit& first = *grant->cards.front().unit;
  record.policy = request.policy && !first.policy ? *request.policy : policy_for(first, choice.kind);
  if (request.policy && first.policy && *request.policy != *first.policy) {
    notes.push_back(fmt::format("the card's policy was set to {}; {} is not honoured", policy_name(*first.policy),
                                policy_name(*request.policy)));
  }
  PageSpec spec{record.id, record.name, static_cast<uint32_t>(grant->cards.size()),
                static_cast<uid_t>(record.owner_uid)};
  Result<std::shared_ptr<GrantPages>> pages = GrantPages::create(grants_directory_.get(), grants_path_, spec);
  if (!pages) return std::move(pages.error()).wrap("the grant's pages");
  grant->pages = std::move(*pages);
  record.page = grant->pages->page_identity();
  record.usage = grant->pages->usage_identity();
  return grant;
}

Result<GrantAnswer> Node::grant(const Peer& peer, const GrantRequest& request) {
  if (options_.pods_only) {
    return permission(
        "the cards of this machine are given to pods by Kubernetes; ask with a pod that names aliyun.com/gpu-mem");
  }
  // Memory of programs that have just ended comes back with the card's next word, within two seconds: who asks right
  // after them waits for that instead of being refused.
  for (uint64_t end_ns = monotonic_ns() + kDeadHoldNs + 500'000'000;;) {
    Result<GrantAnswer> answer = try_grant(peer, request);
    if (answer || answer.error().code != ErrorCode::kExhausted || monotonic_ns() > end_ns || !any_fading())
      return answer;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Result<GrantAnswer> Node::try_grant(const Peer& peer, const GrantRequest& request) {
  std::lock_guard guard(mutex_);
  Result<Choice> choice = choose(request);
  if (!choice) return std::move(choice.error());
  std::vector<std::string> notes;
  Result<std::unique_ptr<Grant>> made = make_grant(peer, request, *choice, notes);
  if (!made) return std::move(made.error());
  return book(std::move(*made), choice->placement, std::move(notes));
}

// A grant whose pages are made is written down, counted and takes its turns. On an error its pages are removed.
Result<GrantAnswer> Node::book(std::unique_ptr<Grant> made, const core::Placement& placement,
                               std::vector<std::string> notes) {
  const uint64_t id = made->record.id;
  at(NodePoint::kPagesMade);
  Result<void> written = write_record(*made);
  if (!written) {
    GrantPages::remove(grants_directory_.get(), grants_path_, id);
    return std::move(written.error()).wrap("the grant's record");
  }
  at(NodePoint::kRecordWritten);
  Result<void> taken = core::take(core_, placement);
  if (!taken) {
    ::unlink(fmt::format("{}/{}.json", records_path_, grant_id_text(id)).c_str());
    GrantPages::remove(grants_directory_.get(), grants_path_, id);
    return std::move(taken.error());
  }
  at(NodePoint::kShareTaken);
  Grant& grant = *(grants_[id] = std::move(made));
  grant.sequence = ++grants_made_;
  for (GrantCard& card : grant.cards) apply_policy(*card.unit);
  fill_page(grant);
  join_keepers(grant);
  at(NodePoint::kGranted);
  log::info("grant made", {{"grant", grant_id_text(id)},
                           {"name", grant.record.name},
                           {"uid", grant.record.owner_uid},
                           {"card", grant.cards.front().unit->info.index},
                           {"cards", grant.cards.size()},
                           {"units", grant.cards.front().share.units},
                           {"core_milli", grant.cards.front().share.core_milli}});
  return answer_for(grant, std::move(notes));
}

GrantCardAnswer Node::card_answer(const Grant& grant, const GrantCard& card) const {
  GrantCardAnswer answer;
  answer.index = card.share.card_index;
  answer.units = card.share.units;
  answer.memory_limit_mib = card.share.memory_mib;
  answer.core_percent = grant.record.kind == core::Kind::kMemoryCore ? card.share.core_milli / 10 : 0;
  if (card.unit != nullptr) {
    const CardInfo& info = card.unit->info;
    answer.uuid = info.uuid;
    answer.model = info.model;
    answer.card_memory_mib = info.memory_bytes / kMib;
    answer.card_units = core::card_units(info.memory_bytes / kMib, options_.unit_mib);
    if (info.minor >= 0) answer.device_node = fmt::format("/dev/nvidia{}", info.minor);
  }
  return answer;
}

GrantAnswer Node::answer_for(const Grant& grant, std::vector<std::string> notes) {
  GrantAnswer answer;
  const GrantRecord& record = grant.record;
  answer.id = grant_id_text(record.id);
  answer.name = record.name;
  answer.whole_cards = record.kind == core::Kind::kWhole;
  // All of the machine's cards, whole: nothing to hide and nothing to hold.
  answer.isolate =
      (!answer.whole_cards && (record.enforced || record.switched_off)) || grant.cards.size() < units_.size();
  answer.policy = grant.cards.front().unit != nullptr ? grant.cards.front().unit->policy_in_force : record.policy;
  std::string uuids, indexes;
  int64_t units = 0;
  for (const GrantCard& card : grant.cards) {
    answer.cards.push_back(card_answer(grant, card));
    uuids += fmt::format("{}{}", uuids.empty() ? "" : ",", answer.cards.back().uuid);
    indexes += fmt::format("{}{}", indexes.empty() ? "" : ",", card.share.card_index);
    units += card.share.units;
  }
  answer.grant_directory = fmt::format("{}/{}/grant", grants_path_, answer.id);
  answer.usage_file = fmt::format("{}/{}/usage.d/usage", grants_path_, answer.id);
  answer.driver_files = driver_files_;
  answer.environment = {{"NVIDIA_VISIBLE_DEVICES", uuids}};
  if (!answer.whole_cards) {
    answer.environment.emplace_back("ALIYUN_COM_GPU_MEM_DEV", std::to_string(answer.cards.front().card_units));
    answer.environment.emplace_back("ALIYUN_COM_GPU_MEM_CONTAINER", std::to_string(answer.cards.front().units));
    answer.environment.emplace_back("ALIYUN_COM_GPU_MEM_POD", std::to_string(units));
    answer.environment.emplace_back("ALIYUN_COM_GPU_MEM_IDX", indexes);
  }
  answer.notes = std::move(notes);
  return answer;
}

// Bytes in use on each card must fit the new limit; asked again after the new limit is visible to programs.
Result<void> Node::check_memory_change(Grant& grant, int64_t units) {
  for (size_t i = 0; i < grant.cards.size(); ++i) {
    GrantCard& card = grant.cards[i];
    if (card.unit == nullptr) continue;
    look_at_slots(grant, i, monotonic_ns());
    const int64_t card_mib = card.unit->info.memory_bytes / kMib;
    const int64_t card_units = core::card_units(card_mib, options_.unit_mib);
    if (units > card_units) {
      return invalid(fmt::format("card memory: needs {} {} on one card, card {} has {}", units,
                                 unit_name(options_.unit_mib), card.share.card_index, card_units));
    }
    const int64_t limit = core::container_limit_mib(card_mib, units, card_units) * kMib;
    const int64_t in_use =
        std::max(card.watch->used_bytes().value_or(0), static_cast<int64_t>(card.watch->charged_bytes()));
    if (in_use > limit) {
      return exhausted(fmt::format("memory limit: {} MiB are in use on card {}, more than the {} MiB asked for",
                                   (in_use + kMib - 1) / kMib, card.share.card_index, limit / kMib));
    }
  }
  return {};
}

// What of the request cannot be, before anything is counted.
Result<void> Node::check_change(const Peer& peer, Grant& grant, const SetRequest& request) {
  const bool share = request.gpu_mem_units || request.core_percent;
  if (!grant.pages || grant.closing || grant.fading) return unavailable("this grant can no longer be changed");
  if (grant.record.kind == core::Kind::kWhole && share) {
    return invalid(fmt::format("grant '{}' has whole cards; a share of them cannot be changed", grant.record.name));
  }
  if (!grant.record.pod_uid.empty() && share) {
    return invalid(fmt::format("grant '{}' is a pod's; its manifest says what it gets", grant.record.name));
  }
  if (request.core_percent && grant.record.kind != core::Kind::kMemoryCore) {
    return invalid(fmt::format("grant '{}' asked for memory only; compute cannot be added to it", grant.record.name));
  }
  if (request.core_percent && (*request.core_percent < 5 || *request.core_percent % 5 != 0)) {
    return invalid(fmt::format("compute: needs a multiple of 5, at least 5, have {}", *request.core_percent));
  }
  if ((request.weight || request.high_priority) && !is_admin(peer) && !options_.allow_priority) {
    return permission("weight and high priority may be changed by root only (--allow-priority lifts this)");
  }
  if (request.gpu_mem_units) {
    Result<void> fits = check_memory_change(grant, *request.gpu_mem_units);
    if (!fits) return fits;
  }
  for (const GrantCard& card : grant.cards) {
    if (card.unit == nullptr) return unavailable("a card of this grant is not there now; its share cannot be changed");
  }
  return {};
}

// The grant's shares become these, with the weight and priority of `like`: counted already, visible from here on.
// (Compute, weight and priority are the keeper's words.)
void Node::apply_shares(Grant& grant, const core::Placement& placement, const GrantRecord& like) {
  grant.record.weight = like.weight;
  grant.record.high_priority = like.high_priority;
  for (size_t i = 0; i < grant.cards.size(); ++i) {
    GrantCard& card = grant.cards[i];
    card.share = placement.shares[i];
    grant.record.shares[i] = {card.unit->info.uuid, card.share.units, card.share.memory_mib, card.share.core_milli};
    page::GrantCard& page = grant.pages->card(static_cast<uint32_t>(i));
    page.memory_limit_bytes.store(limits_of(grant, card).memory_limit_bytes);
    page.limits_version.fetch_add(1);
    if (card.unit->keeper) card.unit->keeper->set_share(grant.record.id, share_of(grant, card));
  }
}

Result<GrantStatus> Node::set(const Peer& peer, const SetRequest& request) {
  std::lock_guard guard(mutex_);
  Result<Grant*> found = find_own_grant(peer, request.grant);
  if (!found) return std::move(found.error());
  Grant& grant = **found;
  if (Result<void> fine = check_change(peer, grant, request); !fine) return std::move(fine.error());
  core::Placement before, after;
  for (GrantCard& card : grant.cards) {
    core::Share share = card.share;
    if (request.gpu_mem_units) {
      const int64_t card_mib = card.unit->info.memory_bytes / kMib;
      share.units = *request.gpu_mem_units;
      share.memory_mib =
          core::container_limit_mib(card_mib, share.units, core::card_units(card_mib, options_.unit_mib));
    }
    if (request.core_percent)
      share.core_milli = core::core_milli_from_percent(static_cast<int32_t>(*request.core_percent));
    before.shares.push_back(card.share);
    after.shares.push_back(share);
  }
  Result<void> released = core::release(core_, before);
  if (!released) return std::move(released.error());
  Result<void> taken = core::take(core_, after);
  if (!taken) {
    Result<void> back = core::take(core_, before);
    if (!back) log::error("a share was lost while it was changed", {{"reason", back.error().message}});
    return std::move(taken.error());
  }
  const GrantRecord old_record = grant.record;
  GrantRecord changed = old_record;
  changed.weight = request.weight.value_or(old_record.weight);
  changed.high_priority = request.high_priority.value_or(old_record.high_priority);
  apply_shares(grant, after, changed);
  at(NodePoint::kLimitsChanged);
  // A program may have reserved more between the check and the new limit; from here on it cannot.
  Result<void> settled = request.gpu_mem_units ? check_memory_change(grant, *request.gpu_mem_units) : Result<void>();
  if (settled) settled = write_record(grant);
  if (!settled) {
    apply_shares(grant, before, old_record);
    Result<void> back = core::release(core_, after);
    if (back) back = core::take(core_, before);
    if (!back) log::error("a share was lost while it was changed", {{"reason", back.error().message}});
    return std::move(settled.error());
  }
  log::info("grant changed", {{"grant", grant_id_text(grant.record.id)},
                              {"units", grant.cards.front().share.units},
                              {"core_milli", grant.cards.front().share.core_milli}});
  return status_of(grant, true);
}

}  // namespace sluice::agent
