// `sluice demo`: hands over to script/demo, so that there is one demonstration. In a checkout it is found from the
// build folder (build/<preset>/bin) upwards, installed beside the libraries; SLUICE_DEMO names another.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace sluice::cli {
namespace {

constexpr int kLevelsUp = 5;

std::string find_demo() {
  if (const char* chosen = getenv("SLUICE_DEMO"); chosen != nullptr && *chosen != '\0') return chosen;
  std::string self(PATH_MAX, '\0');
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size());
  self.resize(length > 0 ? static_cast<size_t>(length) : 0);
  std::filesystem::path folder = std::filesystem::path(self).parent_path();
  for (int level = 0; level < kLevelsUp; ++level) {
    for (const char* place : {"script/demo", "lib/sluice/demo"}) {
      if (access((folder / place).c_str(), X_OK) == 0) return folder / place;
    }
    if (!folder.has_relative_path()) break;
    folder = folder.parent_path();
  }
  return "";
}

}  // namespace

int demo(const Options& options) {
  const std::string path = find_demo();
  if (path.empty()) {
    return fail("demo",
                not_found("the demonstration's script was not found near this program; run script/demo in a checkout "
                          "of the sources, or name it in SLUICE_DEMO"));
  }
  std::vector<std::string> arguments = {path};
  arguments.insert(arguments.end(), options.demo.arguments.begin(), options.demo.arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return fail("demo", internal(fmt::format("cannot start {}: {}", path, std::strerror(errno))));
}

}  // namespace sluice::cli
