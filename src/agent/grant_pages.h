// The two files of one grant as the agent holds them: the grant page, mapped and written in place, and the usage file,
// which is hostile: read by pread through the descriptor that was opened at the start, its mapping only an address for
// futex waits. Nothing here trusts a path twice: reopening goes through openat2 without links and compares inodes.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/turn_keeper.h"
#include "base/files.h"
#include "base/result.h"
#include "page/grant.h"
#include "page/tally.h"
#include "page/usage.h"

namespace sluice::agent {

struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

struct SlotOwner {
  uint32_t slot = 0;
  int64_t pid = 0;  // 0: a process that this agent cannot see
  bool operator==(const SlotOwner&) const = default;
};

struct PageSpec {
  uint64_t grant_id = 0;
  std::string name;
  uint32_t card_count = 1;
  uid_t owner_uid = 0;
  bool container =
      false;  // for a container runtime, which may enter as whatever user: the directory is passable by all
};

class GrantPages final : public UsageView {
 public:
  ~GrantPages() override;
  GrantPages(const GrantPages&) = delete;
  GrantPages& operator=(const GrantPages&) = delete;

  // Makes directory/<id>/grant/page and directory/<id>/usage.d/usage, the latter on a tmpfs of its own (one inode,
  // fixed size) where this process may mount. All space is taken now: a full file system fails here and not under a
  // program. On an error nothing stays behind. `directory` is an open directory, `path` its name for messages.
  static Result<std::shared_ptr<GrantPages>> create(int directory, const std::string& path, const PageSpec& spec);

  // Opens them again. kNotFound: gone. kInvalid: not what the record says (another inode, size, number or version).
  static Result<std::shared_ptr<GrantPages>> reopen(int directory, const std::string& path, const PageSpec& spec,
                                                    const FileIdentity& page, const FileIdentity& usage);

  // Closes the grant for programs that start later: their guests find no valid page.
  void close_for_new_programs();
  // Removes the files and the mount. Programs that still have them mounted keep them.
  static void remove(int directory, const std::string& path, uint64_t grant_id);

  page::GrantHeader& header() { return *reinterpret_cast<page::GrantHeader*>(page_); }
  page::GrantCard& card(uint32_t index) {
    return reinterpret_cast<page::GrantCard*>(static_cast<char*>(page_) + sizeof(page::GrantHeader))[index];
  }
  uint32_t card_count() const { return card_count_; }
  const FileIdentity& page_identity() const { return page_identity_; }
  const FileIdentity& usage_identity() const { return usage_identity_; }

  // True while the usage file has the size it was made with; a tenant can change it.
  bool usage_intact() const;
  // Gives it back its size (the content of what was cut off is zero).
  void mend_usage();

  // UsageView.
  bool read(uint64_t offset, void* into, size_t bytes) override;
  const volatile uint32_t* futex_word(uint64_t offset) override;
  bool slot_owned(uint32_t card, uint32_t slot) override;

  // Every slot of the card whose lock is held, by the kernel's word, whatever the page says.
  std::vector<SlotOwner> slot_owners(uint32_t card);
  // Bytes that the tallies (page/tally.h) say of each slot of the card.
  std::array<uint64_t, page::kMaxProcesses> tallies(uint32_t card);
  // Zeroes the bytes and frees a dead process's slot.
  void clear_slot(uint32_t card, uint32_t slot);

 private:
  GrantPages() = default;
  Result<void> map(uint32_t card_count);

  Fd page_fd_;
  Fd usage_fd_;
  void* page_ = nullptr;
  void* usage_map_ = nullptr;
  uint32_t card_count_ = 0;
  FileIdentity page_identity_;
  FileIdentity usage_identity_;
  bool own_file_system_ = false;
};

std::string grant_id_text(uint64_t id);  // 16 hex digits
Result<uint64_t> parse_grant_id(const std::string& text);

}  // namespace sluice::agent
