// A training loop as the card sees it: each step copies a batch in, runs forward and backward kernels of several
// lengths, clears and exchanges gradients on the card and copies the loss out. The host runs one step ahead of the
// card, so the card pauses only for the batch, which its copy engine brings in: sized so that a card of its own is
// about 91 % busy, the figure of a framework's benchmark on a V100, however slowly the host wakes up.
#include <algorithm>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;
using workloads::Driver;

// One step's kernels: how many of each length. Sums to 33.0 ms.
struct Layer {
  const char* name;
  double us;
  int per_step;
};
constexpr Layer kLayers[] = {{"forward_gemm", 700, 15}, {"backward_gemm", 900, 20}, {"normalise", 90, 30},
                             {"elementwise", 35, 40},   {"reduce_loss", 20, 5},     {"apply_gradients", 60, 5}};
constexpr uint64_t kMiB = 1u << 20;
struct TrainOptions {
  uint64_t ahead = 2;
  uint64_t batch_mib = 38;
  double host_ms = 0;
  uint64_t steps = 0;
};

class Training {
 public:
  Training(workloads::Card& card, const workloads::Common& common, const TrainOptions& options)
      : card_(card), common_(common), options_(options), cuda_(workloads::driver()) {
    std::vector<workloads::KernelSpec> specs;
    for (const Layer& layer : kLayers) specs.push_back({.name = layer.name, .us = layer.us});
    functions_ = card_.load(specs);
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (uint64_t i = 0; i <= options_.ahead; ++i) {
      CUevent event = nullptr;
      check(cuda_.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      ends_.push_back(event);
    }
    batch_bytes_ = std::min(options_.batch_mib * kMiB, card_.memory_bytes());
    if (batch_bytes_ > 0) check(cuda_.cuMemAllocHost(&host_, batch_bytes_), "cuMemAllocHost");
  }

  ~Training() {
    for (const CUevent event : ends_) check(cuda_.cuEventDestroy(event), "cuEventDestroy");
    check(cuda_.cuStreamDestroy(stream_), "cuStreamDestroy");
    if (host_ != nullptr) check(cuda_.cuMemFreeHost(host_), "cuMemFreeHost");
  }

  // Runs until the time or the number of steps is reached; fills the report.
  void run(workloads::Report& report) {
    const uint64_t start = workloads::now_ns();
    const uint64_t end = start + workloads::seconds_to_ns(common_.seconds);
    uint64_t steps = 0;
    std::vector<double> step_ms;
    for (uint64_t now = start; now < end && (options_.steps == 0 || steps < options_.steps);) {
      step();
      check(cuda_.cuEventRecord(ends_[steps % ends_.size()], stream_), "cuEventRecord");
      ++steps;
      // The event recorded `ahead` steps ago: the oldest that may still be under way.
      if (steps > options_.ahead) check(cuda_.cuEventSynchronize(ends_[steps % ends_.size()]), "cuEventSynchronize");
      if (options_.host_ms > 0) {
        workloads::sleep_until_ns(workloads::now_ns() + static_cast<uint64_t>(options_.host_ms * 1e6));
      }
      const uint64_t after = workloads::now_ns();
      if (step_ms.size() < kMostStepTimes) step_ms.push_back(static_cast<double>(after - now) / 1e6);
      now = after;
    }
    check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
    report.number("seconds", seconds);
    report.count("steps", steps);
    report.number("steps_per_second", static_cast<double>(steps) / seconds);
    report.number("step_p50_ms", workloads::percentile(step_ms, 0.5));
    report.number("step_p99_ms", workloads::percentile(step_ms, 0.99));
    report.count("mem_mib", common_.mem_mib);
  }

 private:
  static constexpr size_t kMostStepTimes = 1u << 20;

  void step() {
    const CUdeviceptr memory = card_.memory();
    if (batch_bytes_ > 0) check(cuda_.cuMemcpyHtoDAsync(memory, host_, batch_bytes_, stream_), "cuMemcpyHtoDAsync");
    if (card_.memory_bytes() > 0) {
      check(cuda_.cuMemsetD8Async(memory, 0, card_.memory_bytes() / 2, stream_), "cuMemsetD8Async");
    }
    for (size_t i = 0; i < std::size(kLayers); ++i) {
      for (int n = 0; n < kLayers[i].per_step; ++n) card_.launch(functions_[i], stream_);
    }
    if (card_.memory_bytes() >= 2 * batch_bytes_ && batch_bytes_ > 0) {
      const CUdeviceptr half = memory + card_.memory_bytes() / 2;
      check(cuda_.cuMemcpyDtoDAsync(half, memory, batch_bytes_, stream_), "cuMemcpyDtoDAsync");
    }
    if (batch_bytes_ > 0) check(cuda_.cuMemcpyDtoHAsync(host_, memory, 4, stream_), "cuMemcpyDtoHAsync");
  }

  workloads::Card& card_;
  const workloads::Common& common_;
  const TrainOptions& options_;
  const Driver& cuda_;
  std::vector<CUfunction> functions_;
  CUstream stream_ = nullptr;
  std::vector<CUevent> ends_;
  void* host_ = nullptr;
  uint64_t batch_bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  workloads::Options parser("train",
                            "Training benchmark: steps of kernels, memsets and copies; reports steps per second.",
                            {.seconds = 60, .mem_mib = 6144});
  parser.count("steps", &options.steps, 0, UINT64_MAX, "end after so many steps (0: only by --seconds)")
      .count("ahead", &options.ahead, 0, 64, "steps that the host may be ahead of the card (0: waits for each)")
      .count("batch-mib", &options.batch_mib, 0, 1u << 14, "bytes copied in before each step")
      .number("host-ms", &options.host_ms, 0, 1e4, "what the host does after each step");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("train");
  {
    workloads::Card card("train", common);
    Training training(card, common, options);
    training.run(report);
  }
  report.print(common.json);
  return 0;
}
