// What one filter call costs: inside the server (body in, body out), and as a client sees it over a kept connection.
// Every node accepts, every node refuses, or half and half; the state changed since the last call (a pod came or went
// somewhere) or not. Also the memory that nodes and their pods take.
//
// The question is made as kube-scheduler makes it: the whole pod with its managedFields, and every node by name.
#include <fmt/format.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "kube/http_client.h"
#include "scheduler/extender.h"

namespace sluice::scheduler {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCardsPerNode = 4;

enum class Load { kEmpty, kHalf, kFull };
struct Scene {
  const char* name;
  Load load;
};
constexpr Scene kScenes[] = {{"accept all", Load::kEmpty}, {"refuse all", Load::kFull}, {"half and half", Load::kHalf}};

std::string node_name(size_t i) {
  return fmt::format("cn-hangzhou.192.168.{}.{}", i / 250, i % 250);
}

json::Value node_object(size_t i, int64_t shift) {
  json::Array cards;
  for (int c = 0; c < kCardsPerNode; ++c) {
    cards.push_back(json::Object{{"index", c},
                                 {"uuid", fmt::format("GPU-{:08x}-0000-0000-0000-{:012x}", i, c)},
                                 {"model", "Tesla-V100-SXM2-32GB"},
                                 {"memory_mib", 32510 + shift}});
  }
  return json::Object{
      {"metadata", json::Object{{"name", node_name(i)},
                                {"labels", json::Object{{kube::kLabelMode, "core_mem"}}},
                                {"annotations", json::Object{{kube::kAnnotationCards, json::to_string(cards)}}}}}};
}

json::Object pod_object(const std::string& name, int memory, int core, const std::string& node) {
  json::Object limits{{core::kResourceMemory, std::to_string(memory)}, {core::kResourceCore, std::to_string(core)}};
  json::Object fields;  // what an API server keeps about who set what: a quarter of a pod
  for (int i = 0; i < 24; ++i) {
    fields[fmt::format("f:spec-field-{}", i)] = json::Object{{".", json::Object{}}, {"f:name", json::Object{}}};
  }
  json::Object managed{
      {"manager", "kube-controller-manager"}, {"operation", "Update"},    {"apiVersion", "v1"},
      {"time", "2026-01-01T00:00:00Z"},       {"fieldsType", "FieldsV1"}, {"fieldsV1", std::move(fields)}};
  json::Object container{{"name", "train"},
                         {"image", "registry.example/train:1"},
                         {"command", json::Array{"python", "train.py", "--epochs", "100"}},
                         {"resources", json::Object{{"limits", limits}, {"requests", limits}}}};
  json::Object metadata{{"uid", "uid-" + name},
                        {"namespace", "default"},
                        {"name", name},
                        {"labels", json::Object{{"app", "train"}, {"batch.kubernetes.io/job-name", "train"}}},
                        {"managedFields", json::Array{std::move(managed)}}};
  return json::Object{{"metadata", std::move(metadata)},
                      {"spec", json::Object{{"nodeName", node}, {"containers", json::Array{std::move(container)}}}},
                      {"status", json::Object{{"phase", node.empty() ? "Pending" : "Running"}}}};
}

// One pod without a record per node: it counts at its worst case, on every card.
void fill(State& state, size_t nodes, Load load) {
  json::Array objects;
  json::Array pods;
  for (size_t i = 0; i < nodes; ++i) {
    objects.push_back(node_object(i, 0));
    if (load == Load::kFull || (load == Load::kHalf && i % 2 == 0))
      pods.push_back(pod_object(fmt::format("old-{}", i), 28 - static_cast<int>(i % 4), 50, node_name(i)));
  }
  state.replace_nodes(objects);
  state.replace_pods(pods);
}

std::string question(size_t nodes) {
  json::Array names;
  for (size_t i = 0; i < nodes; ++i) names.push_back(json::Value(node_name(i)));
  return json::to_string(
      json::Object{{"Pod", pod_object("new", 10, 30, "")}, {"Nodes", nullptr}, {"NodeNames", std::move(names)}});
}

double at_rank(std::vector<double>& values, double rank) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(rank * static_cast<double>(values.size() - 1))];
}

struct Times {
  double p50_ms = 0;
  double p99_ms = 0;
  double cpu_ms = 0;  // median of this thread's own time: the same beside other load
};

double cpu_now_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

template <typename Call>
Times measure(int rounds, Call&& call) {
  std::vector<double> times;
  std::vector<double> cpu;
  for (int i = 0; i < rounds; ++i) {
    double cpu_started = cpu_now_ms();
    Clock::time_point started = Clock::now();
    call(i);
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - started).count());
    cpu.push_back(cpu_now_ms() - cpu_started);
  }
  double p50 = at_rank(times, 0.5);
  return {p50, at_rank(times, 0.99), at_rank(cpu, 0.5)};
}

bool right(const ServerResponse& response, Load load, size_t nodes) {
  Result<json::Value> body = json::parse(response.body);
  if (!body || response.status != 200) return false;
  size_t fitting = body->at("NodeNames").get_array().size();
  size_t refused = body->at("FailedAndUnresolvableNodes").get_object().size();
  if (load == Load::kFull) return fitting == 0 && refused == nodes;
  return fitting == std::min<size_t>(nodes / (load == Load::kHalf ? 2 : 1), StateSettings{}.max_names) && refused == 0;
}

// The most expensive median of this number of nodes, inside the server, in processor time.
Result<double> run(size_t nodes, int rounds) {
  double worst = 0;
  std::string body = question(nodes);
  for (const Scene& scene : kScenes) {
    State state({}, std::nullopt);
    fill(state, nodes, scene.load);
    Extender extender(state, {}, [](const BindRequest&) { return std::string(); });
    if (!right(extender.filter(body), scene.load, nodes)) return internal("the answer is wrong, times mean nothing");
    // A change before each call, outside the clock: a node's cards grow by a MiB and shrink again.
    std::vector<double> changed;
    for (int i = 0; i < rounds; ++i) {
      state.node_changed(node_object(static_cast<size_t>(i) * 7919 % nodes, 1 + i % 2));
      changed.push_back(measure(1, [&](int) { (void)extender.filter(body); }).cpu_ms);
    }
    double after_change = at_rank(changed, 0.5);
    Times same = measure(rounds, [&](int) { (void)extender.filter(body); });
    auto server = HttpServer::start({}, [&](const ServerRequest& request) { return extender.filter(request.body); });
    if (!server) return server.error();
    kube::Endpoint endpoint;
    endpoint.server = fmt::format("http://127.0.0.1:{}", (*server)->port());
    kube::HttpClient client(endpoint);
    kube::HttpRequest request;
    request.method = "POST";
    request.path = "/filter";
    request.body = body;
    std::string error;
    Times outside = measure(rounds, [&](int) {
      Result<kube::HttpResponse> answer = client.send(request);
      if (!answer) error = answer.error().message;
    });
    if (!error.empty()) return unavailable(error);
    fmt::print("{:>6} {:<14} {:>8.3f} {:>8.3f} {:>8.3f} {:>17.3f} {:>11.3f}\n", nodes, scene.name, same.p50_ms,
               same.p99_ms, same.cpu_ms, after_change, outside.p50_ms);
    std::fflush(stdout);
    worst = std::max({worst, same.cpu_ms, after_change});
  }
  return worst;
}

double resident_mib() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void memory(size_t nodes) {
  double before = resident_mib();
  State state({}, std::nullopt);
  fill(state, nodes, Load::kEmpty);
  double with_nodes = resident_mib();
  size_t pods = nodes * 10;
  for (size_t i = 0; i < pods; ++i) state.pod_changed(pod_object(fmt::format("p-{}", i), 3, 10, node_name(i % nodes)));
  double with_pods = resident_mib();
  double thousands = static_cast<double>(nodes) / 1000;
  fmt::print("memory: {:.2f} MiB per 1,000 nodes of {} cards, {:.2f} MiB more with 10 pods on each\n",
             (with_nodes - before) / thousands, kCardsPerNode, (with_pods - with_nodes) / thousands);
}

int main_of(int argc, char** argv) {
  std::vector<size_t> sizes{500, 5000};
  int rounds = 200;
  double growth_limit = 0;
  double limit_ms = 0;
  CLI::App app{"Time of the extender's filter call and memory of its state."};
  app.add_option("--nodes", sizes, "numbers of node names in one call")->capture_default_str();
  app.add_option("--rounds", rounds, "calls per figure")->capture_default_str()->check(CLI::Range(1, 1'000'000));
  app.add_option("--growth-limit", growth_limit,
                 "fail when the last size costs more than this many times the first per name; 0: do not look");
  app.add_option("--limit-ms", limit_ms,
                 "fail when the median processor time inside the server is above this; 0: do not look");
  CLI11_PARSE(app, argc, argv);
  memory(*std::max_element(sizes.begin(), sizes.end()));
  fmt::print("{:>6} {:<14} {:>8} {:>8} {:>8} {:>17} {:>11}   (ms)\n", "names", "answer", "p50", "p99", "CPU p50",
             "CPU after change", "client p50");
  std::vector<double> worst;
  for (size_t nodes : sizes) {
    Result<double> one = run(nodes, rounds);
    if (!one) {
      fmt::print(stderr, "bench_filter: {}\n", one.error().message);
      return 1;
    }
    worst.push_back(*one);
  }
  double growth = worst.back() / worst.front() * static_cast<double>(sizes.front()) / static_cast<double>(sizes.back());
  fmt::print("cost per name, largest against smallest: {:.2f}\n", growth);
  if (growth_limit > 0 && growth > growth_limit) return 1;
  return limit_ms > 0 && *std::max_element(worst.begin(), worst.end()) > limit_ms ? 1 : 0;
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) {
  return sluice::scheduler::main_of(argc, argv);
}
