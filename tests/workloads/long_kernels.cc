// Long kernels, a few queued at a time: the case in which a limiter can only act between units. Reports how often one
// started and the longest time between two completions, which is what a user sees as a stall.
#include <algorithm>
#include <deque>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct LongOptions {
  double kernel_ms = 50;
  uint64_t depth = 4;
  double log_sigma = 0;
  double gap_ms = 0;
  double work_ms = 1000;
  double pause_ms = 0;
};

void run(const workloads::Common& common, const LongOptions& options, workloads::Report& report) {
  workloads::Card card("long_kernels", common);
  const workloads::Driver& cuda = workloads::driver();
  const double us = options.kernel_ms * 1000;
  const CUfunction function =
      card.load({{.name = "long_kernel", .us = us, .log_sigma = options.log_sigma, .log_max_us = 4 * us}}).front();
  CUstream stream = nullptr;
  check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  std::deque<CUevent> ends;
  std::vector<double> between_ms;
  const uint64_t start = workloads::now_ns();
  const uint64_t end = start + workloads::seconds_to_ns(common.seconds);
  uint64_t kernels = 0;
  uint64_t last = start;
  uint64_t works_until = options.pause_ms > 0 ? start + static_cast<uint64_t>(options.work_ms * 1e6) : end;
  while (workloads::now_ns() < end || !ends.empty()) {
    if (ends.empty() && workloads::now_ns() >= works_until) {
      workloads::sleep_until_ns(std::min(end, workloads::now_ns() + static_cast<uint64_t>(options.pause_ms * 1e6)));
      last = workloads::now_ns();
      works_until = last + static_cast<uint64_t>(options.work_ms * 1e6);
    }
    while (ends.size() < options.depth && workloads::now_ns() < std::min(end, works_until)) {
      CUevent event = nullptr;
      check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC), "cuEventCreate");
      card.launch(function, stream);
      check(cuda.cuEventRecord(event, stream), "cuEventRecord");
      ends.push_back(event);
    }
    if (ends.empty()) continue;
    check(cuda.cuEventSynchronize(ends.front()), "cuEventSynchronize");
    check(cuda.cuEventDestroy(ends.front()), "cuEventDestroy");
    ends.pop_front();
    const uint64_t now = workloads::now_ns();
    between_ms.push_back(static_cast<double>(now - last) / 1e6);
    last = now;
    ++kernels;
    if (options.gap_ms > 0) workloads::sleep_until_ns(now + static_cast<uint64_t>(options.gap_ms * 1e6));
  }
  const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
  check(cuda.cuStreamDestroy(stream), "cuStreamDestroy");
  report.number("seconds", seconds);
  report.count("kernels", kernels);
  report.number("kernels_per_second", static_cast<double>(kernels) / seconds);
  report.number("between_p50_ms", workloads::percentile(between_ms, 0.5));
  report.number("between_max_ms", workloads::percentile(between_ms, 1));
}

}  // namespace

int main(int argc, char** argv) {
  LongOptions options;
  workloads::Options parser("long_kernels",
                            "Kernels of 10 to 100 ms with a few queued; reports the pauses between ends.");
  parser.number("kernel-ms", &options.kernel_ms, 0.01, 1e5, "card time of one kernel (median when drawn)")
      .count("depth", &options.depth, 1, 512, "kernels queued at a time")
      .number("sigma", &options.log_sigma, 0, 4, "draw lengths log-normally with this sigma, at most 4 medians")
      .number("gap-ms", &options.gap_ms, 0, 1e5, "host pause after each kernel")
      .number("work-ms", &options.work_ms, 1, 1e6, "with --pause-ms: how long it works between pauses")
      .number("pause-ms", &options.pause_ms, 0, 1e6, "pause, with nothing on the card, after each --work-ms (0: none)");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("long_kernels");
  run(common, options, report);
  report.print(common.json);
  return 0;
}
