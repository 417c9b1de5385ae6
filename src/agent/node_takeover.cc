// Starting: directories, cards, and the grants that an earlier agent left behind with programs running under them.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/card_lock.h"
#include "agent/node.h"
#include "agent/nvml_cards.h"
#include "base/log.h"
#include "core/units.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxRecords = 4096;
constexpr size_t kMaxRecordBytes = 256 << 10;
constexpr int64_t kMib = 1 << 20;

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return names;
  while (dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] != '.' && names.size() < kMaxRecords) names.emplace_back(entry->d_name);
  }
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

Result<Fd> own_directory(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) return errno_error("cannot create", path, errno);
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open", path, errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid()) {
    return permission(fmt::format("{} does not belong to uid {}; remove it", path, ::geteuid()));
  }
  if (::fchmod(fd.get(), mode) != 0) return errno_error("cannot set the mode of", path, errno);
  return fd;
}

}  // namespace

Result<void> Node::prepare_directories() {
  grants_path_ = options_.run_directory + "/grants";
  records_path_ = options_.run_directory + "/records";
  // Passable by all: what lies below is closed to everybody but the grant's owner (grant_pages.cc).
  Result<Fd> grants = own_directory(grants_path_, ::geteuid() == 0 ? 0711 : 0700);
  if (!grants) return std::move(grants.error());
  grants_directory_ = std::move(*grants);
  Result<Fd> records = own_directory(records_path_, 0700);
  if (!records) return std::move(records.error());
  if (::geteuid() == 0) {
    // Where programs of users without rights find their pages mounted: the mount points must exist (page/grant.h).
    if (make_directories(page::kContainerRoot + std::string("/grant")).ok()) {
      (void)make_directories(page::kDriverDirectory);
      Fd usage(::open(page::kUsagePath, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
    }
  }
  return {};
}

Result<void> Node::serve_card(const CardInfo& info) {
  auto unit = std::make_unique<CardUnit>();
  unit->info = info;
  // The index names the card to people and in the core: a card that comes where a lost one was gets the next free one.
  while (unit_of(unit->info.index) != nullptr) ++unit->info.index;
  if (Result<std::vector<uint8_t>> uuid = parse_uuid(info.uuid); !uuid) return std::move(uuid.error());
  Result<Fd> lock = lock_card(options_.card_lock_directory, info.uuid, options_.run_directory);
  if (lock)
    unit->lock = std::move(*lock);
  else
    unit->held_by = lock.error().message;
  if (auto saved = saved_policies_.find(info.uuid); saved != saved_policies_.end()) unit->policy = saved->second;
  core::Card card =
      core::make_card(unit->info.index, info.uuid, info.model, info.memory_bytes / kMib, options_.unit_mib);
  card.healthy = unit->lock.valid();
  core_.cards.push_back(std::move(card));
  if (unit->lock.valid()) {
    unit->host = hosts_();
    unit->keeper = std::make_unique<TurnKeeper>(*unit->host);
    unit->keeper_thread = std::thread([keeper = unit->keeper.get()] { keeper->run(); });
  }
  apply_policy(*unit);
  log::info("card", {{"index", unit->info.index},
                     {"uuid", info.uuid},
                     {"model", info.model},
                     {"memory_mib", info.memory_bytes / kMib},
                     {"ours", unit->lock.valid()}});
  units_.push_back(std::move(unit));
  return {};
}

Result<void> check_unit(const std::vector<CardInfo>& cards, int64_t unit_mib) {
  const CardInfo* largest = nullptr;
  for (const CardInfo& card : cards) {
    if (largest == nullptr || card.memory_bytes > largest->memory_bytes) largest = &card;
    if (card.memory_bytes / kMib < unit_mib)
      log::warning("the card is smaller than one memory unit; nothing of it can be asked for",
                   {{"uuid", card.uuid}, {"memory_mib", card.memory_bytes / kMib}, {"unit_mib", unit_mib}});
  }
  if (largest == nullptr || largest->memory_bytes / kMib >= unit_mib) return {};
  return invalid(
      fmt::format("--memory-unit-mib {} is more than any card here has (the largest, {}, has {} MiB), so that no "
                  "pod or program could ask for a part of one; 1024 makes the unit a GiB",
                  unit_mib, largest->model, largest->memory_bytes / kMib));
}

Result<void> Node::start() {
  std::lock_guard guard(mutex_);
  Result<void> prepared = prepare_directories();
  if (!prepared) return prepared;
  driver_version_ = cards_source_.driver_version();
  driver_files_ = find_driver_files(options_.driver_directory, options_.guest_directory);
  load_policies();
  Result<std::vector<CardInfo>> cards = cards_source_.list();
  if (!cards) return std::move(cards.error());
  if (cards->empty() && !options_.pods_only)
    return not_found("no card: the driver is there but lists none (`nvidia-smi -L` shows what it sees)");
  if (Result<void> fine = check_unit(*cards, options_.unit_mib); !fine) return fine;
  std::string refused;
  for (const CardInfo& card : *cards) {
    Result<void> served = serve_card(card);
    if (!served) return served;
    if (!units_.back()->lock.valid())
      refused += fmt::format("{}{}", refused.empty() ? "" : "; ", units_.back()->held_by);
  }
  const bool any = std::any_of(units_.begin(), units_.end(), [](const auto& unit) { return unit->lock.valid(); });
  if (!any && !units_.empty()) return Error{ErrorCode::kExists, refused};
  take_over_grants();
  remove_leftovers();
  return {};
}

void Node::take_over_grants() {
  for (const std::string& name : names_in(records_path_)) {
    if (name.size() != 21 || name.substr(16) != ".json") continue;
    const std::string path = records_path_ + "/" + name;
    Result<std::string> text = read_file(path, kMaxRecordBytes);
    Result<json::Value> value = text ? json::parse(*text) : Result<json::Value>(std::move(text.error()));
    Result<GrantRecord> record = value && value->is_object() ? GrantRecord::from_json(value->get_object())
                                                             : Result<GrantRecord>(value ? invalid("expected an object")
                                                                                         : std::move(value.error()));
    if (!record) {
      event("grant-lost",
            fmt::format("the record {} cannot be understood and is set aside: {}", path, record.error().message));
      ::rename(path.c_str(), (path + ".bad").c_str());
      continue;
    }
    take_over(std::move(*record));
  }
}

void Node::take_over(GrantRecord record) {
  auto grant = std::make_unique<Grant>();
  const std::string id = grant_id_text(record.id);
  core::Placement placement;
  for (const RecordShare& share : record.shares) {
    GrantCard card;
    card.unit = unit_by_uuid(share.card_uuid);
    if (card.unit == nullptr || !card.unit->lock.valid()) {
      event("grant-lost", fmt::format("grant '{}' ({}) waits: its card {} is not there or not ours", record.name, id,
                                      share.card_uuid));
      waiting_records_.push_back(std::move(record));
      return;
    }
    card.share = {card.unit->info.index, share.units, share.memory_mib, share.core_milli};
    placement.shares.push_back(card.share);
    grant->cards.push_back(std::move(card));
  }
  PageSpec spec{record.id, record.name, static_cast<uint32_t>(record.shares.size()),
                static_cast<uid_t>(record.owner_uid)};
  Result<std::shared_ptr<GrantPages>> pages =
      GrantPages::reopen(grants_directory_.get(), grants_path_, spec, record.page, record.usage);
  if (pages) {
    grant->pages = std::move(*pages);
  } else if (pages.error().code == ErrorCode::kNotFound) {
    event("grant-lost", fmt::format("grant '{}' ({}): its pages are gone: {}", record.name, id, pages.error().message));
    ::unlink(fmt::format("{}/{}.json", records_path_, id).c_str());
    return;
  } else {
    event("grant-lost",
          fmt::format("grant '{}' ({}) is not taken over, its share stays taken until its programs end: {}",
                      record.name, id, pages.error().message));
  }
  Result<void> taken = core::take(core_, placement);
  if (!taken) {
    event("grant-lost",
          fmt::format("grant '{}' ({}) does not fit any more: {}", record.name, id, taken.error().message));
    return;
  }
  const Peer self{::getpid(), static_cast<int64_t>(::geteuid())};
  std::vector<ProcessId> alive;
  for (const ProcessId& process : record.holders) {
    Result<Holder> holder = make_holder(self, process.pid);
    if (!holder || !(holder->process == process)) continue;  // gone, or another process under its number
    alive.push_back(process);
    grant->holders.push_back(std::move(*holder));
  }
  record.holders = std::move(alive);
  grant->record = std::move(record);
  grant->taken_over = true;
  grant->sequence = ++grants_made_;
  Grant& kept = *(grants_[grant->record.id] = std::move(grant));
  if (kept.pages) {
    for (GrantCard& card : kept.cards) apply_policy(*card.unit);
    fill_page(kept);
    join_keepers(kept);
  }
  log::info("grant taken over", {{"grant", id}, {"name", kept.record.name}, {"holders", kept.holders.size()}});
}

// Directories without a record: an agent was killed between the two.
void Node::remove_leftovers() {
  for (const std::string& name : names_in(grants_path_)) {
    Result<uint64_t> id = parse_grant_id(name);
    if (!id || grants_.contains(*id)) continue;
    const bool waits = std::any_of(waiting_records_.begin(), waiting_records_.end(),
                                   [&](const GrantRecord& record) { return record.id == *id; });
    if (!waits) GrantPages::remove(grants_directory_.get(), grants_path_, *id);
  }
}

void Node::load_policies() {
  Result<std::string> text = read_file(options_.run_directory + "/policies.json", kMaxRecordBytes);
  if (!text) return;
  Result<json::Value> value = json::parse(*text);
  if (!value || !value->is_object()) {
    log::warning("policies.json cannot be understood and is not used");
    return;
  }
  for (const auto& [uuid, policy] : value->get_object()) {
    if (policy.is_int64() && policy.get_int64() >= 0 && policy.get_int64() <= page::kPolicyNative) {
      saved_policies_[std::string(uuid)] = static_cast<uint32_t>(policy.get_int64());
    }
  }
}

Result<void> Node::save_policies() {
  json::Object object;
  for (const auto& [uuid, policy] : saved_policies_) object[uuid] = policy;
  return write_file_atomic(options_.run_directory + "/policies.json", json::to_pretty_string(object), 0600);
}

std::vector<std::string> Node::cards_found(const std::vector<CardInfo>& found) {
  std::lock_guard guard(mutex_);
  std::vector<std::string> fresh;
  for (const CardInfo& info : found) {
    CardUnit* unit = unit_by_uuid(info.uuid);
    if (unit == nullptr) {
      Result<void> served = serve_card(info);
      if (!served) {
        log::warning("a card cannot be served", {{"reason", served.error().message}});
        continue;
      }
      event("card-back", fmt::format("card {} ({}) is new", units_.back()->info.index, info.uuid));
      if (units_.back()->lock.valid()) fresh.push_back(info.uuid);
      continue;
    }
    if (!unit->lock.valid()) {
      Result<Fd> lock = lock_card(options_.card_lock_directory, info.uuid, options_.run_directory);
      if (!lock) continue;
      unit->lock = std::move(*lock);
      unit->host = hosts_();
      unit->keeper = std::make_unique<TurnKeeper>(*unit->host);
      unit->keeper_thread = std::thread([keeper = unit->keeper.get()] { keeper->run(); });
      apply_policy(*unit);
      fresh.push_back(info.uuid);
    } else if (!unit->lost) {
      continue;
    }
    const bool was_lost = unit->lost;
    unit->lost = false;
    for (core::Card& card : core_.cards) {
      if (card.index == unit->info.index) card.healthy = true;
    }
    if (was_lost) event("card-back", fmt::format("card {} ({}) is back", unit->info.index, info.uuid));
  }
  if (!fresh.empty()) {
    std::vector<GrantRecord> waiting = std::move(waiting_records_);
    waiting_records_.clear();
    for (GrantRecord& record : waiting) take_over(std::move(record));
  }
  return fresh;
}

}  // namespace sluice::agent
