// Asks the driver for memory in every way it offers and reports each answer by name: with --size-mib just above a
// container's limit every way of kind device must be refused, just below it every one must be served, and in either
// case what the card holds afterwards is what it held before.
#include <cstdio>
#include <cstring>

#include "allocations/allocation.h"
#include "common/card.h"
#include "common/options.h"
#include "common/report.h"

namespace workloads::allocations {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kDevice:
      return "device";
    case Kind::kManaged:
      return "managed";
    case Kind::kCode:
      return "code";
    case Kind::kHeap:
      return "heap";
    case Kind::kContext:
      return "context";
    case Kind::kHost:
      return "host";
    case Kind::kAddress:
      return "address";
  }
  return "unknown";
}

CUresult touch(CUdeviceptr address, uint64_t bytes) {
  WORKLOAD_TRY(driver().cuMemsetD8(address, 1, 1));
  if (bytes > 1) WORKLOAD_TRY(driver().cuMemsetD8(address + bytes - 1, 1, 1));
  return driver().cuCtxSynchronize();
}

}  // namespace workloads::allocations

namespace {

using workloads::allocations::Request;
using workloads::allocations::Way;

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const auto table :
       {workloads::allocations::linear_ways, workloads::allocations::pool_ways, workloads::allocations::virtual_ways,
        workloads::allocations::array_ways, workloads::allocations::graph_ways, workloads::allocations::context_ways}) {
    for (const Way& way : table()) ways.push_back(way);
  }
  return ways;
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  workloads::check(workloads::driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

std::string run_way(const Way& way, const Request& request) {
  workloads::check(workloads::driver().cuCtxSetCurrent(request.context), "cuCtxSetCurrent");
  const CUresult result = way.run(request);
  workloads::check(workloads::driver().cuCtxSetCurrent(request.context), "cuCtxSetCurrent");
  const char* name = nullptr;
  if (workloads::driver().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  return "{\"name\":" + workloads::json_quote(way.name) +
         ",\"kind\":" + workloads::json_quote(workloads::allocations::kind_name(way.kind)) +
         ",\"result\":" + std::to_string(static_cast<int>(result)) + ",\"result_name\":" + workloads::json_quote(name) +
         ",\"free_mib_after\":" + std::to_string(free_bytes() >> 20) + "}";
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t size_mib = 256;
  uint64_t rounds = 1;
  std::string only;
  bool list = false;
  workloads::Options parser(
      "alloc_torture", "Allocates in every way that the driver offers; reports each answer by name.", {.mem_mib = 0});
  parser.count("size-mib", &size_mib, 2, 1u << 24, "what each way asks for, rounded up to 2 MiB")
      .count("rounds", &rounds, 1, 1u << 20, "how often all ways are tried, the last answers are reported")
      .text("call", &only, "only ways whose name begins so")
      .flag("list", &list, "print the names and kinds, use no card");
  const workloads::Common& common = parser.parse(argc, argv);
  if (list) {
    for (const Way& way : all_ways()) std::printf("%s\t%s\n", workloads::allocations::kind_name(way.kind), way.name);
    return 0;
  }
  std::vector<Way> ways;
  for (const Way& way : all_ways()) {
    if (std::strncmp(way.name, only.c_str(), only.size()) == 0) ways.push_back(way);
  }
  if (ways.empty()) {
    std::fprintf(stderr, "alloc_torture: --call %s: no way begins so; --list prints all\n", only.c_str());
    return workloads::kExitUsage;
  }
  workloads::Report report("alloc_torture");
  {
    workloads::Card card("alloc_torture", common);
    const Request request{.bytes = (size_mib + 1) / 2 * 2 << 20, .device = card.device(), .context = card.context()};
    report.count("size_mib", request.bytes >> 20);
    report.count("free_mib_before", free_bytes() >> 20);
    std::string calls;
    for (uint64_t round = 0; round < rounds; ++round) {
      calls.clear();
      for (const Way& way : ways) calls += (calls.empty() ? "" : ",") + run_way(way, request);
    }
    report.raw("calls", "[" + calls + "]");
    report.count("free_mib_after", free_bytes() >> 20);
  }
  report.print(common.json);
  return 0;
}
