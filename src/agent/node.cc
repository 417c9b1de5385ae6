#include "agent/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>

#include "agent/card_lock.h"
#include "agent/nvml_cards.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxEvents = 256;
constexpr uint64_t kEventRepeatNs = 10'000'000'000;

}  // namespace

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

CardUnit::~CardUnit() {
  if (keeper) keeper->stop();
  if (keeper_thread.joinable()) keeper_thread.join();
}

Node::Node(NodeOptions options, Cards& cards, HostFactory hosts)
    : options_(std::move(options)), cards_source_(cards), hosts_(std::move(hosts)) {
  core_.name = "this machine";
  core_.card_order = options_.card_order;
  // How many pods share a card is for the scheduler to say, never a reason to fail a container's start.
  core_.max_pods_per_card = options_.pods_only ? 0 : options_.max_grants_per_card;
}

Node::~Node() {
  // Grants stay as they are, on disk and for their programs; only this agent's hands are taken off.
  std::lock_guard guard(mutex_);
  for (auto& [id, grant] : grants_) leave_keepers(*grant);
  units_.clear();
}

bool Node::is_admin(const Peer& peer) const {
  return peer.uid == 0 || peer.uid == static_cast<int64_t>(::geteuid());
}

bool Node::idle() {
  std::lock_guard guard(mutex_);
  return grants_.empty();
}

CardUnit* Node::unit_of(int32_t index) {
  for (auto& unit : units_) {
    if (unit->info.index == index) return unit.get();
  }
  return nullptr;
}

CardUnit* Node::unit_by_uuid(const std::string& uuid) {
  for (auto& unit : units_) {
    if (unit->info.uuid == uuid) return unit.get();
  }
  return nullptr;
}

// On a mixed card the kind with compute.
core::Kind Node::kind_on(int32_t card_index) const {
  core::Kind kind = core::Kind::kNone;
  for (const auto& [id, grant] : grants_) {
    for (const GrantCard& card : grant->cards) {
      if (card.share.card_index == card_index && kind != core::Kind::kMemoryCore) kind = grant->record.kind;
    }
  }
  return kind;
}

uint32_t Node::policy_for(const CardUnit& unit, core::Kind kind) const {
  if (unit.policy) return *unit.policy;
  if (options_.policy) return *options_.policy;
  // Who came first has chosen. (A pod chooses nothing: what its record has may be of a label that was taken away.)
  for (const auto& [id, grant] : grants_) {
    for (const GrantCard& card : grant->cards) {
      if (card.share.card_index == unit.info.index && grant->record.pod_uid.empty()) return grant->record.policy;
    }
  }
  // Where a capped container may come to an uncapped one, both take turns from the start.
  return kind == core::Kind::kMemoryCore || options_.mixed ? page::kPolicyFixed : page::kPolicyNative;
}

void Node::apply_policy(CardUnit& unit) {
  unit.policy_in_force = policy_for(unit, kind_on(unit.info.index));
  if (unit.keeper) {
    const int32_t most = options_.max_grants_per_card > 0 ? options_.max_grants_per_card : 20;
    unit.keeper->set_policy(static_cast<core::ComputePolicy>(unit.policy_in_force), static_cast<uint32_t>(most));
  }
}

core::ShareRequest Node::share_of(const Grant& grant, const GrantCard& card) const {
  core::ShareRequest share;
  share.unlimited = grant.record.kind == core::Kind::kWhole || !grant.record.enforced;
  const bool capped = grant.record.kind == core::Kind::kMemoryCore && grant.record.enforced;
  share.core_permille = capped ? static_cast<uint32_t>(card.share.core_milli) : 0;
  share.weight = static_cast<uint32_t>(grant.record.weight);
  share.high_priority = grant.record.high_priority;
  return share;
}

void Node::join_keepers(Grant& grant) {
  if (!grant.pages) return;
  for (uint32_t i = 0; i < grant.cards.size(); ++i) {
    GrantCard& card = grant.cards[i];
    if (card.unit == nullptr || !card.unit->keeper) continue;
    apply_policy(*card.unit);
    card.unit->keeper->add({grant.record.id, &grant.pages->card(i), grant.pages, i, share_of(grant, card)});
  }
}

void Node::leave_keepers(Grant& grant) {
  for (GrantCard& card : grant.cards) {
    if (grant.pages && card.unit != nullptr && card.unit->keeper) card.unit->keeper->remove(grant.record.id);
  }
}

// The same sentence is said once in kEventRepeatNs: a tenant decides how often it misbehaves, not how much is logged.
// By the clock that nobody sets: after a jump back of the other, sentences would be swallowed until it has caught up.
void Node::event(std::string what, std::string text) {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  const uint64_t now_ns = monotonic_ns();
  for (const auto& [said_ns, earlier] : said_) {
    if (earlier == text && now_ns - said_ns < kEventRepeatNs) return;
  }
  said_.emplace_back(now_ns, text);
  if (said_.size() > kMaxEvents) said_.pop_front();
  log::warning(text, {{"event", what}});
  events_.push_back({now_ms, std::move(what), std::move(text)});
  if (events_.size() > kMaxEvents) events_.pop_front();
}

Result<Grant*> Node::find_grant(const std::string& text) {
  Grant* found = nullptr;
  for (auto& [id, grant] : grants_) {
    if (grant_id_text(id) == text) return grant.get();
    if (grant->record.name != text) continue;
    if (found != nullptr) {
      return invalid(fmt::format("several grants are named '{}'; name one by its id (`sluice ps`)", text));
    }
    found = grant.get();
  }
  if (found == nullptr) return not_found(fmt::format("there is no grant '{}' here (`sluice ps` lists them)", text));
  return found;
}

Result<Grant*> Node::find_own_grant(const Peer& peer, const std::string& text) {
  Result<Grant*> grant = find_grant(text);
  if (!grant) return grant;
  if (!is_admin(peer) && peer.uid != (*grant)->record.owner_uid) {
    return permission(fmt::format("grant '{}' belongs to uid {}; only root and its owner may change it", text,
                                  (*grant)->record.owner_uid));
  }
  return grant;
}

Result<Holder> Node::make_holder(const Peer& peer, int64_t pid) const {
  Holder holder;
  holder.process.pid = pid;
  holder.pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!holder.pidfd.valid()) {
    return not_found(
        fmt::format("process {} is not there for this agent (errno {}); it must be in the agent's PID "
                    "namespace and alive",
                    pid, errno));
  }
  Result<uint64_t> ticks = process_start_ticks(pid);
  if (!ticks) return std::move(ticks.error());
  holder.process.start_ticks = *ticks;
  Result<int64_t> uid = process_uid(pid);
  if (!uid) return std::move(uid.error());
  // The caller's own process is known by its credentials; one that it names must be its user's.
  if (pid != peer.pid && !is_admin(peer) && *uid != peer.uid) {
    return permission(fmt::format("process {} belongs to uid {}, not to uid {}", pid, *uid, peer.uid));
  }
  return holder;
}

Result<void> Node::write_record(const Grant& grant) {
  return write_file_atomic(fmt::format("{}/{}.json", records_path_, grant_id_text(grant.record.id)),
                           json::to_pretty_string(grant.record.to_json()), 0600);
}

// Nobody lives under the grant any more, but the card still holds memory of the dead: compute and turns are free at
// once.
void Node::fade_grant(Grant& grant) {
  grant.fading = true;
  if (grant.pages) grant.pages->close_for_new_programs();
  leave_keepers(grant);
  core::Placement before, after;
  for (const GrantCard& card : grant.cards) {
    if (card.unit == nullptr) continue;
    before.shares.push_back(card.share);
    after.shares.push_back(card.share);
    // A whole card stays whole until its memory is back.
    if (grant.record.kind == core::Kind::kMemoryCore) after.shares.back().core_milli = 0;
  }
  if (before == after || !core::release(core_, before)) return;
  if (Result<void> taken = core::take(core_, after); !taken) {
    log::error("a fading share was lost", {{"reason", taken.error().message}});
    return;
  }
  for (GrantCard& card : grant.cards) card.share.core_milli = 0;
}

bool Node::any_fading() {
  std::lock_guard guard(mutex_);
  return std::any_of(grants_.begin(), grants_.end(), [](const auto& entry) { return entry.second->fading; });
}

bool Node::any_waiting() {
  std::lock_guard guard(mutex_);
  return std::any_of(grants_.begin(), grants_.end(), [](const auto& entry) {
    const auto& cards = entry.second->cards;
    return std::any_of(cards.begin(), cards.end(), [](const GrantCard& card) { return card.watch->any_waiting(); });
  });
}

void Node::end_grant(uint64_t id, std::string_view why) {
  auto entry = grants_.find(id);
  if (entry == grants_.end()) return;
  std::unique_ptr<Grant> grant = std::move(entry->second);
  grants_.erase(entry);
  if (grant->pages) grant->pages->close_for_new_programs();
  if (!grant->fading) leave_keepers(*grant);
  at(NodePoint::kClosed);
  core::Placement placement;
  for (const GrantCard& card : grant->cards) {
    if (card.unit != nullptr) placement.shares.push_back(card.share);
  }
  Result<void> given = core::release(core_, placement);
  if (!given)
    log::error("a share could not be given back", {{"grant", grant_id_text(id)}, {"reason", given.error().message}});
  // The record first: a grant without its pages would be reported as lost by the next agent.
  ::unlink(fmt::format("{}/{}.json", records_path_, grant_id_text(id)).c_str());
  at(NodePoint::kRecordRemoved);
  GrantPages::remove(grants_directory_.get(), grants_path_, id);
  at(NodePoint::kPagesRemoved);
  for (const GrantCard& card : grant->cards) {
    if (card.unit != nullptr) apply_policy(*card.unit);
  }
  log::info("grant ended", {{"grant", grant_id_text(id)}, {"name", grant->record.name}, {"why", why}});
}

Result<void> Node::release(const Peer& peer, const std::string& text, bool force) {
  std::lock_guard guard(mutex_);
  Result<Grant*> found = find_own_grant(peer, text);
  if (!found) return std::move(found.error());
  Grant& grant = **found;
  if (!grant.record.pod_uid.empty()) {
    return invalid(fmt::format("grant '{}' is a pod's; delete the pod to release it", grant.record.name));
  }
  probe_grant(grant, monotonic_ns());
  bool alive = false;
  bool held = false;
  for (const GrantCard& card : grant.cards) {
    alive = alive || card.watch->any_alive();
    held = held || card.watch->any_waiting();
  }
  // Its command has ended. What it left behind may not have come to the card yet: then the grant is in use. What it
  // left on the card fades, and who asks next waits for that.
  if (!alive && !grant.fading) {
    std::vector<Holder> holders = std::move(grant.holders);
    grant.holders.clear();
    adopt_namespace(grant);
    alive = !grant.holders.empty();
    std::move(holders.begin(), holders.end(), std::back_inserter(grant.holders));
  }
  if (alive && !force) {
    return Error{ErrorCode::kExists,
                 fmt::format("grant '{}' is in use by running programs; end them first, or use force "
                             "to close it for new ones",
                             grant.record.name)};
  }
  grant.closing = true;
  grant.holders.clear();
  if (grant.pages) grant.pages->close_for_new_programs();
  if (!alive && held && !grant.fading) fade_grant(grant);
  if (!alive && !held) end_grant(grant.record.id, "released");
  return {};
}

Result<void> Node::attach(const Peer& peer, const std::string& text, int64_t pid) {
  constexpr size_t kMaxHolders = 64;
  std::lock_guard guard(mutex_);
  Result<Grant*> found = find_own_grant(peer, text);
  if (!found) return std::move(found.error());
  Grant& grant = **found;
  if (grant.closing) return unavailable(fmt::format("grant '{}' is being released", grant.record.name));
  if (grant.holders.size() >= kMaxHolders) {
    return exhausted(
        fmt::format("grant '{}' has {} attached processes, the most there may be", grant.record.name, kMaxHolders));
  }
  Result<Holder> holder = make_holder(peer, pid != 0 ? pid : peer.pid);
  if (!holder) return std::move(holder.error());
  grant.record.holders.push_back(holder->process);
  Result<void> written = write_record(grant);
  if (!written) {
    grant.record.holders.pop_back();
    return std::move(written.error());
  }
  grant.holders.push_back(std::move(*holder));
  return {};
}

Result<void> Node::set_policy(const Peer& peer, const SetPolicyRequest& request) {
  std::lock_guard guard(mutex_);
  if (!is_admin(peer)) return permission("only root and the agent's user may set a card's compute policy");
  std::vector<CardUnit*> chosen;
  for (auto& unit : units_) {
    if (request.card.empty() || request.card == unit->info.uuid || request.card == std::to_string(unit->info.index)) {
      chosen.push_back(unit.get());
    }
  }
  if (chosen.empty()) return not_found(fmt::format("there is no card '{}'; expected an index or UUID", request.card));
  std::map<std::string, uint32_t> before = saved_policies_;
  for (CardUnit* unit : chosen) saved_policies_[unit->info.uuid] = request.policy;
  Result<void> saved = save_policies();
  if (!saved) {
    saved_policies_ = std::move(before);
    return saved;
  }
  for (CardUnit* unit : chosen) {
    unit->policy = request.policy;
    apply_policy(*unit);
  }
  return {};
}

}  // namespace sluice::agent
