// Ranks on several cards that wait for each other after every step, as an all-reduce makes them: the waiting is done by
// the cards, either by kernels that spin until all ranks have arrived (as NCCL's do) or by waits in the streams. A
// limiter that holds one rank back makes the others burn their budget, and one that never lets a rank through hangs
// all.
#include <barrier>
#include <thread>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct CollectiveOptions {
  uint64_t cards = 2;
  double compute_ms = 4;
  uint64_t kernels = 8;
  double exchange_us = 200;
  uint64_t steps = 0;
  std::string wait = "stream";
};

// Words in host memory that all cards see: word r holds the last step that rank r reached.
class Flags {
 public:
  explicit Flags(uint64_t ranks) {
    check(workloads::driver().cuMemHostAlloc(&host_, ranks * kStride,
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          "cuMemHostAlloc");
    for (uint64_t r = 0; r < ranks; ++r) *reinterpret_cast<uint32_t*>(static_cast<char*>(host_) + r * kStride) = 0;
  }
  ~Flags() { check(workloads::driver().cuMemFreeHost(host_), "cuMemFreeHost"); }
  Flags(const Flags&) = delete;

  // Unlike that of any other run.
  uint64_t id() const { return id_; }
  // Address of a rank's word for the card that is current on the calling thread.
  CUdeviceptr word(uint64_t rank) const {
    CUdeviceptr address = 0;
    check(workloads::driver().cuMemHostGetDevicePointer(&address, host_, 0), "cuMemHostGetDevicePointer");
    return address + rank * kStride;
  }

 private:
  static constexpr uint64_t kStride = 128;
  void* host_ = nullptr;
  uint64_t id_ = workloads::now_ns();
};

class Rank {
 public:
  Rank(const workloads::Common& common, const CollectiveOptions& options, uint64_t rank)
      : options_(options), rank_(rank), cuda_(workloads::driver()), card_("collective", on_card(common, rank)) {
    const double compute_us = options.compute_ms * 1000 / static_cast<double>(options.kernels);
    const auto functions = card_.load(
        {{.name = "rank_compute", .us = compute_us}, {.name = "exchange_gradients", .us = options.exchange_us}});
    compute_ = functions[0];
    exchange_ = functions[1];
    if (options_.wait == "kernel") arrive_ = card_.load_arrival();
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  void close() {
    card_.use();
    check(cuda_.cuStreamDestroy(stream_), "cuStreamDestroy");
  }

  // Step `number` counts from 1. Returns when this rank's card has finished it.
  void step(const Flags& flags, uint32_t number) {
    card_.use();
    for (uint64_t i = 0; i < options_.kernels; ++i) card_.launch(compute_, stream_);
    if (options_.wait == "kernel") {
      card_.launch_arrival(arrive_, stream_, flags.id(), flags.word(0), rank_, options_.cards, number);
    } else {
      check(cuda_.cuStreamWriteValue32(stream_, flags.word(rank_), number, CU_STREAM_WRITE_VALUE_DEFAULT),
            "cuStreamWriteValue32");
      for (uint64_t other = 0; other < options_.cards; ++other) {
        if (other == rank_) continue;
        check(cuda_.cuStreamWaitValue32(stream_, flags.word(other), number, CU_STREAM_WAIT_VALUE_GEQ),
              "cuStreamWaitValue32");
      }
    }
    card_.launch(exchange_, stream_);
    check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }
  workloads::Card& card() { return card_; }

 private:
  static workloads::Common on_card(workloads::Common common, uint64_t rank) {
    common.device += static_cast<int>(rank);
    return common;
  }

  const CollectiveOptions& options_;
  uint64_t rank_;
  const workloads::Driver& cuda_;
  workloads::Card card_;
  CUfunction compute_ = nullptr;
  CUfunction exchange_ = nullptr;
  CUfunction arrive_ = nullptr;
  CUstream stream_ = nullptr;
};

void run(const workloads::Common& common, const CollectiveOptions& options, workloads::Report& report) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (uint64_t i = 0; i < options.cards; ++i) ranks.push_back(std::make_unique<Rank>(common, options, i));
  ranks.front()->card().use();
  auto flags = std::make_unique<Flags>(options.cards);
  const uint64_t start = workloads::now_ns();
  const uint64_t end = start + workloads::seconds_to_ns(common.seconds);
  // All ranks agree on whether there is another step before any of them launches it; else one would wait for ever.
  bool again = true;
  uint32_t steps = 0;
  std::barrier agree(static_cast<std::ptrdiff_t>(options.cards), [&]() noexcept {
    again = workloads::now_ns() < end && (options.steps == 0 || steps < options.steps);
    if (again) ++steps;
  });
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, r = rank.get()] {
      for (agree.arrive_and_wait(); again; agree.arrive_and_wait()) r->step(*flags, steps);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
  ranks.front()->card().use();
  flags.reset();
  for (auto& rank : ranks) rank->close();
  report.number("seconds", seconds);
  report.count("cards", options.cards);
  report.text("wait", options.wait);
  report.count("steps", steps);
  report.number("steps_per_second", steps / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  CollectiveOptions options;
  workloads::Options parser("collective", "One rank per card; after each step all wait for each other on the card.");
  parser.count("cards", &options.cards, 1, 16, "number of ranks, on cards --device, --device + 1, ...")
      .number("compute-ms", &options.compute_ms, 0.01, 1e4, "card time of a step's kernels")
      .count("kernels", &options.kernels, 1, 10000, "kernels per step")
      .number("exchange-us", &options.exchange_us, 0.1, 1e6, "card time of the exchange after the wait")
      .count("steps", &options.steps, 0, UINT32_MAX, "end after so many steps (0: only by --seconds)")
      .choice("wait", &options.wait, {"stream", "kernel"}, "how cards wait: wait-values, or kernels that spin");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("collective");
  run(common, options, report);
  report.print(common.json);
  return 0;
}
