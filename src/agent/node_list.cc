// What the node tells its callers: cards, grants, events; everything of one's own, of other users only the shares.
#include <unistd.h>

#include <algorithm>

#include "agent/node.h"
#include "agent/version.h"
#include "core/units.h"

namespace sluice::agent {
namespace {

constexpr int64_t kMib = 1 << 20;

const char* kind_text(core::Kind kind) {
  switch (kind) {
    case core::Kind::kMemory:
      return "memory";
    case core::Kind::kMemoryCore:
      return "memory+core";
    case core::Kind::kWhole:
      return "whole";
    case core::Kind::kNone:
      break;
  }
  return "free";
}

int64_t used_mib(int64_t bytes) {
  return bytes == kUnknownBytes ? -1 : bytes / kMib;
}

void add_sample(ProcessStatus& entry, const ProcessSample& sample) {
  entry.utilisation_percent = sample.sm_percent;
  entry.memory_copy_percent = sample.memory_percent;
  entry.encoder_percent = sample.encoder_percent;
  entry.decoder_percent = sample.decoder_percent;
}

}  // namespace

GrantStatus Node::status_of(const Grant& grant, bool full) {
  const GrantRecord& record = grant.record;
  GrantStatus status;
  status.id = grant_id_text(record.id);
  status.name = record.name;
  status.pod = record.pod;
  status.owner_uid = record.owner_uid;
  status.runner_pid = grant.holders.empty() ? 0 : grant.holders.front().process.pid;
  status.whole_cards = record.kind == core::Kind::kWhole;
  status.taken_over = grant.taken_over;
  status.started_unix = record.started_unix;
  status.policy = record.policy;
  status.weight = record.weight;
  status.high_priority = record.high_priority;
  for (const GrantCard& card : grant.cards) {
    status.cards.push_back(card_answer(grant, card));
    if (card.unit != nullptr) status.policy = card.unit->policy_in_force;
    GrantUse use;
    use.card_index = card.share.card_index;
    const int64_t charged = static_cast<int64_t>(card.watch->charged_bytes());
    use.used_mib = card.watch->used_bytes().value_or(charged) / kMib;
    if (status.whole_cards && card.unit != nullptr) use.used_mib = card.unit->reading.used_bytes / kMib;
    use.reserved_mib = charged / kMib;
    use.utilisation_percent = card.utilisation;
    use.refused_allocations = static_cast<int64_t>(card.refused_allocations);
    use.overruns = static_cast<int64_t>(card.overruns_seen);
    use.tampering = card.tampering;
    status.use.push_back(use);
    if (!full) continue;
    if (status.whole_cards && card.unit != nullptr) {
      // No library need stand in between, so there are no slots; but whatever is on the card is this grant's.
      for (const ProcessUse& process : card.unit->reading.processes) {
        ProcessStatus entry;
        entry.pid = process.pid;
        entry.card_index = card.share.card_index;
        entry.command = process_command(process.pid);
        entry.used_mib = used_mib(process.used_bytes);
        for (const ProcessSample& sample : card.unit->reading.samples) {
          if (sample.pid == process.pid) add_sample(entry, sample);
        }
        status.processes.push_back(std::move(entry));
      }
      continue;
    }
    for (const SlotWatch::Process& process : card.watch->processes()) {
      ProcessStatus entry;
      entry.pid = process.pid;
      entry.card_index = card.share.card_index;
      entry.command = process.dead ? "(ended)" : process_command(process.pid);
      entry.used_mib = used_mib(process.used_bytes);
      entry.reserved_mib = static_cast<int64_t>(process.image.reserved_bytes) / kMib;
      // Page figures that must fit a signed number whatever was written there.
      constexpr uint64_t kMost = uint64_t{1} << 53;
      entry.launches = static_cast<int64_t>(std::min(process.image.launches, kMost));
      entry.throttled_seconds = static_cast<double>(std::min(process.image.throttled_ns, kMost)) / 1e9;
      if (card.unit != nullptr) {
        for (const ProcessSample& sample : card.unit->reading.samples) {
          if (sample.pid == process.pid) add_sample(entry, sample);
        }
      }
      status.processes.push_back(std::move(entry));
    }
  }
  return status;
}

CardStatus Node::status_of(CardUnit& unit, const Peer& peer) {
  CardStatus status;
  status.index = unit.info.index;
  status.uuid = unit.info.uuid;
  status.model = unit.info.model;
  status.state = unit.lost ? "lost" : unit.lock.valid() ? "ok" : "held by another agent";
  status.kind = kind_text(kind_on(unit.info.index));
  status.policy = unit.policy_in_force;
  status.memory_mib = unit.info.memory_bytes / kMib;
  status.max_grants = options_.max_grants_per_card;
  for (const core::Card& card : core_.cards) {
    if (card.index != unit.info.index) continue;
    status.units = card.units;
    status.free_units = card.free_units;
    status.free_core_percent = card.free_core_milli / 10;
    status.grants = card.pods;
  }
  status.used_mib = unit.reading.used_bytes / kMib;
  status.utilisation_percent = unit.reading.utilisation_percent;
  status.turns = unit.keeper != nullptr && unit.keeper->turns_in_force();
  for (const auto& [pid, rounds] : unit.strangers) {
    if (rounds < 2) continue;
    Result<int64_t> uid = process_uid(pid);
    if (!is_admin(peer) && (!uid || *uid != peer.uid)) continue;
    ProcessStatus entry;
    entry.pid = pid;
    entry.card_index = unit.info.index;
    entry.command = process_command(pid);
    entry.granted = false;
    for (const ProcessUse& use : unit.reading.processes) {
      if (use.pid == pid) entry.used_mib = used_mib(use.used_bytes);
    }
    status.strangers.push_back(std::move(entry));
  }
  return status;
}

ListAnswer Node::list(const Peer& peer) {
  std::lock_guard guard(mutex_);
  ListAnswer answer;
  answer.agent_version = kVersion;
  answer.driver_version = driver_version_;
  answer.run_directory = options_.run_directory;
  answer.agent_pid = ::getpid();
  answer.agent_uid = ::geteuid();
  answer.memory_unit = options_.unit_mib == 1024 ? "GiB" : std::to_string(options_.unit_mib) + " MiB";
  for (auto& unit : units_) answer.cards.push_back(status_of(*unit, peer));
  std::vector<const Grant*> in_order;
  for (auto& [id, grant] : grants_) in_order.push_back(grant.get());
  std::sort(in_order.begin(), in_order.end(), [](const Grant* a, const Grant* b) { return a->sequence < b->sequence; });
  for (const Grant* grant : in_order) {
    answer.grants.push_back(status_of(*grant, is_admin(peer) || peer.uid == grant->record.owner_uid));
  }
  if (is_admin(peer)) answer.events.assign(events_.begin(), events_.end());
  return answer;
}

}  // namespace sluice::agent
