#include "cli/ld_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

namespace sluice::cli {
namespace {

constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::string_view kNewMagic = "glibc-ld.so.cache1.1";
constexpr size_t kOldHeaderBytes = 16;
constexpr size_t kOldEntryBytes = 12;
constexpr size_t kNewHeaderBytes = 48;
constexpr size_t kNewEntryBytes = 24;

uint32_t u32_at(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::string_view> string_at(std::string_view bytes, size_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return bytes.substr(offset, end - offset);
}

// The part of the file that starts with the new table's header.
std::optional<std::string_view> new_table(std::string_view bytes) {
  if (bytes.starts_with(kOldMagic) && bytes.size() >= kOldHeaderBytes) {
    const size_t end = kOldHeaderBytes + size_t{u32_at(bytes, 12)} * kOldEntryBytes;
    const size_t aligned = (end + 7) / 8 * 8;
    if (aligned > bytes.size()) return std::nullopt;
    bytes.remove_prefix(aligned);
  }
  if (!bytes.starts_with(kNewMagic) || bytes.size() < kNewHeaderBytes) return std::nullopt;
  return bytes;
}

}  // namespace

Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes, const std::vector<std::string>& prefixes) {
  const std::optional<std::string_view> table = new_table(bytes);
  if (!table)
    return invalid("not a loader cache in the format glibc-ld.so.cache1.1; running ldconfig writes a new one");
  const size_t count = u32_at(*table, kNewMagic.size());
  if (count > (table->size() - kNewHeaderBytes) / kNewEntryBytes) {
    return invalid(
        fmt::format("the loader cache claims {} entries but is too short for them; running ldconfig writes a "
                    "new one",
                    count));
  }
  std::vector<LdCacheEntry> found;
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = kNewHeaderBytes + i * kNewEntryBytes;
    const auto soname = string_at(*table, u32_at(*table, entry + 4));
    const auto path = string_at(*table, u32_at(*table, entry + 8));
    if (!soname || !path) return invalid(fmt::format("entry {} of the loader cache points outside of the file", i));
    const bool wanted = std::any_of(prefixes.begin(), prefixes.end(),
                                    [&](const std::string& prefix) { return soname->starts_with(prefix); });
    if (wanted) found.push_back({std::string(*soname), std::string(*path)});
  }
  return found;
}

}  // namespace sluice::cli
