#include "cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files.h"
#include "cli/exit_codes.h"

namespace sluice::cli {
namespace {

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGTSTP, SIGCONT};
constexpr size_t kReportMax = 4000;  // below PIPE_BUF: one write, never blocks

// What a child that could not start the command tells its parent: the exit status in the first byte, then the sentence.
[[noreturn]] void report_and_exit(int pipe, int status, const std::string& sentence) {
  std::string report(1, static_cast<char>(status));
  report += sentence.substr(0, kReportMax);
  const ssize_t written = write(pipe, report.data(), report.size());
  _exit(written > 0 ? status : kExitInternal);
}

[[noreturn]] void child(const Command& command, const std::function<Result<void>()>& prepare, int pipe,
                        const sigset_t& old_mask) {
  if (auto ready = prepare(); !ready) report_and_exit(pipe, exit_code(ready.error().code), ready.error().message);
  for (const auto& [name, value] : command.environment) setenv(name.c_str(), value.c_str(), 1);
  const std::string& directory = command.working_directory;
  if (!directory.empty() && chdir(directory.c_str()) != 0) {
    report_and_exit(pipe, kExitNotFound,
                    fmt::format("cannot enter the working directory {}: {}", directory, std::strerror(errno)));
  }
  std::vector<char*> argv;
  for (const std::string& argument : command.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  const bool missing = error == ENOENT || error == ENOTDIR;
  report_and_exit(pipe, missing ? kExitNoCommand : kExitNotExecutable,
                  fmt::format("cannot start '{}': {}", argv[0], std::strerror(error)));
}

// Ctrl-Z and its like stop the runner too, or the shell would wait for it.
void stop_like(int signal, const siginfo_t& info, pid_t pid) {
  if (info.si_code == SI_USER) kill(pid, signal);
  raise(SIGSTOP);
}

int exit_status(int status) {
  if (WIFSIGNALED(status)) return kExitSignalBase + WTERMSIG(status);
  return WEXITSTATUS(status);
}

int wait_and_forward(pid_t pid, const sigset_t& signals) {
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return exit_status(status);
    if (ended < 0 && errno != EINTR) return kExitInternal;
    siginfo_t info{};
    const int signal = sigwaitinfo(&signals, &info);
    if (signal < 0 || signal == SIGCHLD) continue;
    if (signal == SIGTSTP) {
      stop_like(signal, info, pid);
    } else if (info.si_code != SI_KERNEL && info.si_pid != pid) {
      kill(pid, signal);
    }
  }
}

std::string read_report(int pipe) {
  std::string report(kReportMax + 1, '\0');
  ssize_t length = 0;
  do {
    length = read(pipe, report.data(), report.size());
  } while (length < 0 && errno == EINTR);
  report.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return report;
}

}  // namespace

Outcome run_command(const Command& command, const std::function<Result<void>()>& prepare,
                    const std::function<void(pid_t)>& started) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {kExitInternal, fmt::format("cannot make a pipe: {}", std::strerror(errno))};
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  sigset_t signals;
  sigset_t old_mask;
  sigemptyset(&signals);
  for (const int signal : kForwarded) sigaddset(&signals, signal);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, &old_mask);
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    sigprocmask(SIG_SETMASK, &old_mask, nullptr);
    return {kExitInternal, fmt::format("cannot start a process: {}", std::strerror(error))};
  }
  if (pid == 0) {
    reader.reset();
    child(command, prepare, writer.get(), old_mask);
  }
  writer.reset();
  started(pid);
  const std::string report = read_report(reader.get());  // ends when the command is executed
  const int status = wait_and_forward(pid, signals);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  if (report.empty()) return {status, ""};
  return {static_cast<unsigned char>(report[0]), report.substr(1)};
}

}  // namespace sluice::cli
