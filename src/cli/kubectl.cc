#include "cli/kubectl.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/files.h"
#include "cli/table.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxBytes = 512u << 20;  // as the HTTP client takes
constexpr size_t kMaxSaid = 64 << 10;

struct Said {
  int status = -1;
  std::string out, error;
};

// Reads both ends until both are closed. False: more than the most.
bool drain(int out, int error, Said& said) {
  pollfd ends[2] = {{out, POLLIN, 0}, {error, POLLIN, 0}};
  std::array<char, 65536> buffer;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends, 2, -1) < 0 && errno != EINTR) return false;
    for (pollfd& end : ends) {
      if (end.fd < 0 || end.revents == 0) continue;
      const ssize_t got = read(end.fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        end.fd = -1;
        continue;
      }
      std::string& into = end.fd == out ? said.out : said.error;
      const size_t most = end.fd == out ? kMaxBytes : kMaxSaid;
      if (into.size() + static_cast<size_t>(got) > most && end.fd == out) return false;
      into.append(buffer.data(), std::min(static_cast<size_t>(got), most - into.size()));
    }
  }
  return true;
}

Result<Said> run(std::vector<std::string> words) {
  int out[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0) return errno_error("cannot start", "kubectl", errno);
  Fd out_from(out[0]), out_to(out[1]);
  if (pipe2(error, O_CLOEXEC) != 0) return errno_error("cannot start", "kubectl", errno);
  Fd error_from(error[0]), error_to(error[1]);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out_to.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error_to.get(), STDERR_FILENO);
  pid_t pid = -1;
  const int failed = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT)
    return not_found("this user signs in through a plugin, which takes the program kubectl, and PATH has none");
  if (failed != 0) return errno_error("cannot start", "kubectl", failed);
  out_to.reset();
  error_to.reset();
  Said said;
  const bool all = drain(out_from.get(), error_from.get(), said);
  out_from.reset();  // whoever still writes ends by it
  error_from.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  said.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!all) return exhausted(fmt::format("kubectl gave more than {} MiB", kMaxBytes >> 20));
  return said;
}

Error error_of(const Said& said) {
  std::string text = said.error;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  // What plugins say comes first, kubectl's own sentence last.
  if (const size_t line = text.rfind('\n'); line != std::string::npos) text.erase(0, line + 1);
  text = text.empty() ? fmt::format("kubectl ended with status {}", said.status) : fit("kubectl: " + text, 400);
  if (said.error.find("(Forbidden)") != std::string::npos || said.error.find("(Unauthorized)") != std::string::npos ||
      said.error.find("You must be logged in") != std::string::npos) {
    return permission(text);
  }
  if (said.error.find("(NotFound)") != std::string::npos) return not_found(text);
  return unavailable(text);
}

}  // namespace

Result<std::string> kubectl_get(const KubectlOptions& options, const std::string& path) {
  std::vector<std::string> words = {"kubectl"};
  if (!options.kubeconfig.empty()) words.push_back("--kubeconfig=" + options.kubeconfig);
  if (!options.context.empty()) words.push_back("--context=" + options.context);
  words.push_back(fmt::format("--request-timeout={}s", options.timeout_seconds));
  words.insert(words.end(), {"get", "--raw", path});
  Result<Said> said = run(std::move(words));
  if (!said) return std::move(said).error();
  if (said->status != 0) return error_of(*said);
  return std::move(said->out);
}

}  // namespace sluice::cli
