// Text generation as the card sees it: a prefill of a few long kernels per prompt, then one replay of a graph of about
// a thousand short kernels per token, with the host waiting for each token. Decoding is launch-light and graph-heavy:
// a limiter that ignores cuGraphLaunch does not limit it at all.
#include "common/card.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"

namespace {

using workloads::check;

struct LlmOptions {
  uint64_t nodes = 1000;
  double node_us = 8;
  uint64_t tokens = 64;
  double prefill_ms = 40;
  std::string build = "capture";
};

class Generator {
 public:
  Generator(workloads::Card& card, const LlmOptions& options)
      : card_(card), options_(options), cuda_(workloads::driver()) {
    const double chunk_us = options_.prefill_ms * 1000 / kPrefillKernels;
    const auto functions =
        card_.load({{.name = "prefill_chunk", .us = chunk_us}, {.name = "decode_layer", .us = options_.node_us}});
    prefill_ = functions[0];
    decode_ = functions[1];
    check(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const CUgraph graph = options_.build == "capture" ? captured() : added();
    check(cuda_.cuGraphInstantiateWithFlags(&exec_, graph, 0), "cuGraphInstantiateWithFlags");
    check(cuda_.cuGraphDestroy(graph), "cuGraphDestroy");
  }
  ~Generator() {
    check(cuda_.cuGraphExecDestroy(exec_), "cuGraphExecDestroy");
    check(cuda_.cuStreamDestroy(stream_), "cuStreamDestroy");
  }
  Generator(const Generator&) = delete;

  void run(double seconds, workloads::Report& report) {
    const uint64_t start = workloads::now_ns();
    const uint64_t end = start + workloads::seconds_to_ns(seconds);
    uint64_t prompts = 0;
    while (workloads::now_ns() < end) {
      prompt(end);
      ++prompts;
    }
    const double elapsed = static_cast<double>(workloads::now_ns() - start) / 1e9;
    report.number("seconds", elapsed);
    report.count("prompts", prompts);
    report.count("tokens", tokens_);
    report.number("tokens_per_second", static_cast<double>(tokens_) / elapsed);
    report.number("prefill_p50_ms", workloads::percentile(prefill_ms_, 0.5));
    report.number("token_p50_ms", workloads::percentile(token_ms_, 0.5));
    report.number("token_p99_ms", workloads::percentile(token_ms_, 0.99));
  }

 private:
  static constexpr int kPrefillKernels = 50;
  static constexpr size_t kMostTimes = 1u << 22;

  CUgraph captured() {
    check(cuda_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (uint64_t i = 0; i < options_.nodes; ++i) card_.launch(decode_, stream_);
    CUgraph graph = nullptr;
    check(cuda_.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    return graph;
  }

  CUgraph added() {
    CUgraph graph = nullptr;
    check(cuda_.cuGraphCreate(&graph, 0), "cuGraphCreate");
    CUdeviceptr address = 0;
    void* parameters[] = {&address};
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = decode_;
    node.gridDimX = static_cast<unsigned>(card_.multiprocessors());
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.blockDimX = 256;
    node.kernelParams = parameters;
    CUgraphNode previous = nullptr;
    for (uint64_t i = 0; i < options_.nodes; ++i) {
      CUgraphNode added_node = nullptr;
      check(cuda_.cuGraphAddKernelNode(&added_node, graph, &previous, i == 0 ? 0 : 1, &node), "cuGraphAddKernelNode");
      previous = added_node;
    }
    return graph;
  }

  void prompt(uint64_t end) {
    uint64_t begin = workloads::now_ns();
    for (int i = 0; i < kPrefillKernels; ++i) card_.launch(prefill_, stream_);
    check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    note(prefill_ms_, begin);
    for (uint64_t i = 0; i < options_.tokens && workloads::now_ns() < end; ++i) {
      begin = workloads::now_ns();
      check(cuda_.cuGraphLaunch(exec_, stream_), "cuGraphLaunch");
      check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
      note(token_ms_, begin);
      ++tokens_;
    }
  }

  static void note(std::vector<double>& times, uint64_t begin) {
    if (times.size() < kMostTimes) times.push_back(static_cast<double>(workloads::now_ns() - begin) / 1e6);
  }

  workloads::Card& card_;
  const LlmOptions& options_;
  const workloads::Driver& cuda_;
  CUfunction prefill_ = nullptr;
  CUfunction decode_ = nullptr;
  CUstream stream_ = nullptr;
  CUgraphExec exec_ = nullptr;
  uint64_t tokens_ = 0;
  std::vector<double> prefill_ms_;
  std::vector<double> token_ms_;
};

}  // namespace

int main(int argc, char** argv) {
  LlmOptions options;
  workloads::Options parser("llm", "Text generation: prefill by kernels, decode by replaying one graph per token.");
  parser.count("nodes", &options.nodes, 1, 100000, "kernels in the decode graph")
      .number("node-us", &options.node_us, 0.1, 1e6, "card time of one of them")
      .count("tokens", &options.tokens, 1, 1u << 20, "tokens per prompt")
      .number("prefill-ms", &options.prefill_ms, 0.05, 1e5, "card time of a prefill")
      .choice("build", &options.build, {"capture", "nodes"}, "how the graph is made: stream capture or node by node");
  const workloads::Common& common = parser.parse(argc, argv);
  workloads::Report report("llm");
  {
    workloads::Card card("llm", common);
    Generator(card, options).run(common.seconds, report);
  }
  report.print(common.json);
  return 0;
}
