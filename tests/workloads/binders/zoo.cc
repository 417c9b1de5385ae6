// Comes to the driver in every way that programs use, each in a process of its own, and reports what each one saw of
// the card. Under a limit all must see the limit; a way that sees the whole card is a way around it.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "binders/ways.h"
#include "common/options.h"
#include "common/report.h"

namespace {

constexpr int kExitUsage = 2;
constexpr size_t kMostOutput = 65536;

std::string own_folder() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return ".";
  path[length] = '\0';
  char* const slash = strrchr(path, '/');
  if (slash != nullptr) *slash = '\0';
  return path;
}

// What the way printed, or an object that says how its process ended.
std::string run_apart(const binders::Way& way, const binders::Arguments& arguments) {
  int output[2];
  if (pipe(output) != 0) return "{\"way\":\"" + std::string(way.name) + "\",\"call\":\"pipe\",\"code\":-1}";
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], STDOUT_FILENO);
    close(output[0]);
    close(output[1]);
    way.run(way.name, arguments);
    _exit(0);
  }
  close(output[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(output[0], buffer, sizeof buffer)) > 0 && text.size() < kMostOutput;) {
    text.append(buffer, static_cast<size_t>(bytes));
  }
  close(output[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (text.empty()) {
    text = "{\"way\":\"" + std::string(way.name) +
           "\",\"call\":\"process\",\"code\":-1,\"wait_status\":" + std::to_string(status) + "}";
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t size_mib = 0;
  bool list = false;
  std::string only;
  binders::Arguments arguments{};
  workloads::Options parser("binder_zoo", "Binds the driver in every way that programs use; reports what each sees.",
                            {.mem_mib = 0});
  parser.text("way", &only, "only this way; empty: all")
      .count("size-mib", &size_mib, 0, 1u << 24, "memory that each way asks for (0: none)")
      .text("driver-path", &arguments.driver_path, "file for the way 'absolute'; empty: searched")
      .flag("list", &list, "print the ways, use no card");
  const workloads::Common& common = parser.parse(argc, argv);
  arguments.allocate_bytes = size_mib << 20;
  arguments.folder = own_folder();
  std::string results;
  for (const binders::Way& way : binders::ways()) {
    if (list) std::printf("%-32s %s\n", way.name, way.meaning);
    if (list || (!only.empty() && only != way.name)) continue;
    results += (results.empty() ? "" : ",") + run_apart(way, arguments);
  }
  if (list) return 0;
  if (results.empty()) {
    std::fprintf(stderr, "binder_zoo: --way %s: there is no such way; --list prints all\n", only.c_str());
    return kExitUsage;
  }
  workloads::Report report("binder_zoo");
  report.raw("ways", "[" + results + "]");
  report.print(common.json);
  return 0;
}
