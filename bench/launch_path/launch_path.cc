// What a launch costs on the host: the same loop of launches against two libraries, batches interleaved A B A B so that
// a slow moment of the machine hits both, compared by the smallest and the middle batch. With the null driver as one
// and the library that stands in front of it as the other, the difference is that library's own cost.
//
// --step counts the launching thread's instructions instead, launch by launch, which no other load on the machine
// disturbs. --count runs exactly N launches against one library and prints nothing.
#include <dlfcn.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"
#include "stepped.h"

namespace {

struct Calls {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleGetFunction) get_function;
  decltype(&cuStreamCreate) stream_create;
  decltype(&cuStreamSynchronize) synchronise;
  decltype(&cuLaunchKernel) launch;
};

struct Library {
  std::string path;
  Calls calls{};
  CUcontext context = nullptr;
  CUfunction function = nullptr;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "launch_path: %s\n", what.c_str());
  std::exit(1);
}

void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) fail(std::string(call) + ": CUDA error " + std::to_string(static_cast<int>(result)));
}

template <typename Function>
void bind(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) fail(std::string(name) + ": " + dlerror());
}

Library open_library(const std::string& path) {
  Library library{.path = path};
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(dlerror());
  Calls& calls = library.calls;
  bind(handle, "cuInit", calls.init);
  bind(handle, "cuDevicePrimaryCtxRetain", calls.retain);
  bind(handle, "cuCtxSetCurrent", calls.set_current);
  bind(handle, "cuModuleLoadData", calls.load);
  bind(handle, "cuModuleGetFunction", calls.get_function);
  bind(handle, "cuStreamCreate", calls.stream_create);
  bind(handle, "cuStreamSynchronize", calls.synchronise);
  bind(handle, "cuLaunchKernel", calls.launch);
  check(calls.init(0), "cuInit");
  check(calls.retain(&library.context, 0), "cuDevicePrimaryCtxRetain");
  check(calls.set_current(library.context), "cuCtxSetCurrent");
  CUmodule module = nullptr;
  check(calls.load(&module, ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry empty()\n{ ret; }\n"),
        "cuModuleLoadData");
  check(calls.get_function(&library.function, module, "empty"), "cuModuleGetFunction");
  return library;
}

void launch(const Library& library, CUstream stream, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    check(library.calls.launch(library.function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  }
}

double now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

constexpr size_t kMostTaken = 1 << 20;  // launches of which the times are kept

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
double middle(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Processor seconds of all threads of this process, and of the calling one.
double cpu_s(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Launches for so long, synchronising and pausing as told, and says how much of a processor the other threads took: the
// library's own.
void work(const Library& library, double seconds, uint64_t sync_every, double gap_us) {
  CUstream stream = nullptr;
  check(library.calls.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  launch(library, stream, 100);
  check(library.calls.synchronise(stream), "cuStreamSynchronize");
  const double all = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
  const double own = cpu_s(CLOCK_THREAD_CPUTIME_ID);
  const double start = now_ns();
  uint64_t launches = 0;
  std::vector<double> taken;
  while (now_ns() - start < seconds * 1e9) {
    const double before = now_ns();
    launch(library, stream, 1);
    if (taken.size() < kMostTaken) taken.push_back(now_ns() - before);
    if (++launches % sync_every != 0) continue;
    check(library.calls.synchronise(stream), "cuStreamSynchronize");
    if (gap_us > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(gap_us * 1000)));
  }
  check(library.calls.synchronise(stream), "cuStreamSynchronize");
  const double wall = (now_ns() - start) / 1e9;
  const double mine = cpu_s(CLOCK_THREAD_CPUTIME_ID) - own;
  const double others = cpu_s(CLOCK_PROCESS_CPUTIME_ID) - all - mine;
  std::printf(
      "{\"launches\":%llu,\"wall_s\":%.4f,\"launches_per_s\":%.1f,\"launch_p50_ns\":%.0f,\"program_cores\":%.4f,"
      "\"library_cores\":%.4f}\n",
      static_cast<unsigned long long>(launches), wall, static_cast<double>(launches) / wall, middle(taken), mine / wall,
      others / wall);
}

// Instructions of each of so many launches, after so many at full speed that are waited for.
int step(const std::string& path, uint64_t launches, uint64_t warm_up, uint64_t run_in) {
  Library library;
  CUstream stream = nullptr;
  const auto prepare = [&] {
    library = open_library(path);
    check(library.calls.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    launch(library, stream, warm_up);
    check(library.calls.synchronise(stream), "cuStreamSynchronize");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the library's own threads come to rest
  };
  const bench::Stepped stepped = bench::count_stepped(
      {.prepare = prepare, .one = [&] { launch(library, stream, 1); }, .run_in = run_in, .times = launches});
  if (!stepped.error.empty()) fail("cannot count instructions: " + stepped.error);
  std::printf("[");
  for (size_t i = 0; i < stepped.instructions.size(); ++i) {
    std::printf("%s%llu", i == 0 ? "" : ",", static_cast<unsigned long long>(stepped.instructions[i]));
  }
  std::printf("]\n");
  return 0;
}

struct Plan {
  uint64_t batches = 200;
  uint64_t launches = 2000;
  int threads = 1;
};

// ns per launch of each batch, of each library in turn. Every thread has a stream of its own and times its own batches;
// barriers keep all threads in the same library.
std::vector<std::vector<double>> measure(const std::vector<Library>& libraries, const Plan& plan) {
  std::vector<std::vector<double>> results(libraries.size());
  std::barrier together(plan.threads);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::vector<double>>> per_thread(static_cast<size_t>(plan.threads));
  for (auto& mine : per_thread) {
    mine.resize(libraries.size());
    threads.emplace_back([&] {
      std::vector<CUstream> streams(libraries.size());
      for (size_t i = 0; i < libraries.size(); ++i) {
        check(libraries[i].calls.set_current(libraries[i].context), "cuCtxSetCurrent");
        check(libraries[i].calls.stream_create(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        launch(libraries[i], streams[i], plan.launches);
      }
      for (uint64_t batch = 0; batch < plan.batches; ++batch) {
        for (size_t i = 0; i < libraries.size(); ++i) {
          together.arrive_and_wait();
          const double start = now_ns();
          launch(libraries[i], streams[i], plan.launches);
          mine[i].push_back((now_ns() - start) / static_cast<double>(plan.launches));
          check(libraries[i].calls.synchronise(streams[i]), "cuStreamSynchronize");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : per_thread) {
    for (size_t i = 0; i < libraries.size(); ++i) results[i].insert(results[i].end(), mine[i].begin(), mine[i].end());
  }
  return results;
}

void report(const Library& a, const Library& b, const Plan& plan, const std::vector<std::vector<double>>& results) {
  const double a_least = least(results[0]);
  const double b_least = least(results[1]);
  const double a_middle = middle(results[0]);
  const double b_middle = middle(results[1]);
  std::printf(
      "{\"baseline\":\"%s\",\"candidate\":\"%s\",\"threads\":%d,\"batches\":%llu,\"launches\":%llu,"
      "\"baseline_min_ns\":%.2f,\"candidate_min_ns\":%.2f,\"added_min_ns\":%.2f,\"ratio_min\":%.4f,"
      "\"baseline_median_ns\":%.2f,\"candidate_median_ns\":%.2f,\"added_median_ns\":%.2f,"
      "\"ratio_median\":%.4f}\n",
      a.path.c_str(), b.path.c_str(), plan.threads, static_cast<unsigned long long>(plan.batches),
      static_cast<unsigned long long>(plan.launches), a_least, b_least, b_least - a_least, b_least / a_least, a_middle,
      b_middle, b_middle - a_middle, b_middle / a_middle);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  std::string baseline;
  std::string candidate;
  uint64_t count = 0;
  uint64_t stepped = 0;
  uint64_t warm_up = 999;
  uint64_t run_in = 0;
  double work_s = 0;
  uint64_t sync_every = 256;
  double gap_us = 0;
  std::vector<int> threads = {1, 8};
  CLI::App app("Cost of a launch on the host: one library against another. Prints one line of JSON per thread count.",
               "launch_path");
  app.add_option("--baseline", baseline, "path of a libcuda.so.1, usually the null driver")->required();
  app.add_option("--candidate", candidate, "path of the library to compare with it");
  app.add_option("--threads", threads, "numbers of launching threads")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--batches", plan.batches, "batches per library and thread")->check(CLI::Range(1, 100000));
  app.add_option("--launches", plan.launches, "launches per batch")->check(CLI::Range(1, 100000000));
  app.add_option("--count", count, "only this many launches against --baseline, and nothing printed");
  app.add_option("--step", stepped, "instructions of each of so many launches against --baseline, as a JSON list")
      ->check(CLI::Range(1, 100000));
  app.add_option("--warm-up", warm_up, "with --step: launches before them, which are waited for");
  app.add_option("--run-in", run_in,
                 "with --step: then so many at full speed, from here on with the library's threads standing still");
  app.add_option("--work", work_s,
                 "launch against --baseline for so many seconds, report throughput and processor time")
      ->check(CLI::Range(0.1, 600.0));
  app.add_option("--sync-every", sync_every, "with --work: launches between synchronisations")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app.add_option("--gap-us", gap_us, "with --work: pause after each synchronisation");
  CLI11_PARSE(app, argc, argv);
  if (stepped > 0) return step(baseline, stepped, warm_up, run_in);
  const Library first = open_library(baseline);
  if (count > 0) {
    CUstream stream = nullptr;
    check(first.calls.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    launch(first, stream, count);
    return 0;
  }
  if (work_s > 0) {
    work(first, work_s, sync_every, gap_us);
    return 0;
  }
  if (candidate.empty()) fail("--candidate is needed to compare (or --count to only launch)");
  const std::vector<Library> libraries = {first, open_library(candidate)};
  for (const int n : threads) {
    plan.threads = n;
    report(libraries[0], libraries[1], plan, measure(libraries, plan));
  }
  return 0;
}
