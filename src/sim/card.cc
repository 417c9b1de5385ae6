// Opening, locking, the journal, and the tables' free lists.
#include "sim/card.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sluice::sim {

namespace {

constexpr off_t kLockerByte = off_t{1} << 40;  // far behind any content: these bytes exist only as locks
constexpr int kSpins = 200;
constexpr int kYields = 200;
constexpr long kLockNapNs = 50000;
constexpr int kNapsBeforeCheck = 40;  // some 4 ms: no transaction takes as long

size_t align_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

struct JournalEntry {
  uint64_t offset;
  uint64_t bytes;
};

Error system_error(const std::string& what, const std::string& path) {
  const int code = errno;
  const std::string text = what + " " + path + ": " + std::strerror(code);
  if (code == EACCES || code == EPERM) return permission(text);
  if (code == ENOENT) return not_found(text);
  return internal(text);
}

}  // namespace

Layout layout() {
  Layout l{};
  size_t at = align_up(sizeof(CardFile), 4096);
  const auto place = [&at](size_t record, size_t count) {
    const size_t start = at;
    at = align_up(at + record * (count + 1), 4096);
    return start;
  };
  l.journal = place(1, kJournalBytes);
  l.processes = place(sizeof(ProcessRecord), kMaxProcesses);
  l.contexts = place(sizeof(ContextRecord), kMaxContexts);
  l.streams = place(sizeof(StreamRecord), kMaxStreams);
  l.events = place(sizeof(EventRecord), kMaxEvents);
  l.commands = place(sizeof(CommandRecord), kMaxCommands);
  l.blocks = place(sizeof(BlockRecord), kMaxBlocks);
  l.cells = place(sizeof(CellRecord), kMaxCells);
  l.subjects = place(sizeof(SubjectRecord), kMaxSubjects);
  l.chunks = place(sizeof(BinChunk), kMaxBinChunks);
  l.memory_points = place(sizeof(MemoryPoint), kMaxMemoryPoints);
  l.switch_points = place(sizeof(SwitchPoint), kMaxSwitches);
  l.command_points = place(sizeof(CommandPoint), kMaxCommandPoints);
  l.total = at;
  return l;
}

// A statically linked program that loads this library brings a second C library, which never got an environment; the
// kernel's copy is as the program was started.
static std::string folder_from_kernel() {
  constexpr std::string_view kName = "SLUICE_SIM_DIR=";
  FILE* file = std::fopen("/proc/self/environ", "re");
  if (file == nullptr) return "";
  std::string all;
  char part[4096];
  for (size_t got; (got = std::fread(part, 1, sizeof part, file)) != 0;) all.append(part, got);
  std::fclose(file);
  for (size_t at = 0; at < all.size(); at = all.find('\0', at) + 1) {
    const std::string entry = all.c_str() + at;
    if (entry.starts_with(kName)) return entry.substr(kName.size());
    if (all.find('\0', at) == std::string::npos) break;
  }
  return "";
}

std::string card_folder() {
  const char* variable = std::getenv("SLUICE_SIM_DIR");
  const std::string folder = environ == nullptr ? folder_from_kernel() : variable != nullptr ? variable : "";
  if (!folder.empty()) return folder;
  if (FILE* file = std::fopen("/etc/sluice-sim/dir", "re")) {
    char line[512] = {};
    const bool read = std::fgets(line, sizeof line, file) != nullptr;
    std::fclose(file);
    line[std::strcspn(line, "\r\n")] = '\0';
    if (read && line[0] == '/') return line;
  }
  return "/var/lib/sluice-sim";
}

std::vector<std::string> Card::list(const std::string& folder) {
  std::vector<std::pair<long, std::string>> found;
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return {};
  while (const dirent* entry = readdir(directory)) {
    if (std::strncmp(entry->d_name, "card", 4) != 0) continue;
    char* end = nullptr;
    const long number = std::strtol(entry->d_name + 4, &end, 10);
    if (end != entry->d_name + 4 && *end == '\0') found.emplace_back(number, folder + "/" + entry->d_name);
  }
  closedir(directory);
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [number, path] : found) paths.push_back(path);
  return paths;
}

Result<std::unique_ptr<Card>> Card::open(const std::string& path) {
  std::unique_ptr<Card> card(new Card());
  card->path_ = path;
  card->layout_ = layout();
  card->fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (card->fd_ < 0) return system_error("cannot open the simulated card", path);
  struct stat status{};
  if (fstat(card->fd_, &status) != 0) return system_error("cannot look at", path);
  if (static_cast<size_t>(status.st_size) != card->layout_.total) {
    return invalid(path + " is " + std::to_string(status.st_size) + " bytes, a card of this version is " +
                   std::to_string(card->layout_.total) + "; remove it and make it anew with sluice-sim create");
  }
  void* mapped = mmap(nullptr, card->layout_.total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, card->fd_, 0);
  if (mapped == MAP_FAILED) return system_error("cannot map", path);
  card->file_ = static_cast<CardFile*>(mapped);
  if (card->file_->magic != kMagic || card->file_->version != kLayoutVersion) {
    return invalid(path +
                   " is not a simulated card of this version; remove it and make it anew with sluice-sim create");
  }
  if (auto claimed = card->claim_locker(); !claimed) return std::move(claimed.error());
  return card;
}

Card::~Card() {
  if (lock_fd_ >= 0) close(lock_fd_);
  if (fd_ >= 0) close(fd_);
  if (file_ != nullptr) munmap(file_, layout_.total);
}

// Takes the first free kernel lock. Its number and a fresh nonce name this user in the lock word.
Result<void> Card::claim_locker() {
  lock_fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (lock_fd_ < 0) return system_error("cannot open", path_);
  for (uint32_t number = 1; number < kMaxLockers; ++number) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = kLockerByte + number;
    lock.l_len = 1;
    if (fcntl(lock_fd_, F_OFD_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) continue;
      return system_error("cannot lock", path_);
    }
    const uint32_t nonce = std::atomic_ref<uint32_t>(file_->nonces).fetch_add(1) + 1;
    std::atomic_ref<uint32_t>(file_->locker_nonce[number]).store(nonce);
    locker_ = number;
    owner_word_ = uint64_t{nonce} << 32 | number;
    return {};
  }
  return exhausted(path_ + " is in use by " + std::to_string(kMaxLockers) + " processes already");
}

bool Card::locker_alive(uint32_t number, uint32_t nonce) {
  if (number == 0 || number >= kMaxLockers) return false;
  if (std::atomic_ref<uint32_t>(file_->locker_nonce[number]).load() != nonce) return false;
  if (number == locker_) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLockerByte + number;
  lock.l_len = 1;
  if (fcntl(lock_fd_, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

void Card::after_fork_in_child() {
  if (lock_fd_ >= 0) close(lock_fd_);
  lock_fd_ = -1;
}

void Card::lock() {
  std::atomic_ref<uint64_t> word(file_->lock);
  uint64_t expected = 0;
  if (!word.compare_exchange_strong(expected, owner_word_, std::memory_order_acquire)) wait_for_lock();
  if (file_->journal_bytes != 0) [[unlikely]]
    roll_back();
}

void Card::wait_for_lock() {
  std::atomic_ref<uint64_t> word(file_->lock);
  uint64_t suspect = 0;
  int naps = 0;
  for (int round = 0;; ++round) {
    uint64_t seen = 0;
    if (word.compare_exchange_weak(seen, owner_word_, std::memory_order_acquire)) return;
    if (round < kSpins) {
      __builtin_ia32_pause();
      continue;
    }
    if (round < kSpins + kYields) {
      sched_yield();
      continue;
    }
    const timespec nap{0, kLockNapNs};
    nanosleep(&nap, nullptr);
    if (seen != suspect) {
      suspect = seen;
      naps = 0;
    }
    if (seen == 0 || ++naps < kNapsBeforeCheck) continue;
    naps = 0;
    if (seen == owner_word_ || locker_alive(static_cast<uint32_t>(seen), static_cast<uint32_t>(seen >> 32))) continue;
    // The owner died. Only one waiter can change its word, and the dead owner's word never comes back.
    if (word.compare_exchange_strong(seen, owner_word_, std::memory_order_acquire)) return;
  }
}

void Card::unlock() {
  commit();
  std::atomic_ref<uint64_t>(file_->lock).store(0, std::memory_order_release);
}

void Card::commit() {
  // The number first: killed in between, this transaction is rolled back. The other way round its number would be used
  // twice, and what both touch would not be journalled the second time.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  ++file_->journal_txn;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic_ref<uint64_t>(file_->journal_bytes).store(0, std::memory_order_release);
}

void Card::journal(const void* where, size_t bytes) {
  const size_t size = sizeof(JournalEntry) + align_up(bytes, 8);
  const uint64_t used = file_->journal_bytes;
  if (used + size > kJournalBytes) {
    static const char text[] = "sluice-sim: a transaction outgrew the journal\n";
    [[maybe_unused]] const ssize_t written = write(2, text, sizeof text - 1);
    std::abort();
  }
  char* at = reinterpret_cast<char*>(file_) + layout_.journal + used;
  JournalEntry entry{static_cast<uint64_t>(static_cast<const char*>(where) - reinterpret_cast<char*>(file_)), bytes};
  // The entry's size stands behind its data, so that the journal can be read backwards.
  std::memcpy(at, where, bytes);
  std::memcpy(at + align_up(bytes, 8), &entry, sizeof entry);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::atomic_ref<uint64_t>(file_->journal_bytes).store(used + size, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Newest entry first, so that the oldest copy of each byte is the one that stays. Being killed in here is harmless:
// the journal still stands and the next owner does it again.
void Card::roll_back() {
  uint64_t used = file_->journal_bytes;
  char* base = reinterpret_cast<char*>(file_);
  while (used != 0) {
    JournalEntry entry{};
    std::memcpy(&entry, base + layout_.journal + used - sizeof entry, sizeof entry);
    const uint64_t size = sizeof entry + align_up(entry.bytes, 8);
    std::memcpy(base + entry.offset, base + layout_.journal + used - size, entry.bytes);
    used -= size;
  }
  commit();
  ++edit_header().repairs;
  commit();
}

template <typename T>
Index Card::allocate(size_t offset, TableHead Tables::* head, Index limit) {
  TableHead& h = edit_header().tables.*head;
  Index index = h.free_head;
  if (index != kNone) {
    T& old = edit(table<T>(offset)[index]);
    h.free_head = old.next_free;
  } else {
    if (h.high >= limit) return kNone;
    index = ++h.high;
    edit(table<T>(offset)[index]);
  }
  T& record = table<T>(offset)[index];
  const uint64_t txn = record.txn;
  std::memset(static_cast<void*>(&record), 0, sizeof record);
  record.txn = txn;
  ++h.live;
  return index;
}

template <typename T>
void Card::release(size_t offset, TableHead Tables::* head, Index index) {
  TableHead& h = edit_header().tables.*head;
  T& record = edit(table<T>(offset)[index]);
  record.next_free = h.free_head;
  h.free_head = index;
  --h.live;
}

#define SLUICE_TABLE(function, Record, member, limit, kFreeState, kLiveState) \
  Index Card::new_##function() {                                              \
    const Index i = allocate<Record>(layout_.member, &Tables::member, limit); \
    if (i == kNone) return i;                                                 \
    table<Record>(layout_.member)[i].state = kLiveState;                      \
    table<Record>(layout_.member)[i].serial = ++edit_header().next_serial;    \
    return i;                                                                 \
  }                                                                           \
  void Card::free_##function(Index i) {                                       \
    release<Record>(layout_.member, &Tables::member, i);                      \
    table<Record>(layout_.member)[i].state = kFreeState;                      \
  }
SLUICE_TABLE(process, ProcessRecord, processes, kMaxProcesses, LiveState::kFree, LiveState::kLive)
SLUICE_TABLE(context, ContextRecord, contexts, kMaxContexts, LiveState::kFree, LiveState::kLive)
SLUICE_TABLE(stream, StreamRecord, streams, kMaxStreams, LiveState::kFree, LiveState::kLive)
SLUICE_TABLE(event, EventRecord, events, kMaxEvents, LiveState::kFree, LiveState::kLive)
SLUICE_TABLE(command, CommandRecord, commands, kMaxCommands, CommandState::kFree, CommandState::kQueued)
SLUICE_TABLE(block, BlockRecord, blocks, kMaxBlocks, LiveState::kFree, LiveState::kLive)
SLUICE_TABLE(cell, CellRecord, cells, kMaxCells, LiveState::kFree, LiveState::kLive)
#undef SLUICE_TABLE

uint64_t Card::card_time(uint64_t host_ns) const {
  const CardHeader& h = file_->header;
  const uint64_t time = host_ns > h.epoch_ns ? host_ns - h.epoch_ns : 0;
  return std::max(time, h.now_ns);
}

std::string Card::contents_path(uint32_t process_serial) const {
  return path_ + ".contents/" + std::to_string(process_serial);
}

const Fault* Card::fault(std::string_view symbol, int32_t pid, FaultKind kind) {
  for (uint32_t i = 0; i < file_->fault_count && i < kMaxFaults; ++i) {
    Fault& f = file_->faults[i];
    if (f.kind != kind || f.remaining == 0 || (f.pid != 0 && f.pid != pid)) continue;
    if (symbol != f.symbol && std::strcmp(f.symbol, "*") != 0) continue;
    if (f.remaining > 0) --f.remaining;
    return &f;
  }
  return nullptr;
}

}  // namespace sluice::sim
