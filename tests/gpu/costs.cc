// What markers cost on this card: recording and querying events, and what a marker every 1, 8 or 64 kernels, or after
// every replay of a graph, adds to the host's launches and to the card's time. Variants alternate round by round, so
// that a clock that drifts meets all of them; minimum and median over the rounds are printed in microseconds.
#include <array>
#include <cstdio>

#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

constexpr int kBatch = 64;
constexpr int kKernels = 256;  // of one round; below the length of a stream's queue
constexpr int kNodes = 100;
constexpr int kReplays = 20;

struct Series {
  std::vector<double> values;
  void add(double us) { values.push_back(us); }
  std::string json() const {
    char text[96];
    std::snprintf(text, sizeof text, "{\"min_us\": %.4f, \"median_us\": %.4f}", workloads::percentile(values, 0),
                  workloads::percentile(values, 0.5));
    return text;
  }
};

double us_since(uint64_t start) {
  return static_cast<double>(workloads::now_ns() - start) / 1e3;
}

class Costs {
 public:
  Costs(workloads::Card& card, double kernel_us) : card_(card), cuda_(workloads::driver()) {
    const auto functions = card.load({{.name = "short_kernel", .us = kernel_us}, {.name = "long_kernel", .us = 20000}});
    short_ = functions[0];
    long_ = functions[1];
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (CUevent& event : events_) check(cuda_.cuEventCreate(&event, 0), "cuEventCreate");
    for (CUevent* event : {&first_, &last_}) check(cuda_.cuEventCreate(event, 0), "cuEventCreate");
    build_graph();
    card.launch(short_, stream_);
    wait();
  }

  void round() {
    records();
    queries();
    write_values();
    for (size_t i = 0; i < kEvery.size(); ++i) kernels(i);
    for (size_t with_marker : {0u, 1u}) graphs(with_marker);
  }

  void report(workloads::Report& report) const {
    report.raw("event_record", record_.json());
    report.raw("event_query_done", query_done_.json());
    report.raw("event_query_running", query_running_.json());
    report.raw("marker_pair_on_card", pair_.json());
    report.raw("stream_write_value", write_value_.values.empty() ? "null" : write_value_.json());
    for (size_t i = 0; i < kEvery.size(); ++i) {
      const std::string name = kEvery[i] == 0 ? "plain" : "marker_every_" + std::to_string(kEvery[i]);
      report.raw(("launch_" + name + "_host").c_str(), host_[i].json());
      report.raw(("kernel_" + name + "_card").c_str(), on_card_[i].json());
    }
    report.raw("graph_plain_card", graph_[0].json());
    report.raw("graph_marked_card", graph_[1].json());
  }

 private:
  static constexpr std::array<int, 4> kEvery = {0, 1, 8, 64};

  void wait() { check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  void record(CUevent event) { check(cuda_.cuEventRecord(event, stream_), "cuEventRecord"); }
  double elapsed_us(CUevent from, CUevent to) {
    float ms = 0;
    check(cuda_.cuEventElapsedTime(&ms, from, to), "cuEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }

  void build_graph() {
    CUgraph graph = nullptr;
    check(cuda_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (int i = 0; i < kNodes; ++i) card_.launch(short_, stream_);
    check(cuda_.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    check(cuda_.cuGraphInstantiateWithFlags(&exec_, graph, 0), "cuGraphInstantiateWithFlags");
    check(cuda_.cuGraphDestroy(graph), "cuGraphDestroy");
  }

  void records() {
    const uint64_t start = workloads::now_ns();
    for (CUevent event : events_) record(event);
    record_.add(us_since(start) / kBatch);
    wait();
    for (int i = 0; i + 1 < kBatch; i += 2) pair_.add(elapsed_us(events_[i], events_[i + 1]));
  }

  void queries() {
    uint64_t start = workloads::now_ns();
    for (CUevent event : events_) check(cuda_.cuEventQuery(event), "cuEventQuery");
    query_done_.add(us_since(start) / kBatch);
    card_.launch(long_, stream_);
    record(last_);
    start = workloads::now_ns();
    int asked = 0;
    while (asked < kBatch && cuda_.cuEventQuery(last_) == CUDA_ERROR_NOT_READY) ++asked;
    if (asked == kBatch) query_running_.add(us_since(start) / kBatch);
    wait();
  }

  void write_values() {
    if (cuda_.cuStreamWriteValue32 == nullptr || card_.memory() == 0) return;
    const uint64_t start = workloads::now_ns();
    for (int i = 0; i < kBatch; ++i) {
      if (cuda_.cuStreamWriteValue32(stream_, card_.memory(), static_cast<cuuint32_t>(i), 0) != CUDA_SUCCESS) return;
    }
    write_value_.add(us_since(start) / kBatch);
    wait();
  }

  void kernels(size_t variant) {
    const int every = kEvery[variant];
    record(first_);
    const uint64_t start = workloads::now_ns();
    for (int i = 0; i < kKernels; ++i) {
      card_.launch(short_, stream_);
      if (every != 0 && i % every == 0) record(events_[i % kBatch]);
    }
    host_[variant].add(us_since(start) / kKernels);
    record(last_);
    wait();
    on_card_[variant].add(elapsed_us(first_, last_) / kKernels);
  }

  void graphs(size_t with_marker) {
    record(first_);
    for (int i = 0; i < kReplays; ++i) {
      check(cuda_.cuGraphLaunch(exec_, stream_), "cuGraphLaunch");
      if (with_marker != 0) record(events_[i]);
    }
    record(last_);
    wait();
    graph_[with_marker].add(elapsed_us(first_, last_) / kReplays);
  }

  workloads::Card& card_;
  const workloads::Driver& cuda_;
  CUfunction short_ = nullptr, long_ = nullptr;
  CUstream stream_ = nullptr;
  CUgraphExec exec_ = nullptr;
  CUevent events_[kBatch] = {};
  CUevent first_ = nullptr, last_ = nullptr;
  Series record_, query_done_, query_running_, pair_, write_value_;
  std::array<Series, kEvery.size()> host_, on_card_;
  std::array<Series, 2> graph_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t rounds = 30;
  double kernel_us = 5;
  workloads::Options parser("gpu_costs", "What event records, queries and markers cost on this card.");
  parser.count("rounds", &rounds, 1, 10000, "rounds over all variants")
      .number("kernel-us", &kernel_us, 0.5, 1e4, "card time of one short kernel");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("gpu_costs");
  report.count("rounds", rounds);
  report.number("kernel_us", kernel_us);
  {
    workloads::Card card("gpu_costs", common);
    Costs costs(card, kernel_us);
    for (uint64_t i = 0; i < rounds; ++i) costs.round();
    costs.report(report);
  }
  report.print(common.json);
  return 0;
}
