// Memory that belongs to graphs: allocation nodes added one way or another, or captured from a stream. It appears when
// the graph is instantiated or first launched, so a refusal may come from either call.
#include "allocations/allocation.h"

namespace workloads::allocations {
namespace {

CUmemPoolProps on_card(const Request& request) {
  CUmemPoolProps result{};
  result.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  result.location.id = request.device;
  return result;
}

// Instantiates and launches once on the null stream, then destroys everything and trims the device's graph memory.
CUresult launch_once(const Request& request, CUgraph graph) {
  const Driver& cuda = driver();
  CUgraphExec exec = nullptr;
  CUresult result = cuda.cuGraphInstantiateWithFlags(&exec, graph, 0);
  if (result == CUDA_SUCCESS) {
    result = cuda.cuGraphLaunch(exec, nullptr);
    if (result == CUDA_SUCCESS) result = cuda.cuStreamSynchronize(nullptr);
    const CUresult destroyed = cuda.cuGraphExecDestroy(exec);
    if (result == CUDA_SUCCESS) result = destroyed;
  }
  WORKLOAD_TRY(cuda.cuGraphDestroy(graph));
  WORKLOAD_TRY(cuda.cuDeviceGraphMemTrim(request.device));
  return result;
}

CUresult with_free(const Request& request, CUgraph graph, CUgraphNode allocation, CUdeviceptr address) {
  CUgraphNode node = nullptr;
  const CUresult result = driver().cuGraphAddMemFreeNode(&node, graph, &allocation, 1, address);
  if (result != CUDA_SUCCESS) {
    WORKLOAD_TRY(driver().cuGraphDestroy(graph));
    return result;
  }
  return launch_once(request, graph);
}

CUresult add_alloc_node(const Request& request) {
  CUgraph graph = nullptr;
  WORKLOAD_TRY(driver().cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps = on_card(request);
  wanted.bytesize = request.bytes;
  CUgraphNode node = nullptr;
  const CUresult result = driver().cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &wanted);
  if (result != CUDA_SUCCESS) {
    WORKLOAD_TRY(driver().cuGraphDestroy(graph));
    return result;
  }
  return with_free(request, graph, node, wanted.dptr);
}

CUresult add_node(const Request& request) {
  if (driver().cuGraphAddNode == nullptr) return CUDA_ERROR_NOT_FOUND;
  CUgraph graph = nullptr;
  WORKLOAD_TRY(driver().cuGraphCreate(&graph, 0));
  CUgraphNodeParams wanted{};
  wanted.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  wanted.alloc.poolProps = on_card(request);
  wanted.alloc.bytesize = request.bytes;
  CUgraphNode node = nullptr;
  const CUresult result = driver().cuGraphAddNode(&node, graph, nullptr, 0, &wanted);
  if (result != CUDA_SUCCESS) {
    WORKLOAD_TRY(driver().cuGraphDestroy(graph));
    return result;
  }
  return with_free(request, graph, node, wanted.alloc.dptr);
}

CUresult captured(const Request& request) {
  const Driver& cuda = driver();
  CUstream stream = nullptr;
  WORKLOAD_TRY(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUgraph graph = nullptr;
  CUresult result = cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr address = 0;
    result = cuda.cuMemAllocAsync(&address, request.bytes, stream);
    if (result == CUDA_SUCCESS) result = cuda.cuMemFreeAsync(address, stream);
    const CUresult ended = cuda.cuStreamEndCapture(stream, &graph);
    if (result == CUDA_SUCCESS) result = ended;
  }
  if (result == CUDA_SUCCESS) {
    result = launch_once(request, graph);
  } else if (graph != nullptr) {
    WORKLOAD_TRY(cuda.cuGraphDestroy(graph));
  }
  const CUresult destroyed = cuda.cuStreamDestroy(stream);
  return result != CUDA_SUCCESS ? result : destroyed;
}

constexpr Way kWays[] = {
    {"cuGraphAddMemAllocNode", Kind::kDevice, add_alloc_node},
    {"cuGraphAddNode of an allocation", Kind::kDevice, add_node},
    {"cuMemAllocAsync captured into a graph", Kind::kDevice, captured},
};

}  // namespace

std::span<const Way> graph_ways() {
  return kWays;
}

}  // namespace workloads::allocations
