// An inference server under an open load: requests arrive by a Poisson process whether or not the server keeps up, so a
// latency counts from the arrival, waiting in the queue included. A closed loop would hide exactly what throttling
// does.
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct InferOptions {
  double rate = 50;
  double request_ms = 4;
  uint64_t kernels = 20;
  uint64_t workers = 1;
  uint64_t input_kib = 512;
};

// Arrival times in ns from the start, increasing; at most kMostRequests.
constexpr size_t kMostRequests = 10'000'000;

std::vector<uint64_t> arrivals(const InferOptions& options, double seconds, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(options.rate);
  std::vector<uint64_t> times;
  for (double t = gap(random); t < seconds && times.size() < kMostRequests; t += gap(random)) {
    times.push_back(workloads::seconds_to_ns(t));
  }
  return times;
}

// One worker's stream and buffers; serves the next unserved request until there is none.
class Worker {
 public:
  Worker(workloads::Card& card, const InferOptions& options, CUfunction function)
      : card_(card), options_(options), function_(function), cuda_(workloads::driver()) {
    card_.use();
    const size_t bytes = options_.input_kib * 1024;
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuda_.cuMemAllocHost(&host_, bytes), "cuMemAllocHost");
    check(cuda_.cuMemAlloc(&device_, bytes), "cuMemAlloc");
  }
  ~Worker() {
    card_.use();
    check(cuda_.cuStreamDestroy(stream_), "cuStreamDestroy");
    check(cuda_.cuMemFree(device_), "cuMemFree");
    check(cuda_.cuMemFreeHost(host_), "cuMemFreeHost");
  }
  Worker(const Worker&) = delete;

  void serve(const std::vector<uint64_t>& times, uint64_t start, uint64_t deadline, std::atomic<size_t>& next) {
    card_.use();
    for (size_t i = next.fetch_add(1); i < times.size(); i = next.fetch_add(1)) {
      const uint64_t arrival = start + times[i];
      if (workloads::now_ns() > deadline) break;
      if (arrival > workloads::now_ns()) workloads::sleep_until_ns(arrival);
      request();
      latencies_ms_.push_back(static_cast<double>(workloads::now_ns() - arrival) / 1e6);
    }
  }
  const std::vector<double>& latencies_ms() const { return latencies_ms_; }

 private:
  void request() {
    const size_t bytes = options_.input_kib * 1024;
    check(cuda_.cuMemcpyHtoDAsync(device_, host_, bytes, stream_), "cuMemcpyHtoDAsync");
    for (uint64_t i = 0; i < options_.kernels; ++i) card_.launch(function_, stream_);
    check(cuda_.cuMemcpyDtoHAsync(host_, device_, 4096, stream_), "cuMemcpyDtoHAsync");
    check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
  }

  workloads::Card& card_;
  const InferOptions& options_;
  CUfunction function_;
  const workloads::Driver& cuda_;
  CUstream stream_ = nullptr;
  void* host_ = nullptr;
  CUdeviceptr device_ = 0;
  std::vector<double> latencies_ms_;
};

void run(const workloads::Common& common, const InferOptions& options, workloads::Report& report) {
  workloads::Card card("infer", common);
  const double kernel_us = options.request_ms * 1000 / static_cast<double>(options.kernels);
  const CUfunction function = card.load({{.name = "infer_layer", .us = kernel_us}}).front();
  const std::vector<uint64_t> times = arrivals(options, common.seconds, common.seed);
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint64_t i = 0; i < options.workers; ++i) workers.push_back(std::make_unique<Worker>(card, options, function));
  const uint64_t start = workloads::now_ns();
  // Behind an overload the queue is worked off for as long again, then what is left counts as unserved.
  const uint64_t deadline = start + 2 * workloads::seconds_to_ns(common.seconds);
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&, w = worker.get()] { w->serve(times, start, deadline, next); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(workloads::now_ns() - start) / 1e9;
  std::vector<double> latencies;
  for (const auto& worker : workers) {
    latencies.insert(latencies.end(), worker->latencies_ms().begin(), worker->latencies_ms().end());
  }
  report.number("seconds", seconds);
  report.count("requests", times.size());
  report.count("served", latencies.size());
  report.number("requests_per_second", static_cast<double>(latencies.size()) / seconds);
  report.number("p50_ms", workloads::percentile(latencies, 0.5));
  report.number("p90_ms", workloads::percentile(latencies, 0.9));
  report.number("p99_ms", workloads::percentile(latencies, 0.99));
  report.number("max_ms", workloads::percentile(latencies, 1));
}

}  // namespace

int main(int argc, char** argv) {
  InferOptions options;
  workloads::Options parser("infer", "Inference server: requests arrive at random times; reports their latency.");
  parser.number("rate", &options.rate, 0.01, 1e6, "requests per second")
      .number("request-ms", &options.request_ms, 0.001, 1e4, "card time of one request")
      .count("kernels", &options.kernels, 1, 10000, "kernels per request")
      .count("workers", &options.workers, 1, 64, "requests served at once, each on its own stream")
      .count("input-kib", &options.input_kib, 4, 1u << 20, "bytes copied to the card per request");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("infer");
  run(common, options, report);
  report.print(common.json);
  return 0;
}
