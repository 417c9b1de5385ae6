// Several processes of one container on one card, as data-parallel training or a pre-forked server has them: forks
// before any CUDA call, executes itself once per rank, lets all start together and reports each rank's figures and
// their sum.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct RankOptions {
  uint64_t ranks = 2;
  double kernel_us = 300;
  uint64_t kernels = 30;
  double host_ms = 0.5;
  std::string role;  // "" in the parent, "rank" in a rank; the start signal is the end of its standard input
};

// A rank works in steps, each followed by a wait and a pause, from the moment that standard input ends.
void run_rank(const workloads::Common& common, const RankOptions& options, workloads::Report& report) {
  workloads::Card card("ranks", common);
  const workloads::Driver& cuda = workloads::driver();
  const CUfunction function = card.load({{.name = "rank_kernel", .us = options.kernel_us}}).front();
  CUstream stream = nullptr;
  check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) errno = 0;
  const uint64_t start = workloads::now_ns();
  const uint64_t end = start + workloads::seconds_to_ns(common.seconds);
  uint64_t steps = 0;
  while (workloads::now_ns() < end) {
    for (uint64_t i = 0; i < options.kernels; ++i) card.launch(function, stream);
    check(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
    workloads::sleep_until_ns(workloads::now_ns() + static_cast<uint64_t>(options.host_ms * 1e6));
    ++steps;
  }
  check(cuda.cuStreamDestroy(stream), "cuStreamDestroy");
  report.count("pid", static_cast<uint64_t>(getpid()));
  report.count("steps", steps);
  report.number("steps_per_second",
                static_cast<double>(steps) * 1e9 / static_cast<double>(workloads::now_ns() - start));
}

struct Child {
  pid_t pid = -1;
  int output = -1;
  std::string text;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "ranks: %s: %s\n", what, std::strerror(errno));
  std::exit(workloads::kExitCudaError);
}

Child start_rank(char** argv, int argc, const int (&gate)[2]) {
  int output[2];
  if (pipe(output) != 0) fail("pipe");
  Child child;
  child.pid = fork();
  if (child.pid < 0) fail("fork");
  if (child.pid == 0) {
    dup2(gate[0], STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    for (const int fd : {gate[0], gate[1], output[0], output[1]}) close(fd);
    std::vector<char*> arguments(argv, argv + argc);
    std::string role = "--role=rank";
    std::string json = "--json";
    arguments.push_back(role.data());
    arguments.push_back(json.data());
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    _exit(workloads::kExitNoDriver);
  }
  close(output[1]);
  child.output = output[0];
  return child;
}

// Reads each rank's line, waits for it; true when all ended well.
bool collect(std::vector<Child>& children) {
  bool all_well = true;
  for (Child& child : children) {
    char buffer[4096];
    ssize_t bytes = 0;
    while ((bytes = read(child.output, buffer, sizeof buffer)) > 0)
      child.text.append(buffer, static_cast<size_t>(bytes));
    close(child.output);
    while (!child.text.empty() && child.text.back() == '\n') child.text.pop_back();
    int status = 0;
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) std::fprintf(stderr, "ranks: pid %d: killed by signal %d\n", child.pid, WTERMSIG(status));
    all_well = all_well && WIFEXITED(status) && WEXITSTATUS(status) == 0 && !child.text.empty();
  }
  return all_well;
}

int run_parent(int argc, char** argv, const RankOptions& options, workloads::Report& report) {
  int gate[2];
  if (pipe(gate) != 0) fail("pipe");
  std::vector<Child> children;
  for (uint64_t i = 0; i < options.ranks; ++i) children.push_back(start_rank(argv, argc, gate));
  close(gate[0]);
  // Ranks become ready at different times; a second of patience lets all of them measure the same stretch.
  workloads::sleep_until_ns(workloads::now_ns() + 1'000'000'000u);
  close(gate[1]);
  if (!collect(children)) return workloads::kExitCudaError;
  std::string list = "[";
  double sum = 0;
  for (const Child& child : children) {
    if (list.size() > 1) list += ',';
    list += child.text;
    const size_t at = child.text.find("\"steps_per_second\":");
    if (at != std::string::npos) sum += std::atof(child.text.c_str() + at + std::strlen("\"steps_per_second\":"));
  }
  report.count("ranks", options.ranks);
  report.number("steps_per_second", sum);
  report.raw("each", list + "]");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  RankOptions options;
  workloads::Options parser("ranks", "Several processes on one card at once; reports each one's steps per second.");
  parser.count("ranks", &options.ranks, 1, 128, "number of processes")
      .number("kernel-us", &options.kernel_us, 0.1, 1e6, "card time of one kernel")
      .count("kernels", &options.kernels, 1, 10000, "kernels per step")
      .number("host-ms", &options.host_ms, 0, 1e4, "host pause after each step")
      .choice("role", &options.role, {"", "rank"}, "used by the program itself");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("ranks");
  int status = 0;
  if (options.role == "rank") {
    run_rank(common, options, report);
  } else {
    status = run_parent(argc, argv, options, report);
  }
  if (status == 0) report.print(common.json);
  return status;
}
