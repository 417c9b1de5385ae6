#include "node/libraries.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>

#include "base/files.h"
#include "base/log.h"

namespace sluice::node {
namespace {

constexpr std::array<const char*, 3> kFiles{"libcuda.so.1", "libnvidia-ml.so.1", "libsluice-preload.so"};
constexpr size_t kMaxLibraryBytes = 64u << 20;

// FNV-1a, 64 bits: tells builds apart, guards against nothing.
uint64_t mix(uint64_t hash, std::string_view text) {
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

}  // namespace

Result<std::string> install_libraries(const std::string& from, const std::string& state_directory) {
  uint64_t hash = 0xcbf29ce484222325;
  std::array<std::string, kFiles.size()> texts;
  for (size_t i = 0; i < kFiles.size(); ++i) {
    Result<std::string> text = read_file(fmt::format("{}/{}", from, kFiles[i]), kMaxLibraryBytes);
    if (!text) return std::move(text.error()).wrap("Sluice's libraries for containers (--library-dir)");
    hash = mix(mix(hash, kFiles[i]), *text);
    texts[i] = std::move(*text);
  }
  const std::string folder = fmt::format("{}/lib/{:016x}", state_directory, hash);
  if (Result<void> made = make_directories(folder); !made) return std::move(made.error());
  for (size_t i = 0; i < kFiles.size(); ++i) {
    const std::string path = fmt::format("{}/{}", folder, kFiles[i]);
    struct stat status{};
    if (::stat(path.c_str(), &status) == 0 && static_cast<size_t>(status.st_size) == texts[i].size()) continue;
    if (Result<void> written = write_file_atomic(path, texts[i], 0755); !written) return std::move(written.error());
  }
  return folder;
}

void remove_old_libraries(const std::string& state_directory, const std::set<std::string>& in_use) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(state_directory + "/lib", code)) {
    const std::string folder = entry.path();
    if (in_use.contains(folder)) continue;
    std::filesystem::remove_all(folder, code);
    if (!code) log::info("libraries of another build removed", {{"folder", folder}});
  }
}

}  // namespace sluice::node
