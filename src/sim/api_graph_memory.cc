// Nodes of graphs that allocate and free memory, made by calls or by captured cuMemAllocAsync and cuMemFreeAsync.

#include "sim/capture.h"
#include "sim/graph.h"
#include "sim/mem_graph.h"

namespace sluice::sim {
namespace {

Graph* find_graph(Process& process, CUgraph handle) {
  return graph_state(process).graphs.find(reinterpret_cast<void*>(handle));
}

Node* find_node(Process& process, CUgraphNode handle) {
  return graph_state(process).nodes.find(reinterpret_cast<void*>(handle));
}

// Puts a node into a graph behind others; frees it when one of them is no node of that graph.
CUresult place_node(Process& process, CUgraphNode* out, CUgraph handle, const CUgraphNode* after, size_t count,
                    Node* node) {
  if (node == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Graph* graph = find_graph(process, handle);
  std::vector<Node*> before;
  bool valid = graph != nullptr && out != nullptr && (count == 0 || after != nullptr);
  for (size_t i = 0; valid && i < count; ++i) {
    before.push_back(find_node(process, after[i]));
    valid = before.back() != nullptr && before.back()->graph == graph;
  }
  if (!valid) {
    graph_state(process).nodes.free(node);
    return CUDA_ERROR_INVALID_VALUE;
  }
  add_node(*graph, *node, before);
  *out = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

Node* make_alloc_node(Process& process, int card, size_t bytes, CUdeviceptr* address) {
  {
    const MemoryLock lock(process);
    *address = graph_reserve(process, card, bytes);
  }
  Node* node = *address != 0 ? make_node(process, NodeKind::kAlloc) : nullptr;
  if (node == nullptr) return nullptr;
  node->alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  node->alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  node->alloc.poolProps.location.id = card;
  node->alloc.bytesize = bytes;
  node->alloc.dptr = *address;
  return node;
}

CUresult commit_nodes(Process& process, const Graph& graph, bool free_first) {
  for (const Node* node : graph.nodes) {
    CUresult result = CUDA_SUCCESS;
    if (node->child != nullptr) result = commit_nodes(process, *node->child, free_first);
    if (node->kind == NodeKind::kAlloc) {
      if (cancel_graph_free(process, node->alloc.dptr)) continue;
      if (graph_is_committed(process, node->alloc.dptr)) {
        // Memory of an earlier launch that nobody freed: an error, unless the graph frees it by itself.
        if (!free_first) return CUDA_ERROR_INVALID_VALUE;
        graph_free(process, node->alloc.dptr);
      }
      result = graph_commit(process, node->alloc.dptr);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void free_nodes(Process& process, const Graph& graph, int card, CommandRef last) {
  for (const Node* node : graph.nodes) {
    if (node->child != nullptr) free_nodes(process, *node->child, card, last);
    if (node->kind == NodeKind::kFree) graph_free_after(process, node->free_address, card, last);
  }
}

}  // namespace

CUresult commit_graph_memory(Process& process, const GraphExec& exec) {
  const MemoryLock lock(process);
  settle_graph_frees(process);
  return commit_nodes(process, *exec.graph, (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0);
}

void finish_graph_memory(Process& process, const GraphExec& exec, const Stream& stream) {
  const int card_number = stream.context->card;
  CommandRef last;
  {
    Card& card = *process.device(card_number)->card;
    Card::Guard guard(card);
    last = last_command(card, stream.record);
  }
  const MemoryLock lock(process);
  free_nodes(process, *exec.graph, card_number, last);
}

CUresult capture_memory_alloc(Call& call, Stream& stream, int card, size_t bytes, CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Node* node = make_alloc_node(call.process, card, bytes, address);
  return node == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : capture_node(stream, node);
}

CUresult capture_memory_free(Call& call, Stream& stream, CUdeviceptr address) {
  Node* node = make_node(call.process, NodeKind::kFree);
  if (node == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  node->free_address = address;
  return capture_node(stream, node);
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                    CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  SIM_ENTER(cuGraphAddMemAllocNode, kDriver, Charge::kCreate);
  if (params == nullptr || params->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUmemLocation& location = params->poolProps.location;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || call.process.device(location.id) == nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Node* node = make_alloc_node(call.process, location.id, params->bytesize, &params->dptr);
  return place_node(call.process, out, graph, after, count, node);
}

CUresult sim_cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  SIM_ENTER(cuGraphMemAllocNodeGetParams, kDriver);
  const Node* node = find_node(call.process, handle);
  if (node == nullptr || node->kind != NodeKind::kAlloc || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *params = node->alloc;
  return CUDA_SUCCESS;
}

CUresult sim_cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count,
                                   CUdeviceptr address) {
  SIM_ENTER(cuGraphAddMemFreeNode, kDriver, Charge::kCreate);
  Node* node = make_node(call.process, NodeKind::kFree);
  if (node != nullptr) node->free_address = address;
  return place_node(call.process, out, graph, after, count, node);
}

CUresult sim_cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* address) {
  SIM_ENTER(cuGraphMemFreeNodeGetParams, kDriver);
  const Node* node = find_node(call.process, handle);
  if (node == nullptr || node->kind != NodeKind::kFree || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *address = node->free_address;
  return CUDA_SUCCESS;
}

}  // extern "C"
