#include "stepped.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace bench {

namespace {

constexpr uint64_t kMostSteps = 5'000'000;
constexpr int kNotTraced = 3;

std::string because(const char* call) {
  return std::string(call) + ": " + strerror(errno);
}

// `at`: which call runs, from 1; 0 before, times + 1 after the last.
[[noreturn]] void stepped_child(const Stepping& what, volatile uint64_t* at) {
  what.prepare();
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
  raise(SIGSTOP);
  for (size_t i = 0; i < what.run_in; ++i) what.one();
  raise(SIGSTOP);
  for (size_t i = 1; i <= what.times; ++i) {
    *at = i;
    what.one();
  }
  *at = what.times + 1;
  for (;;) pause();
}

// Stops all threads of the child but the first, so that what it executes depends on nobody's timing.
std::vector<pid_t> hold_others(pid_t child) {
  std::vector<pid_t> held;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(child) + "/task", ignored)) {
    const auto id = static_cast<pid_t>(std::atol(task.path().filename().c_str()));
    if (id == child || ptrace(PTRACE_SEIZE, id, nullptr, nullptr) != 0) continue;
    if (ptrace(PTRACE_INTERRUPT, id, nullptr, nullptr) == 0) waitpid(id, nullptr, __WALL);
    held.push_back(id);
  }
  return held;
}

std::string step_through(pid_t child, const Stepping& what, const volatile uint64_t* at, std::vector<uint64_t>& counts,
                         std::vector<pid_t>& held) {
  int status = 0;
  if (waitpid(child, &status, __WALL) != child) return because("waitpid");
  if (WIFSTOPPED(status)) {
    if (what.run_in > 0) held = hold_others(child);
    if (ptrace(PTRACE_CONT, child, nullptr, 0) != 0) return because("ptrace");
  }

  for (uint64_t steps = 0; steps < kMostSteps; ++steps) {
    if (WIFSTOPPED(status) && waitpid(child, &status, __WALL) != child) return because("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotTraced) return "ptrace is not allowed here";
    if (!WIFSTOPPED(status)) return "the stepped program ended, status " + std::to_string(status);
    const uint64_t now_at = *at;
    if (now_at > what.times) return "";
    if (now_at > 0) ++counts[now_at - 1];
    const int signal = WSTOPSIG(status);
    const long pass_on = signal == SIGTRAP || signal == SIGSTOP ? 0 : signal;
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, pass_on) != 0) return because("ptrace");
  }
  return "more than " + std::to_string(kMostSteps) + " instructions";
}

}  // namespace

Stepped count_stepped(const Stepping& what) {
  void* const shared = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return {.instructions = {}, .error = because("mmap")};
  auto* const at = static_cast<volatile uint64_t*>(shared);
  Stepped result{.instructions = std::vector<uint64_t>(what.times), .error = ""};
  const pid_t child = fork();
  if (child == 0) stepped_child(what, at);
  if (child < 0) {
    result.error = because("fork");
  } else {
    std::vector<pid_t> held;
    result.error = step_through(child, what, at, result.instructions, held);
    kill(child, SIGKILL);
    // The first thread is gone only when the others, whose end is reported to us, are.
    for (const pid_t id : held) waitpid(id, nullptr, __WALL);
    waitpid(child, nullptr, __WALL);
  }
  munmap(shared, sizeof(uint64_t));
  return result;
}

}  // namespace bench
