#include "agent/start_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>

#include "agent/protocol.h"
#include "agent/run_directory.h"
#include "base/files.h"

namespace sluice::agent {
namespace {

constexpr int kReadyFd = 3;
constexpr off_t kMaxLogBytes = 1 << 20;

Result<std::string> find_program(const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  if (const char* variable = std::getenv("SLUICE_AGENT"); variable != nullptr && variable[0] != '\0') {
    return std::string(variable);
  }
  std::array<char, PATH_MAX> self{};
  ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length > 0) {
    std::string path(self.data(), static_cast<size_t>(length));
    path = path.substr(0, path.find_last_of('/')) + "/sluice-agent";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  std::string search = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "/usr/local/bin:/usr/bin:/bin";
  for (size_t start = 0; start <= search.size();) {
    size_t end = std::min(search.find(':', start), search.size());
    std::string path = search.substr(start, end - start) + "/sluice-agent";
    if (path[0] == '/' && ::access(path.c_str(), X_OK) == 0) return path;
    start = end + 1;
  }
  return not_found("sluice-agent is neither beside this program nor in PATH; install it, or name it in SLUICE_AGENT");
}

// In the grandchild: standard streams to /dev/null and the log, the pipe on kReadyFd, nothing else open.
[[noreturn]] void become_agent(int log, int pipe_end, char* const* argv) {
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, 0);
  ::dup2(null, 1);
  ::dup2(log >= 0 ? log : null, 2);
  if (pipe_end == kReadyFd)
    ::fcntl(kReadyFd, F_SETFD, 0);
  else
    ::dup2(pipe_end, kReadyFd);
  ::close_range(kReadyFd + 1, ~0u, 0);
  if (::chdir("/") != 0) ::_exit(127);
  ::execv(argv[0], argv);
  int reason = errno;
  dprintf(kReadyFd, "error unavailable cannot execute the agent %s: errno %d\n", argv[0], reason);
  ::_exit(127);
}

Result<void> read_report(int fd, int timeout_ms, const std::string& log_path) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string report;
  while (report.find('\n') == std::string::npos && report.size() < 8192) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{fd, POLLIN, 0};
    int ready = left.count() > 0 ? ::poll(&waiting, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return unavailable(
          fmt::format("the agent was started but is not ready after {} ms; see {}", timeout_ms, log_path));
    }
    char buffer[1024];
    ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    report.append(buffer, static_cast<size_t>(got));
  }
  if (report.rfind("ok", 0) == 0) return {};
  if (report.rfind("error ", 0) != 0) {
    return unavailable(fmt::format("the agent ended before it was ready; see {}", log_path));
  }
  std::string rest = report.substr(6, report.find('\n') - 6);
  size_t space = rest.find(' ');
  return Error{parse_code(rest.substr(0, space)), space == std::string::npos ? rest : rest.substr(space + 1)};
}

}  // namespace

Result<void> start_agent(const StartOptions& options) {
  Result<std::string> program = find_program(options.program);
  if (!program) return std::move(program.error());
  Result<Fd> directory = open_run_directory(options.run_directory);
  if (!directory) return std::move(directory.error());
  Result<Fd> lock = lock_file(directory->get(), options.run_directory, "start.lock", options.timeout_ms);
  if (!lock) return std::move(lock.error()).wrap("starting the agent");
  if (options.answers && options.answers()) return {};

  Fd log(::openat(directory->get(), "agent.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat status{};
  if (log.valid() && ::fstat(log.get(), &status) == 0 && status.st_size > kMaxLogBytes) {
    if (::ftruncate(log.get(), 0) != 0) log.reset();
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("cannot make a pipe to", *program, errno);
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  std::vector<std::string> words{*program, "--run-dir", options.run_directory, "--ready-fd", std::to_string(kReadyFd)};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = ::fork();
  if (child < 0) return errno_error("cannot start", *program, errno);
  if (child == 0) become_agent(log.get(), write_end.get(), argv.data());
  write_end.reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return read_report(read_end.get(), options.timeout_ms, options.run_directory + "/agent.log");
}

void report_ready(int fd) {
  if (fd < 0) return;
  dprintf(fd, "ok\n");
  ::close(fd);
}

void report_failure(int fd, const Error& error) {
  if (fd < 0) return;
  std::string text = error.message;
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  dprintf(fd, "error %s %s\n", code_name(error.code), text.c_str());
  ::close(fd);
}

}  // namespace sluice::agent
