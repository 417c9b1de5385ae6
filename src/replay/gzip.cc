#include "replay/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <memory>

#include "base/files.h"

namespace sluice::replay {

Result<std::string> read_text(const std::string& path) {
  if (!path.ends_with(".gz")) return read_file(path, kMaxInputBytes);
  // Opened here first: zlib's own open gives no reason, and reads a plain file as if it were packed.
  if (Result<std::string> packed = read_file(path, kMaxInputBytes); !packed) return packed;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) return unavailable(fmt::format("read {}: zlib could not open it", path));
  std::string text;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    int count = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    if (count < 0) return invalid(fmt::format("read {}: needs an intact gzip file, have a damaged one", path));
    if (count == 0) break;
    if (text.size() + static_cast<size_t>(count) > kMaxInputBytes)
      return exhausted(fmt::format("read {}: needs at most {} bytes unpacked", path, kMaxInputBytes));
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  return text;
}

uint32_t crc32_of(const std::vector<uint32_t>& numbers) {
  uLong crc = crc32(0, nullptr, 0);
  for (uint32_t number : numbers) {
    const std::array<Bytef, 4> bytes{static_cast<Bytef>(number), static_cast<Bytef>(number >> 8),
                                     static_cast<Bytef>(number >> 16), static_cast<Bytef>(number >> 24)};
    crc = crc32(crc, bytes.data(), bytes.size());
  }
  return static_cast<uint32_t>(crc);
}

}  // namespace sluice::replay
