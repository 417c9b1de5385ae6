#include "agent/grant_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>

#include "base/log.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kPageSize = 4096;
constexpr char kUsageDirectory[] = "usage.d";

uint64_t round_up(uint64_t bytes) {
  return (bytes + kPageSize - 1) / kPageSize * kPageSize;
}

// The name's directory gives nobody else a way in but root and the owner: mode 0700, and an access list entry for an
// owner who is not this process's user. (Handing the directory over would let its owner rename or fill it.)
Result<void> admit_owner(int fd, const std::string& path, uid_t owner) {
  if (owner == ::geteuid()) return {};
  struct Entry {
    uint16_t tag, permissions;
    uint32_t id;
  };
  struct AccessList {
    uint32_t version;
    std::array<Entry, 5> entries;
  };
  constexpr uint32_t kNobody = 0xffffffff;
  // Format of system.posix_acl_access: linux/posix_acl_xattr.h; tags in ascending order.
  AccessList list{2,
                  {{{0x01, 7, kNobody}, {0x02, 5, owner}, {0x04, 0, kNobody}, {0x10, 5, kNobody}, {0x20, 0, kNobody}}}};
  if (::fsetxattr(fd, "system.posix_acl_access", &list, sizeof(list), 0) == 0) return {};
  if (errno == EOPNOTSUPP) {
    return unavailable(
        fmt::format("{} is on a file system without access lists, which a grant for another user needs; "
                    "use a run directory on tmpfs, ext4 or xfs",
                    path));
  }
  return errno_error("cannot set the access list of", path, errno);
}

Result<FileIdentity> identity_of(int fd, const std::string& path, uint64_t expected_bytes) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno_error("cannot look at", path, errno);
  if (!S_ISREG(status.st_mode)) return invalid(fmt::format("{} is no regular file", path));
  if (expected_bytes != 0 && static_cast<uint64_t>(status.st_size) != expected_bytes) {
    return invalid(fmt::format("{} has {} bytes, expected {}", path, status.st_size, expected_bytes));
  }
  return FileIdentity{status.st_dev, status.st_ino};
}

// A new file of fixed size with all its space taken.
Result<Fd> make_file(int directory, const char* name, const std::string& path, uint64_t bytes, mode_t mode) {
  Fd fd(::openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_error("cannot create", path, errno);
  if (int reason = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); reason != 0) {
    return errno_error(fmt::format("cannot take {} KiB for", bytes / 1024), path, reason);
  }
  if (::fchmod(fd.get(), mode) != 0) return errno_error("cannot set the mode of", path, errno);
  return fd;
}

Result<Fd> open_beneath(int directory, const std::string& name, const std::string& path, uint64_t flags) {
  open_how how{};
  how.flags = flags | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  Fd fd(static_cast<int>(::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof(how))));
  if (!fd.valid()) return errno_error("cannot open", path + "/" + name, errno);
  return fd;
}

Result<Fd> make_directory(int parent, const std::string& name, const std::string& path, mode_t mode) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0) return errno_error("cannot create directory", path, errno);
  Fd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open", path, errno);
  if (::fchmod(fd.get(), mode) != 0) return errno_error("cannot set the mode of", path, errno);
  return fd;
}

bool mount_own_tmpfs(const std::string& path, uint64_t bytes) {
  std::string options = fmt::format("size={},nr_inodes=2,mode=0755", round_up(bytes));
  return ::mount("sluice-usage", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options.c_str()) == 0;
}

void write_usage_header(int fd, const PageSpec& spec) {
  page::UsageHeader header{};
  header.magic = page::kUsageMagic;
  header.major = page::kMajor;
  header.minor = page::kMinor;
  header.bytes = page::usage_bytes(spec.card_count);
  header.card_count = spec.card_count;
  header.grant_id = spec.grant_id;
  if (::pwrite(fd, &header, sizeof(header), 0) != sizeof(header)) log::error("cannot write a usage header");
}

}  // namespace

std::string grant_id_text(uint64_t id) {
  return fmt::format("{:016x}", id);
}

Result<uint64_t> parse_grant_id(const std::string& text) {
  uint64_t id = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  if (text.size() != 16 || code != std::errc() || end != text.data() + text.size()) {
    return invalid(fmt::format("'{}' is no grant id; expected 16 hex digits", text.substr(0, 64)));
  }
  return id;
}

GrantPages::~GrantPages() {
  if (page_ != nullptr) ::munmap(page_, page::grant_bytes(card_count_));
  if (usage_map_ != nullptr) ::munmap(usage_map_, page::usage_bytes(card_count_));
}

Result<void> GrantPages::map(uint32_t card_count) {
  card_count_ = card_count;
  void* page = ::mmap(nullptr, page::grant_bytes(card_count), PROT_READ | PROT_WRITE, MAP_SHARED, page_fd_.get(), 0);
  if (page == MAP_FAILED) return errno_error("cannot map", "the grant page", errno);
  page_ = page;
  void* usage = ::mmap(nullptr, page::usage_bytes(card_count), PROT_READ, MAP_SHARED, usage_fd_.get(), 0);
  if (usage == MAP_FAILED) return errno_error("cannot map", "the usage file", errno);
  usage_map_ = usage;
  return {};
}

Result<std::shared_ptr<GrantPages>> GrantPages::create(int directory, const std::string& path, const PageSpec& spec) {
  const std::string id = grant_id_text(spec.grant_id);
  const std::string base = path + "/" + id;
  auto attempt = [&]() -> Result<std::shared_ptr<GrantPages>> {
    // Passable for a runtime that mounts as a user of its own (user namespaces); what lies inside is for reading, and
    // the usage file is only found by who knows the number.
    Result<Fd> top = make_directory(directory, id, base, spec.container ? 0711 : 0700);
    if (!top) return std::move(top.error());
    Result<void> admitted = admit_owner(top->get(), base, spec.owner_uid);
    if (!admitted) return std::move(admitted.error());
    Result<Fd> grant = make_directory(top->get(), "grant", base + "/grant", 0755);
    if (!grant) return std::move(grant.error());
    Result<Fd> usage = make_directory(top->get(), kUsageDirectory, base + "/" + kUsageDirectory, 0755);
    if (!usage) return std::move(usage.error());

    std::shared_ptr<GrantPages> pages(new GrantPages());
    const uint64_t usage_bytes = page::usage_bytes(spec.card_count);
    pages->own_file_system_ =
        ::geteuid() == 0 && mount_own_tmpfs(fmt::format("{}/{}", base, kUsageDirectory), usage_bytes);
    if (pages->own_file_system_) {  // the descriptor from before lies below the mount
      usage = Fd(::openat(top->get(), kUsageDirectory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!usage->valid()) return errno_error("cannot open", base + "/" + kUsageDirectory, errno);
    }
    Result<Fd> usage_file =
        make_file(usage->get(), "usage", base + "/" + kUsageDirectory + "/usage", usage_bytes, 0666);
    if (!usage_file) return std::move(usage_file.error());
    Result<Fd> page_file =
        make_file(grant->get(), "page", base + "/grant/page", page::grant_bytes(spec.card_count), 0644);
    if (!page_file) return std::move(page_file.error());
    pages->usage_fd_ = std::move(*usage_file);
    pages->page_fd_ = std::move(*page_file);
    Result<FileIdentity> page_identity = identity_of(pages->page_fd_.get(), base, 0);
    Result<FileIdentity> usage_identity = identity_of(pages->usage_fd_.get(), base, 0);
    if (!page_identity || !usage_identity) return internal(fmt::format("cannot look at the files of {}", base));
    pages->page_identity_ = *page_identity;
    pages->usage_identity_ = *usage_identity;
    Result<void> mapped = pages->map(spec.card_count);
    if (!mapped) return std::move(mapped.error());
    write_usage_header(pages->usage_fd_.get(), spec);
    page::GrantHeader& header = pages->header();
    header.major = page::kMajor;
    header.minor = page::kMinor;
    header.bytes = page::grant_bytes(spec.card_count);
    header.card_count = spec.card_count;
    header.grant_id = spec.grant_id;
    spec.name.copy(header.container, sizeof(header.container) - 1);
    std::atomic_ref<uint64_t>(header.magic).store(page::kGrantMagic, std::memory_order_release);
    return pages;
  };
  Result<std::shared_ptr<GrantPages>> pages = attempt();
  if (!pages && pages.error().code != ErrorCode::kExists) remove(directory, path, spec.grant_id);
  return pages;
}

Result<std::shared_ptr<GrantPages>> GrantPages::reopen(int directory, const std::string& path, const PageSpec& spec,
                                                       const FileIdentity& page, const FileIdentity& usage) {
  const std::string id = grant_id_text(spec.grant_id);
  std::shared_ptr<GrantPages> pages(new GrantPages());
  Result<Fd> page_file = open_beneath(directory, id + "/grant/page", path, O_RDWR);
  if (!page_file) return std::move(page_file.error());
  Result<Fd> usage_file = open_beneath(directory, fmt::format("{}/{}/usage", id, kUsageDirectory), path, O_RDWR);
  if (!usage_file) return std::move(usage_file.error());
  Result<FileIdentity> page_identity =
      identity_of(page_file->get(), fmt::format("{}/{}/grant/page", path, id), page::grant_bytes(spec.card_count));
  if (!page_identity) return std::move(page_identity.error());
  // A tenant may have changed the usage file's size; that is mended later and no reason to let go of the grant.
  Result<FileIdentity> usage_identity = identity_of(usage_file->get(), fmt::format("{}/{}/usage", path, id), 0);
  if (!usage_identity) return std::move(usage_identity.error());
  if (!(*page_identity == page) || !(*usage_identity == usage)) {
    return invalid(fmt::format("{}/{}: the files were exchanged (another inode than recorded)", path, id));
  }
  pages->page_fd_ = std::move(*page_file);
  pages->usage_fd_ = std::move(*usage_file);
  pages->page_identity_ = page;
  pages->usage_identity_ = usage;
  struct stat outside{};
  pages->own_file_system_ = ::fstat(directory, &outside) == 0 && outside.st_dev != usage.device;
  Result<void> mapped = pages->map(spec.card_count);
  if (!mapped) return std::move(mapped.error());
  const page::GrantHeader& header = pages->header();
  if (header.magic != page::kGrantMagic || header.major != page::kMajor) {
    return invalid(fmt::format("{}/{}: page of layout {}.{}, this agent writes {}.x", path, id, header.major,
                               header.minor, page::kMajor));
  }
  if (header.grant_id != spec.grant_id || header.card_count != spec.card_count) {
    return invalid(fmt::format("{}/{}: the page belongs to another grant", path, id));
  }
  return pages;
}

void GrantPages::close_for_new_programs() {
  std::atomic_ref<uint64_t>(header().magic).store(0, std::memory_order_release);
}

void GrantPages::remove(int directory, const std::string& path, uint64_t grant_id) {
  const std::string id = grant_id_text(grant_id);
  // unlinkat alone does not follow links in the last part; the parts before it are directories that only we can write.
  ::unlinkat(directory, (id + "/grant/page").c_str(), 0);
  ::unlinkat(directory, (id + "/grant").c_str(), AT_REMOVEDIR);
  ::umount2(fmt::format("{}/{}/{}", path, id, kUsageDirectory).c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  ::unlinkat(directory, fmt::format("{}/{}/usage", id, kUsageDirectory).c_str(), 0);
  ::unlinkat(directory, fmt::format("{}/{}", id, kUsageDirectory).c_str(), AT_REMOVEDIR);
  if (::unlinkat(directory, id.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    log::warning("cannot remove a grant's directory", {{"path", path + "/" + id}, {"errno", errno}});
  }
}

bool GrantPages::usage_intact() const {
  struct stat status{};
  return ::fstat(usage_fd_.get(), &status) == 0 &&
         static_cast<uint64_t>(status.st_size) == page::usage_bytes(card_count_);
}

void GrantPages::mend_usage() {
  const off_t bytes = static_cast<off_t>(page::usage_bytes(card_count_));
  if (::ftruncate(usage_fd_.get(), bytes) != 0 || ::posix_fallocate(usage_fd_.get(), 0, bytes) != 0) {
    log::warning("cannot mend a usage file", {{"grant", grant_id_text(header().grant_id)}, {"errno", errno}});
    return;
  }
  write_usage_header(usage_fd_.get(), {header().grant_id, "", card_count_, 0});
}

bool GrantPages::read(uint64_t offset, void* into, size_t bytes) {
  char* to = static_cast<char*>(into);
  while (bytes > 0) {
    ssize_t got = ::pread(usage_fd_.get(), to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

const volatile uint32_t* GrantPages::futex_word(uint64_t offset) {
  if (offset % alignof(uint32_t) != 0 || offset + sizeof(uint32_t) > page::usage_bytes(card_count_)) return nullptr;
  return reinterpret_cast<const volatile uint32_t*>(static_cast<const char*>(usage_map_) + offset);
}

bool GrantPages::slot_owned(uint32_t card, uint32_t slot) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(page::slot_lock_byte(card, slot));
  lock.l_len = 1;
  // An error (no locks on this file system) reads as owned: nothing is taken away from a process by mistake.
  return ::fcntl(usage_fd_.get(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::vector<SlotOwner> GrantPages::slot_owners(uint32_t card) {
  std::vector<SlotOwner> owners;
  const uint64_t first = page::slot_lock_byte(card, 0);
  const uint64_t end = first + page::kMaxProcesses;
  for (uint64_t at = first; at < end;) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(at);
    lock.l_len = static_cast<off_t>(end - at);
    if (::fcntl(usage_fd_.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) break;
    // A tenant may lock any range; what it covers of ours counts, and each round moves on by at least one byte. The
    // kernel names some lock in the range, not always the first: step byte by byte up to a lock that starts later.
    uint64_t from = std::max<uint64_t>(static_cast<uint64_t>(lock.l_start), at);
    uint64_t to = lock.l_len == 0 ? end : std::min<uint64_t>(static_cast<uint64_t>(lock.l_start + lock.l_len), end);
    if (from > at) {
      for (uint64_t byte = at; byte < from; ++byte) {
        struct flock single{};
        single.l_type = F_WRLCK;
        single.l_whence = SEEK_SET;
        single.l_start = static_cast<off_t>(byte);
        single.l_len = 1;
        if (::fcntl(usage_fd_.get(), F_GETLK, &single) == 0 && single.l_type != F_UNLCK) {
          owners.push_back({static_cast<uint32_t>(byte - first), std::max<int64_t>(single.l_pid, 0)});
        }
      }
    }
    for (uint64_t byte = from; byte < to; ++byte) {
      owners.push_back({static_cast<uint32_t>(byte - first), std::max<int64_t>(lock.l_pid, 0)});
    }
    at = std::max(to, at + 1);
  }
  return owners;
}

std::array<uint64_t, page::kMaxProcesses> GrantPages::tallies(uint32_t card) {
  std::array<uint64_t, page::kMaxProcesses> bytes{};
  const auto ask = [&](uint64_t start, uint64_t end, page::LockedRange& found) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(start);
    lock.l_len = static_cast<off_t>(end - start);
    if (::fcntl(usage_fd_.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return false;
    found.start = static_cast<uint64_t>(lock.l_start);
    found.end = lock.l_len == 0 ? ~uint64_t{0} : static_cast<uint64_t>(lock.l_start + lock.l_len);
    return true;
  };
  page::each_tally(card, ask, [&](uint32_t slot, uint64_t units) { bytes[slot] = units * page::kTallyUnitBytes; });
  return bytes;
}

void GrantPages::clear_slot(uint32_t card, uint32_t slot) {
  const uint64_t offset = sizeof(page::UsageHeader) + card * sizeof(page::UsageCard) +
                          offsetof(page::UsageCard, slots) + slot * sizeof(page::Slot);
  const std::array<char, sizeof(page::Slot)> zero{};
  // State first, bytes last: claimers leave a slot with bytes alone whatever its state, so nobody can claim it between
  // the two writes and find itself freed by the second.
  constexpr size_t kAfterState = offsetof(page::Slot, contexts);
  ssize_t freed = ::pwrite(usage_fd_.get(), zero.data(), kAfterState, static_cast<off_t>(offset));
  ssize_t put = ::pwrite(usage_fd_.get(), zero.data(), sizeof(page::Slot) - kAfterState,
                         static_cast<off_t>(offset + kAfterState));
  if (put < 0 || freed < 0) log::warning("cannot clear a dead slot", {{"slot", slot}, {"errno", errno}});
}

}  // namespace sluice::agent
