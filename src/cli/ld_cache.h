// Reads /etc/ld.so.cache, the list by which the dynamic loader finds a library by name. The loader's own tool would
// have to be started and its text parsed for the same; the file is small and its layout has been stable since
// glibc 2.2.
//
// Layout (glibc, sysdeps/generic/dl-cache.h): optionally the old table ("ld.so-1.7.0", u32 count, 12-byte entries),
// aligned to 8; then "glibc-ld.so.cache1.1" (20 bytes), u32 count, u32 string bytes, 20 bytes of flags and padding, and
// 24-byte entries {i32 flags, u32 key, u32 value, u32 os, u64 hwcap}. key and value are offsets of NUL-terminated
// strings from the start of that header. Only the new table is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct LdCacheEntry {
  std::string soname;  // "libcuda.so.1"
  std::string path;    // "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
  bool operator==(const LdCacheEntry&) const = default;
};

// Entries whose name starts with one of `prefixes`, in the file's order (the loader's order of preference).
// kInvalid when the bytes are no such cache or offsets point outside of it.
Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes, const std::vector<std::string>& prefixes);

}  // namespace sluice::cli
