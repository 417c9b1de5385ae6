// Very many very short kernels from one or more threads: bound by launching, so it shows what a launch costs, and how
// exact a limit is when thousands of units pass per second.
#include <atomic>
#include <thread>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct TinyOptions {
  double kernel_us = 5;
  uint64_t threads = 1;
  uint64_t sync_every = 0;
  bool per_thread = false;
};

uint64_t launch_until(workloads::Card& card, const TinyOptions& options, CUfunction function, uint64_t end) {
  // The per-thread default stream has entry points of its own (_ptsz), which a limiter has to know too.
  const workloads::Driver& cuda = options.per_thread ? workloads::driver_per_thread() : workloads::driver();
  card.use();
  CUstream stream = nullptr;
  if (!options.per_thread) check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUdeviceptr address = 0;
  void* parameters[] = {&address};
  const auto blocks = static_cast<unsigned>(card.multiprocessors());
  uint64_t launched = 0;
  constexpr uint64_t kLaunchesPerLook = 64;  // reading the clock at every launch would cost as much as the launch
  while (launched % kLaunchesPerLook != 0 || workloads::now_ns() < end) {
    check(cuda.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
    ++launched;
    if (options.sync_every > 0 && launched % options.sync_every == 0) {
      check(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
  }
  check(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize");
  if (stream != nullptr) check(cuda.cuStreamDestroy(stream), "cuStreamDestroy");
  return launched;
}

void run(const workloads::Common& common, const TinyOptions& options, workloads::Report& report) {
  workloads::Card card("tiny_kernels", common);
  const CUfunction function = card.load({{.name = "tiny_kernel", .us = options.kernel_us}}).front();
  const uint64_t start = workloads::now_ns();
  const uint64_t end = start + workloads::seconds_to_ns(common.seconds);
  std::atomic<uint64_t> kernels{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < options.threads; ++i) {
    threads.emplace_back([&] { kernels += launch_until(card, options, function, end); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
  report.number("seconds", seconds);
  report.count("threads", options.threads);
  report.count("kernels", kernels);
  report.number("kernels_per_second", static_cast<double>(kernels) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  TinyOptions options;
  workloads::Options parser("tiny_kernels", "Many kernels of a few microseconds; reports how many per second.");
  parser.number("kernel-us", &options.kernel_us, 0.1, 1e6, "card time of one kernel")
      .count("threads", &options.threads, 1, 64, "launching threads, each with its own stream")
      .count("sync-every", &options.sync_every, 0, 1u << 20, "wait for the card after so many launches (0: never)")
      .flag("per-thread", &options.per_thread, "launch into the per-thread default stream");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("tiny_kernels");
  run(common, options, report);
  report.print(common.json);
  return 0;
}
