// Several streams at once, of mixed kernel lengths and priorities, that wait for each other through events now and
// then: busy time of such a program is the union over its streams, not their sum.
#include <random>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct StreamOptions {
  uint64_t streams = 4;
  double kernel_us = 200;
  double log_sigma = 0.8;
  double blocks_share = 0.5;
  uint64_t join_every = 32;
};

class Streams {
 public:
  Streams(workloads::Card& card, const StreamOptions& options, uint64_t seed)
      : card_(card), options_(options), random_(seed), cuda_(workloads::driver()) {
    function_ = card.load({{.name = "stream_kernel",
                            .us = options.kernel_us,
                            .log_sigma = options.log_sigma,
                            .log_max_us = 8 * options.kernel_us}})
                    .front();
    int least = 0;
    int greatest = 0;
    check(cuda_.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
    for (uint64_t i = 0; i < options.streams; ++i) {
      CUstream stream = nullptr;
      check(cuda_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, i % 2 == 0 ? least : greatest),
            "cuStreamCreateWithPriority");
      CUevent event = nullptr;
      check(cuda_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      streams_.push_back(stream);
      events_.push_back(event);
    }
  }
  ~Streams() {
    for (const CUevent event : events_) check(cuda_.cuEventDestroy(event), "cuEventDestroy");
    for (const CUstream stream : streams_) check(cuda_.cuStreamDestroy(stream), "cuStreamDestroy");
  }
  Streams(const Streams&) = delete;

  // One round: a kernel on each stream; every join_every rounds all streams wait for all others.
  void round(uint64_t number) {
    for (const CUstream stream : streams_) launch(stream);
    if (options_.join_every > 0 && number % options_.join_every == options_.join_every - 1) join();
  }
  void finish() {
    for (const CUstream stream : streams_) check(cuda_.cuStreamSynchronize(stream), "cuStreamSynchronize");
  }

 private:
  void launch(CUstream stream) {
    const double blocks = options_.blocks_share * card_.multiprocessors();
    const unsigned grid = blocks < 1 ? 1 : static_cast<unsigned>(blocks);
    CUdeviceptr address = 0;
    void* parameters[] = {&address};
    // Grids differ from launch to launch, as batches do.
    const unsigned drawn = 1 + static_cast<unsigned>(random_() % grid);
    check(cuda_.cuLaunchKernel(function_, drawn, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
  }
  void join() {
    for (size_t i = 0; i < streams_.size(); ++i) check(cuda_.cuEventRecord(events_[i], streams_[i]), "cuEventRecord");
    for (const CUstream stream : streams_) {
      for (const CUevent event : events_) check(cuda_.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
    }
  }

  workloads::Card& card_;
  const StreamOptions& options_;
  std::mt19937_64 random_;
  const workloads::Driver& cuda_;
  CUfunction function_ = nullptr;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
};

void run(const workloads::Common& common, const StreamOptions& options, workloads::Report& report) {
  workloads::Card card("multi_stream", common);
  Streams streams(card, options, common.seed);
  const uint64_t start = workloads::now_ns();
  const uint64_t end = start + workloads::seconds_to_ns(common.seconds);
  uint64_t rounds = 0;
  constexpr uint64_t kRoundsPerWait = 64;
  while (workloads::now_ns() < end) {
    streams.round(rounds++);
    if (rounds % kRoundsPerWait == 0) streams.finish();
  }
  streams.finish();
  const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
  report.number("seconds", seconds);
  report.count("streams", options.streams);
  report.count("kernels", rounds * options.streams);
  report.number("kernels_per_second", static_cast<double>(rounds * options.streams) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  StreamOptions options;
  workloads::Options parser("multi_stream", "Kernels on several streams with priorities and event waits between them.");
  parser.count("streams", &options.streams, 1, 256, "number of streams")
      .number("kernel-us", &options.kernel_us, 0.1, 1e6, "median card time of one kernel")
      .number("sigma", &options.log_sigma, 0, 4, "sigma of the log-normal lengths, at most 8 medians")
      .number("blocks-share", &options.blocks_share, 0.001, 64, "largest grid, as a share of the multiprocessors")
      .count("join-every", &options.join_every, 0, 1u << 20, "rounds between event joins (0: never)");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("multi_stream");
  run(common, options, report);
  report.print(common.json);
  return 0;
}
