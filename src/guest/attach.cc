#include "guest/attach.h"

namespace sluice::guest {

namespace {

constexpr int kNoEntry = -2;  // ENOENT

uint32_t map_grant(Guest* guest, const char* path) {
  const int descriptor = sys::open_file(path, false);
  if (descriptor == kNoEntry) return page::kRefusalGrantMissing;
  sys::FileId id;
  if (descriptor < 0 || !sys::file_id(descriptor, id)) return page::kRefusalGrantUnreadable;
  // The grant is read through the mapping alone; its descriptor carries no locks and may be closed.
  if (id.bytes < sizeof(page::GrantHeader)) {
    sys::close_file(descriptor);
    return page::kRefusalGrantSize;
  }
  const size_t bytes = id.bytes < sizeof(page::Grant) ? id.bytes : sizeof(page::Grant);
  const void* address = sys::map_file(descriptor, bytes, false);
  sys::close_file(descriptor);
  if (address == nullptr) return page::kRefusalGrantUnreadable;
  const page::Grant* grant = static_cast<const page::Grant*>(address);
  if (grant->header.magic != page::kGrantMagic) return page::kRefusalGrantMagic;
  if (grant->header.major != page::kMajor) return page::kRefusalGrantVersion;
  const uint32_t count = grant->header.card_count;
  if (count == 0 || count > page::kMaxCards || grant->header.bytes < page::grant_bytes(count) ||
      id.bytes < page::grant_bytes(count)) {
    return page::kRefusalGrantSize;
  }
  guest->grant = grant;
  guest->card_count = count;
  return page::kRefusalNone;
}

uint32_t map_usage(Guest* guest, const char* path, RecordLocks* locks) {
  const int opened = locks->open(path);
  if (opened == kNoEntry) return page::kRefusalUsageMissing;
  if (opened < 0) return page::kRefusalUsageUnwritable;
  sys::FileId id;
  if (!sys::file_id(locks->descriptor(), id)) return page::kRefusalUsageUnwritable;
  const size_t bytes = page::usage_bytes(guest->card_count);
  if (id.bytes < bytes) return page::kRefusalUsageLayout;
  void* address = sys::map_file(locks->descriptor(), bytes, true);
  if (address == nullptr) return page::kRefusalUsageUnwritable;
  page::Usage* usage = static_cast<page::Usage*>(address);
  const page::UsageHeader& header = usage->header;
  if (header.magic != page::kUsageMagic || header.major != page::kMajor || header.card_count != guest->card_count ||
      header.bytes < bytes) {
    return page::kRefusalUsageLayout;
  }
  guest->usage = usage;
  if (header.grant_id != guest->grant->header.grant_id) return page::kRefusalPagesApart;
  return page::kRefusalNone;
}

}  // namespace

uint32_t attach_pages(Guest* guest, const char* grant_path, const char* usage_path, RecordLocks* locks) {
  const uint32_t granted = map_grant(guest, grant_path);
  if (granted != page::kRefusalNone) {
    guest->card_count = 0;
    return granted;
  }
  const uint32_t used = map_usage(guest, usage_path, locks);
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    guest->cards[card].grant = &guest->grant->cards[card];
    guest->cards[card].usage = guest->usage == nullptr ? nullptr : &guest->usage->cards[card];
  }
  return used;
}

}  // namespace sluice::guest
