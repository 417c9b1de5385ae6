// The watchdog's part of the node: who lives, what is charged, what the card says, and where page and card differ.
#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <sstream>

#include "agent/node.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kBusyWindowNs = 1'000'000'000;
constexpr int kQuietRounds = 6;      // readings before a card that is busier than its pages say is reported
constexpr double kQuietPoints = 30;  // by how much
constexpr size_t kMaxAdopted = 64;

uint64_t card_offset(size_t card) {
  return sizeof(page::UsageHeader) + static_cast<uint64_t>(card) * sizeof(page::UsageCard);
}

// The page's words as plain numbers; the layout is page/usage.h's.
struct RawSlot {
  uint32_t state, contexts;
  uint64_t exec_token, reserved_bytes, busy_ns, launches, throttled_ns;
  uint8_t rest[sizeof(page::Slot) - 48];
};
static_assert(sizeof(RawSlot) == sizeof(page::Slot));
static_assert(offsetof(page::Slot, reserved_bytes) == 16 && offsetof(page::Slot, throttled_ns) == 40);

bool read_slots(GrantPages& pages, size_t card, SlotImages& images) {
  std::array<RawSlot, page::kMaxProcesses> raw;
  if (!pages.read(card_offset(card) + offsetof(page::UsageCard, slots), raw.data(), sizeof(raw))) return false;
  const auto tallies = pages.tallies(static_cast<uint32_t>(card));
  for (size_t i = 0; i < raw.size(); ++i) {
    images[i] = {raw[i].state == page::kSlotLive,
                 raw[i].reserved_bytes,
                 tallies[i],
                 raw[i].busy_ns,
                 raw[i].launches,
                 raw[i].throttled_ns};
  }
  return true;
}

uint64_t namespace_of(int64_t pid) {
  struct stat status{};
  return ::stat(fmt::format("/proc/{}/ns/mnt", pid).c_str(), &status) == 0 ? status.st_ino : 0;
}

// True when the process has this usage file mounted at the place where guests look for it. mountinfo is text from the
// kernel: no path of the process is resolved, so a file system of its own making cannot hold us up.
bool mounts_usage(int64_t pid, const FileIdentity& usage, const std::string& id) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/mountinfo", pid), 4 << 20);
  if (!text) return false;
  const std::string device = fmt::format(" {}:{} ", ::gnu_dev_major(usage.device), ::gnu_dev_minor(usage.device));
  for (size_t start = 0; start < text->size();) {
    size_t end = std::min(text->find('\n', start), text->size());
    std::string_view line = std::string_view(*text).substr(start, end - start);
    start = end + 1;
    if (line.find(fmt::format(" {} ", page::kUsagePath)) == std::string_view::npos) continue;
    if (line.find(device) == std::string_view::npos) continue;
    // On a file system of its own the device says it all; else the root of the mount names the grant.
    if (line.find(id) != std::string_view::npos || line.find(" /usage ") != std::string_view::npos) return true;
  }
  return false;
}

// The card lists a program a little longer than the kernel does. A leader that has ended while its threads live on is
// still there.
bool process_ended(int64_t pid) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/stat", pid), 8192);
  if (!text) return true;
  const size_t close = text->rfind(')');  // the command before it may hold anything
  if (close == std::string::npos || close + 2 >= text->size()) return false;
  if ((*text)[close + 2] != 'Z' && (*text)[close + 2] != 'X') return false;
  std::istringstream rest(text->substr(close + 2));
  std::string word;
  constexpr int kThreadsField = 20;  // of proc(5), counted from the state, which is 3
  for (int field = 3; field <= kThreadsField; ++field) rest >> word;
  return word == "0" || word == "1";
}

}  // namespace

bool Node::holders_alive(Grant& grant) {
  std::erase_if(grant.holders, [](Holder& holder) {
    pollfd waiting{holder.pidfd.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) > 0;
  });
  return !grant.holders.empty();
}

// The runner is gone; what it started and left behind lives on in its mount namespace, perhaps without having touched a
// card yet. Those processes hold the grant from now on.
void Node::adopt_namespace(Grant& grant) {
  if (grant.mount_namespace == 0) return;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return;
  const Peer self{::getpid(), static_cast<int64_t>(::geteuid())};
  while (dirent* entry = ::readdir(proc)) {
    int64_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    auto [rest, code] = std::from_chars(entry->d_name, end, pid);
    if (code != std::errc() || rest != end || namespace_of(pid) != grant.mount_namespace) continue;
    if (Result<Holder> holder = make_holder(self, pid); holder) {
      grant.record.holders.push_back(holder->process);
      grant.holders.push_back(std::move(*holder));
    }
    if (grant.holders.size() >= kMaxAdopted) break;
  }
  ::closedir(proc);
  if (grant.holders.empty()) return;
  Result<void> written = write_record(grant);
  if (!written) log::warning("a grant's record cannot be renewed", {{"reason", written.error().message}});
}

void Node::look_at_slots(Grant& grant, size_t index, uint64_t now_ns) {
  GrantCard& card = grant.cards[index];
  if (!grant.pages) return;
  SlotImages images;
  if (!read_slots(*grant.pages, index, images)) {
    // Only a file that was cut short cannot be read; probe_grant reports it.
    grant.pages->mend_usage();
    if (!read_slots(*grant.pages, index, images)) return;
  }
  SlotWatch::Found found = card.watch->look(now_ns, grant.pages->slot_owners(static_cast<uint32_t>(index)), images);
  clear_slots(grant, index, found.clear);
  if (found.died && card.unit != nullptr && card.unit->keeper) card.unit->keeper->process_died(grant.record.id);
}

void Node::clear_slots(Grant& grant, size_t index, const std::vector<uint32_t>& slots) {
  if (slots.empty()) return;
  publish(grant, index);
  for (uint32_t slot : slots) grant.pages->clear_slot(static_cast<uint32_t>(index), slot);
}

void Node::measure_busy(Grant& grant, size_t index, uint64_t now_ns) {
  GrantCard& card = grant.cards[index];
  uint64_t total = 0;
  uint32_t refused = 0;
  const uint64_t account = card_offset(index) + offsetof(page::UsageCard, account);
  if (!grant.pages->read(account + offsetof(page::Account, busy_total_ns), &total, sizeof(total)) ||
      !grant.pages->read(account + offsetof(page::Account, refused_allocations), &refused, sizeof(refused))) {
    return;
  }
  card.refused_allocations = refused;
  if (!card.busy.empty() && total < card.busy.back().second) card.busy.clear();  // made smaller: start over
  card.busy.emplace_back(now_ns, total);
  while (card.busy.size() > 2 && now_ns - card.busy[1].first >= kBusyWindowNs) card.busy.pop_front();
  const auto& [since_ns, since_total] = card.busy.front();
  if (now_ns <= since_ns) return;
  double share = 100.0 * static_cast<double>(total - since_total) / static_cast<double>(now_ns - since_ns);
  card.utilisation = std::clamp(share, 0.0, 100.0);
  // A whole card is its alone; and while the gate is free nobody else is on the card and the programs measure nothing.
  const bool free = grant.pages->card(static_cast<uint32_t>(index)).gate.load() == page::kGateFree;
  if ((grant.record.kind == core::Kind::kWhole || free) && card.unit != nullptr) {
    card.utilisation = card.unit->reading.utilisation_percent;
  }
}

// Corrections and the figures that the programs of the grant are shown.
void Node::publish(Grant& grant, size_t index) {
  GrantCard& card = grant.cards[index];
  page::GrantCard& page = grant.pages->card(static_cast<uint32_t>(index));
  for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
    const uint64_t wanted = card.watch->correction_bytes(slot);
    if (page.correction_bytes[slot].load(std::memory_order_relaxed) != wanted)
      page.correction_bytes[slot].store(wanted);
  }
  const auto used = static_cast<uint64_t>(std::max<int64_t>(card.watch->used_bytes().value_or(0), 0));
  page.used_bytes.store(used + card.outside_bytes);
  if (page.outside_bytes.load(std::memory_order_relaxed) != card.outside_bytes) {
    page.outside_bytes.store(card.outside_bytes);
  }
  page.utilisation_permille.store(static_cast<uint32_t>(card.utilisation * 10 + 0.5));
}

// What was seen of the container's processes, in one piece with the corrections that follow from it.
void Node::publish_look(Grant& grant, size_t index, uint64_t now_ns) {
  const GrantCard& card = grant.cards[index];
  page::GrantCard& page = grant.pages->card(static_cast<uint32_t>(index));
  page.look_count.store(page.look_count.load() | 1);
  publish(grant, index);
  page.deaths_open.store(card.watch->deaths_open());
  for (uint32_t word = 0; word < page::kMaxProcesses / 64; ++word) {
    uint64_t held = 0;
    for (uint32_t bit = 0; bit < 64; ++bit) held |= uint64_t{card.watch->held(64 * word + bit)} << bit;
    if (page.held_slots[word].load(std::memory_order_relaxed) != held) page.held_slots[word].store(held);
  }
  page.looked_ns.store(now_ns);
  page.look_count.fetch_add(1);
}

void Node::probe_grant(Grant& grant, uint64_t now_ns) {
  if (!grant.pages) return;
  mend_page(grant);
  if (!grant.pages->usage_intact()) {
    event("tampering", fmt::format("grant '{}' ({}) changed the size of its usage file; it is put right",
                                   grant.record.name, grant_id_text(grant.record.id)));
    for (GrantCard& card : grant.cards) ++card.tampering;
    grant.pages->mend_usage();
  }
  for (size_t i = 0; i < grant.cards.size(); ++i) {
    look_at_slots(grant, i, now_ns);
    measure_busy(grant, i, now_ns);
    publish_look(grant, i, now_ns);
  }
}

void Node::probe(uint64_t now_ns) {
  std::lock_guard guard(mutex_);
  static const uint64_t own_namespace = namespace_of(::getpid());
  std::vector<uint64_t> ended;
  for (auto& [id, grant] : grants_) {
    // A node holds a hundred pods' grants for days, most of them asleep: those are looked at every 100 ms.
    if (grant->probes_to_skip > 0 && !grant->closing) {
      --grant->probes_to_skip;
      continue;
    }
    probe_grant(*grant, now_ns);
    if (grant->mount_namespace == 0 && !grant->holders.empty()) {
      const uint64_t seen = namespace_of(grant->holders.front().process.pid);
      if (seen != own_namespace) grant->mount_namespace = seen;
    }
    // A pod's containers may start again at any time; who sees the pod go says so (end_pod_grant).
    bool alive = holders_alive(*grant) || (!grant->record.pod_uid.empty() && !grant->closing);
    bool held = false;
    for (const GrantCard& card : grant->cards) {
      alive = alive || card.watch->any_alive();
      held = held || card.watch->any_waiting();
    }
    if (!grant->record.pod_uid.empty()) {
      constexpr int kAsleep = 3;
      bool running = held;
      for (const GrantCard& card : grant->cards) running = running || card.watch->any_alive();
      grant->probes_to_skip = running ? 0 : kAsleep;
    }
    if (!alive && !grant->closing && !grant->fading) {
      adopt_namespace(*grant);
      alive = !grant->holders.empty();
    }
    if (!alive && held && !grant->fading) fade_grant(*grant);
    if (!alive && !held) ended.push_back(id);
  }
  for (uint64_t id : ended) end_grant(id, "its processes have ended");
  for (auto& unit : units_) {
    if (!unit->keeper) continue;
    const std::vector<TurnReport> reports = unit->keeper->report();
    mend_shares(*unit, reports);
    for (const TurnReport& report : reports) {
      auto entry = grants_.find(report.id);
      if (entry == grants_.end()) continue;
      for (GrantCard& card : entry->second->cards) {
        if (card.unit == unit.get()) card.overruns_seen = report.counters.overruns;
      }
    }
  }
}

void Node::write_heartbeats(uint64_t now_ns) {
  std::lock_guard guard(mutex_);
  for (auto& [id, grant] : grants_) {
    if (grant->pages) grant->pages->header().heartbeat_ns.store(now_ns);
  }
}

bool Node::wants_reading(const std::string& uuid) {
  std::lock_guard guard(mutex_);
  for (const auto& [id, grant] : grants_) {
    for (const GrantCard& card : grant->cards) {
      if (card.unit != nullptr && card.unit->info.uuid == uuid && card.watch->any_waiting()) return true;
    }
  }
  // A process that no grant accounts for is none before a second reading says so too.
  const CardUnit* unit = unit_by_uuid(uuid);
  return unit != nullptr && std::any_of(unit->strangers.begin(), unit->strangers.end(),
                                        [](const auto& entry) { return entry.second == 1; });
}

Node::Before Node::before_reading(const std::string& uuid) {
  std::lock_guard guard(mutex_);
  Before before;
  for (auto& [id, grant] : grants_) {
    for (size_t i = 0; i < grant->cards.size(); ++i) {
      const GrantCard& card = grant->cards[i];
      if (card.unit != nullptr && card.unit->info.uuid == uuid && grant->pages) {
        SlotImages& images = before[id];
        if (!read_slots(*grant->pages, i, images)) before.erase(id);
      }
    }
  }
  return before;
}

void Node::card_read(const std::string& uuid, uint64_t now_ns, uint64_t started_ns, const CardReading& reading,
                     const Before& before) {
  std::lock_guard guard(mutex_);
  CardUnit* unit = unit_by_uuid(uuid);
  if (unit == nullptr) return;
  unit->reading = reading;
  unit->read_once = true;
  for (auto& [id, grant] : grants_) {
    for (size_t i = 0; i < grant->cards.size(); ++i) {
      GrantCard& card = grant->cards[i];
      if (card.unit != unit || !grant->pages) continue;
      look_at_slots(*grant, i, now_ns);
      auto images = before.find(id);
      if (images == before.end()) continue;  // granted while the card was being read
      SlotWatch::Found found = card.watch->card_read(now_ns, started_ns, reading, images->second);
      publish_look(*grant, i, now_ns);
      clear_slots(*grant, i, found.clear);
      const bool whole = grant->record.kind == core::Kind::kWhole || !grant->record.enforced;
      std::optional<std::string> differs = card.watch->difference(whole ? 0 : card.share.memory_mib * (1 << 20));
      if (differs && !whole && !card.differs) {
        ++card.tampering;
        event("tampering", fmt::format("grant '{}' ({}) {}", grant->record.name, grant_id_text(id), *differs));
      }
      card.differs = differs.has_value();
    }
  }
  look_for_strangers(*unit, reading);
  compare_busy(*unit, reading);
}

void Node::look_for_strangers(CardUnit& unit, const CardReading& reading) {
  std::map<int64_t, int> seen;
  std::map<int64_t, uint64_t> within;
  std::map<uint64_t, uint64_t> outside;  // by grant
  for (const ProcessUse& use : reading.processes) {
    bool granted = use.pid == ::getpid();
    for (const auto& [id, grant] : grants_) {
      for (const GrantCard& card : grant->cards) {
        if (card.unit != &unit) continue;
        granted = granted || card.watch->holds(use.pid);
        // Programs on whole cards need no library of ours; the owner's own are believed.
        if (grant->record.kind == core::Kind::kWhole && process_uid(use.pid).ok()) {
          granted = granted || *process_uid(use.pid) == grant->record.owner_uid;
        }
      }
    }
    if (granted || process_ended(use.pid)) continue;
    const auto known = unit.strangers.find(use.pid);
    const int rounds = known == unit.strangers.end() ? 1 : known->second + 1;
    seen[use.pid] = std::min(rounds, 1000);
    if (rounds > 2) {
      if (auto inside = unit.strangers_within.find(use.pid); inside != unit.strangers_within.end()) {
        within.insert(*inside);
        outside[inside->second] += static_cast<uint64_t>(std::max<int64_t>(use.used_bytes, 0));
      }
    }
    if (rounds != 2) continue;  // a process that is just starting or ending is none
    std::string whose = "without a grant";
    for (const auto& [id, grant] : grants_) {
      if (grant->pages && mounts_usage(use.pid, grant->record.usage, grant_id_text(id))) {
        whose = fmt::format("inside grant '{}' ({}) but past its library", grant->record.name, grant_id_text(id));
        within[use.pid] = id;
        outside[id] += static_cast<uint64_t>(std::max<int64_t>(use.used_bytes, 0));
        break;
      }
    }
    event("stranger",
          fmt::format("process {} ({}) uses card {} {}", use.pid, process_command(use.pid), unit.info.index, whose));
  }
  unit.strangers = std::move(seen);
  unit.strangers_within = std::move(within);
  // It counts against the grant: its programs that do use the library get that much less.
  for (auto& [id, grant] : grants_) {
    for (size_t i = 0; i < grant->cards.size(); ++i) {
      GrantCard& card = grant->cards[i];
      if (card.unit != &unit || !grant->pages) continue;
      const auto found = outside.find(id);
      card.outside_bytes = found == outside.end() ? 0 : found->second;
      publish(*grant, i);
    }
  }
}

// The card's own busy figure against the sum of what the pages say. Only where nobody but grants is on the card.
void Node::compare_busy(CardUnit& unit, const CardReading& reading) {
  double said = 0;
  std::string names;
  for (const auto& [id, grant] : grants_) {
    for (const GrantCard& card : grant->cards) {
      if (card.unit != &unit || grant->record.kind == core::Kind::kWhole) continue;
      if (card.watch->any_alive())
        names += fmt::format("{}'{}' ({})", names.empty() ? "" : ", ", grant->record.name, grant_id_text(id));
      said += card.utilisation;
    }
  }
  const bool quiet = !names.empty() && unit.strangers.empty() && reading.utilisation_percent > said + kQuietPoints;
  unit.quiet_rounds = quiet ? unit.quiet_rounds + 1 : 0;
  if (unit.quiet_rounds != kQuietRounds) return;
  for (auto& [id, grant] : grants_) {
    for (GrantCard& card : grant->cards) card.tampering += card.unit == &unit && card.watch->any_alive() ? 1 : 0;
  }
  event("tampering", fmt::format("card {} is {} % busy by its own word, the pages of {} say {:.0f} %", unit.info.index,
                                 reading.utilisation_percent, names, said));
}

void Node::card_failed(const std::string& uuid, const Error& error) {
  std::lock_guard guard(mutex_);
  CardUnit* unit = unit_by_uuid(uuid);
  if (unit == nullptr || error.code != ErrorCode::kNotFound || unit->lost) return;
  unit->lost = true;
  unit->reading = {};
  for (core::Card& card : core_.cards) {
    if (card.index == unit->info.index) card.healthy = false;
  }
  event("card-lost", fmt::format("card {} ({}) is lost: {}", unit->info.index, uuid, error.message));
}

bool Node::any_lost() {
  std::lock_guard guard(mutex_);
  return std::any_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return unit->lost || !unit->lock.valid(); }) ||
         !waiting_records_.empty();
}

std::vector<std::string> Node::card_uuids() {
  std::lock_guard guard(mutex_);
  std::vector<std::string> uuids;
  for (const auto& unit : units_) {
    if (unit->lock.valid()) uuids.push_back(unit->info.uuid);
  }
  return uuids;
}

}  // namespace sluice::agent
