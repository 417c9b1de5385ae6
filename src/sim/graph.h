// Graphs: nodes that programs add or captures record, and their executable form.
//
// A launch of an executable graph becomes a few commands of its stream: runs of kernels, memsets and device copies are
// one command each, laid out beforehand on the card's multiprocessors (nodes without a path between them overlap);
// copies through the host, host functions, waits and event nodes are commands of their own in between.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "sim/copy.h"
#include "sim/launch.h"

namespace sluice::sim {

enum class NodeKind {
  kKernel,
  kMemcpy,
  kMemset,
  kHost,
  kChild,
  kEmpty,
  kWaitEvent,
  kRecordEvent,
  kMemop,
  kAlloc,
  kFree
};

struct Node {
  Graph* graph = nullptr;
  NodeKind kind = NodeKind::kEmpty;
  uint32_t id = 0;
  std::vector<Node*> after;  // nodes that this one depends on
  Node* cloned_from = nullptr;
  bool enabled = true;
  // By kind.
  Launch launch;
  std::vector<std::vector<unsigned char>> parameter_values;  // storage behind kernelParams of GetParams
  std::vector<void*> parameter_pointers;
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS_v1 memset{};
  CUDA_HOST_NODE_PARAMS_v1 host{};
  Graph* child = nullptr;
  CUevent event = nullptr;
  std::vector<CUstreamBatchMemOpParams> memops;
  CUDA_MEM_ALLOC_NODE_PARAMS_v1 alloc{};
  CUdeviceptr free_address = 0;
};

struct Graph {
  uint32_t id = 0;
  uint32_t next_node = 0;
  bool child = false;  // owned by a node
  bool capturing = false;
  Graph* cloned_from = nullptr;
  std::vector<Node*> nodes;  // in order of creation
};

struct GraphExec {
  uint32_t id = 0;
  uint64_t flags = 0;
  Graph* graph = nullptr;                       // own copy
  std::vector<std::pair<Node*, Node*>> origin;  // node of the source graph, own node
  CommandRef last_launch;                       // one launch at a time
  int last_card = 0;
  Context* context = nullptr;
  bool uploaded = false;
  std::vector<CUdeviceptr> memory;  // of alloc nodes
};

struct GraphState {
  HandlePool<Graph> graphs;
  HandlePool<GraphExec> execs;
  HandlePool<Node> nodes;
  uint32_t next_graph = 0, next_exec = 0;
  std::atomic<int> captures{0};
  uint64_t next_capture = 0;
  std::vector<std::shared_ptr<Capture>> active;
};
GraphState& graph_state(Process& process);

// Nodes without a place in a graph yet; nullptr when there is no room for more.
Node* make_node(Process& process, NodeKind kind);
Node* make_kernel_node(Process& process, const Launch& launch);
Node* make_host_node(Process& process, const CUDA_HOST_NODE_PARAMS_v1& params);
Node* make_memop_node(Process& process, std::vector<CUstreamBatchMemOpParams> ops);
Node* make_copy_node(Process& process, const CUDA_MEMCPY3D& copy);
Node* make_memset_node(Process& process, const CUDA_MEMSET_NODE_PARAMS_v1& params);
Graph* make_graph(Process& process);
void destroy_graph(Process& process, Graph& graph);
void add_node(Graph& graph, Node& node, const std::vector<Node*>& after);
Graph* clone_graph(Process& process, const Graph& from, std::vector<std::pair<Node*, Node*>>* map);
// Nodes such that each comes after those it depends on; empty when there is a cycle.
std::vector<Node*> in_order(const Graph& graph);

// Captures (capture.h says what they are).
void drop_from_capture(Stream& stream);

// Done on the stream directly by graph launches (api_stream.cc).
CUresult run_memop(Call& call, Stream& stream, const CUstreamBatchMemOpParams& op);
CUresult run_host_function(Call& call, Stream& stream, std::function<void()> function);
CUresult wait_for_event(Call& call, Stream& stream, Event& event);
CUresult plan_spin(Call& call, Stream& stream, const Launch& launch, Submission* s);

CUresult launch_graph(Call& call, GraphExec& exec, Stream& stream);

}  // namespace sluice::sim
