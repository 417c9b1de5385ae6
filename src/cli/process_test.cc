#include "cli/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "cli/exit_codes.h"
#include "cli/scratch_test.h"

namespace sluice::cli {
namespace {

Outcome run_shell(const std::string& script, const std::function<void(pid_t)>& started = [](pid_t) {}) {
  Command command;
  command.arguments = {"/bin/sh", "-c", script};
  return run_command(command, [] { return Result<void>(); }, started);
}

TEST(Process, PassesTheExitStatusOn) {
  EXPECT_EQ(run_shell("exit 0").status, 0);
  EXPECT_EQ(run_shell("exit 77").status, 77);
  EXPECT_EQ(run_shell("kill -9 $$").status, 128 + SIGKILL);
  EXPECT_EQ(run_shell("exit 77").error, "");
}

TEST(Process, ACommandThatCannotStartIsToldLikeAShellTellsIt) {
  Command command;
  command.arguments = {"sluice-no-such-program"};
  Outcome outcome = run_command(command, [] { return Result<void>(); }, [](pid_t) {});
  EXPECT_EQ(outcome.status, kExitNoCommand);
  EXPECT_EQ(outcome.error, "cannot start 'sluice-no-such-program': No such file or directory");
  command.arguments = {"/etc/passwd"};
  outcome = run_command(command, [] { return Result<void>(); }, [](pid_t) {});
  EXPECT_EQ(outcome.status, kExitNotExecutable);
}

TEST(Process, AFailedPreparationKeepsTheCommandFromRunning) {
  Scratch scratch;
  Command command;
  command.arguments = {"/bin/sh", "-c", "touch " + scratch.path("ran")};
  const Outcome outcome = run_command(command, [] { return Result<void>(permission("no")); }, [](pid_t) {});
  EXPECT_EQ(outcome.status, kExitPermission);
  EXPECT_EQ(outcome.error, "no");
  EXPECT_NE(access(scratch.path("ran").c_str(), F_OK), 0);
}

TEST(Process, EnvironmentAndDirectoryAreTheCommands) {
  Scratch scratch;
  Command command;
  command.arguments = {"sh", "-c", "test \"$A$B\" = 2x && test \"$PWD\" = \"$C\""};
  command.environment = {
      {"A", "1"}, {"B", "x"}, {"C", scratch.path(".").substr(0, scratch.path(".").size() - 2)}, {"A", "2"}};
  command.working_directory = scratch.path("");
  EXPECT_EQ(run_command(command, [] { return Result<void>(); }, [](pid_t) {}).status, 0);
  command.working_directory = "/nowhere";
  const Outcome outcome = run_command(command, [] { return Result<void>(); }, [](pid_t) {});
  EXPECT_EQ(outcome.status, kExitNotFound);
  EXPECT_EQ(outcome.error, "cannot enter the working directory /nowhere: No such file or directory");
}

// A second process sends the runner a signal, once the command says by a file that its trap is set.
TEST(Process, SignalsSentToTheRunnerReachTheCommandOnce) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    Scratch scratch;
    const pid_t runner = getpid();
    const pid_t sender = fork();
    if (sender == 0) {
      while (access(scratch.path("ready").c_str(), F_OK) != 0) usleep(1000);
      kill(runner, signal);
      _exit(0);
    }
    const std::string name = std::to_string(signal);
    const Outcome outcome = run_shell(
        "n=0; trap 'n=$((n+1))' " + name + "; touch " + scratch.path("ready") +
        "; i=0; while [ $n = 0 ] && [ $i -lt 1000 ]; do sleep 0.01; i=$((i+1)); done; sleep 0.1; exit $((40+n))");
    EXPECT_EQ(outcome.status, 41) << signal;
    int status = 0;
    waitpid(sender, &status, 0);
  }
}

TEST(Process, SignalMasksAreLeftAsTheyWere) {
  sigset_t before, after;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  // A blocked signal would show as a bit of the command's own mask.
  EXPECT_EQ(run_shell("grep -q '^SigBlk:[[:space:]]*0*$' /proc/self/status").status, 0);
  sigprocmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
}

TEST(Process, ADaemonLeftBehindIsNotWaitedFor) {
  Scratch scratch;
  EXPECT_EQ(run_shell("(sleep 5; :) >/dev/null 2>&1 & echo $! > " + scratch.path("pid") + "; exit 3").status, 3);
  const pid_t daemon = std::stoi(*read_file(scratch.path("pid")));
  EXPECT_EQ(kill(daemon, 0), 0) << "the daemon was killed";
  kill(daemon, SIGKILL);
}

}  // namespace
}  // namespace sluice::cli
