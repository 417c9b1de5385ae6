#include "cli/ld_cache.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/files.h"

namespace sluice::cli {
namespace {

void put32(std::string& out, uint32_t value) {
  out.append(reinterpret_cast<const char*>(&value), 4);
}

// A cache in the new format with these (name, path) pairs.
std::string cache(const std::vector<LdCacheEntry>& entries) {
  std::string strings;
  std::vector<std::pair<uint32_t, uint32_t>> offsets;
  const uint32_t base = 48 + 24 * static_cast<uint32_t>(entries.size());
  for (const LdCacheEntry& entry : entries) {
    const uint32_t name = base + static_cast<uint32_t>(strings.size());
    strings += entry.soname + '\0';
    const uint32_t path = base + static_cast<uint32_t>(strings.size());
    strings += entry.path + '\0';
    offsets.emplace_back(name, path);
  }
  std::string out = "glibc-ld.so.cache1.1";
  put32(out, static_cast<uint32_t>(entries.size()));
  put32(out, static_cast<uint32_t>(strings.size()));
  out.resize(48, '\0');
  for (const auto& [name, path] : offsets) {
    put32(out, 0x0303);
    put32(out, name);
    put32(out, path);
    out.resize(out.size() + 12, '\0');
  }
  return out + strings;
}

const std::vector<LdCacheEntry> kEntries = {{"libcuda.so.1", "/usr/lib/libcuda.so.1"},
                                            {"libc.so.6", "/lib/libc.so.6"},
                                            {"libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"}};

TEST(LdCache, FindsByPrefixInOrder) {
  const auto found = parse_ld_cache(cache(kEntries), {"libcuda.so", "libnvidia-ml.so"});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, (std::vector<LdCacheEntry>{kEntries[0], kEntries[2]}));
}

TEST(LdCache, SkipsTheOldTable) {
  std::string old = "ld.so-1.7.0";
  old.resize(12, '\0');
  put32(old, 3);
  old.resize(16 + 3 * 12, 'x');
  old.resize((old.size() + 7) / 8 * 8, '\0');
  const auto found = parse_ld_cache(old + cache(kEntries), {"libc.so"});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, (std::vector<LdCacheEntry>{kEntries[1]}));
}

TEST(LdCache, ReadsThisMachinesOwn) {
  const auto bytes = read_file("/etc/ld.so.cache");
  if (!bytes) GTEST_SKIP() << "no loader cache here";
  const auto found = parse_ld_cache(*bytes, {"libc.so.6"});
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_FALSE(found->empty());
  EXPECT_TRUE((*found)[0].path.ends_with("/libc.so.6"));
}

TEST(LdCache, CutShortIsAnErrorNeverARead) {
  const std::string whole = cache(kEntries);
  for (size_t length = 0; length + 1 < whole.size(); ++length) {
    const std::string cut(whole.data(), length);
    EXPECT_FALSE(parse_ld_cache(cut, {"lib"})) << length;
  }
}

TEST(LdCache, OffsetsOutsideAreRefused) {
  std::string bytes = cache(kEntries);
  for (const size_t field : {48 + 4, 48 + 8}) {
    std::string wild = bytes;
    for (size_t i = 0; i < 4; ++i) wild[field + i] = static_cast<char>(0xff);
    EXPECT_FALSE(parse_ld_cache(wild, {"lib"}));
  }
  for (size_t i = 0; i < 4; ++i) bytes[20 + i] = static_cast<char>(0xff);  // the count
  EXPECT_FALSE(parse_ld_cache(bytes, {"lib"}));
}

}  // namespace
}  // namespace sluice::cli
