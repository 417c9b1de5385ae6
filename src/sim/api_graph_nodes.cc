// The calls that make nodes of graphs and change what they do, in graphs and in executable graphs.
#include <algorithm>
#include <cstring>

#include "sim/api_graph.h"

namespace sluice::sim {

CUresult place(Process& process, CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* after, size_t count,
               Node* node) {
  if (node == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  GraphState& state = graph_state(process);
  Graph* graph = graph_of(process, graph_handle);
  std::vector<Node*> before;
  bool good = graph != nullptr && out != nullptr && (count == 0 || after != nullptr);
  for (size_t i = 0; good && i < count; ++i) {
    Node* n = node_of(process, after[i]);
    good = n != nullptr && n->graph == graph && std::find(before.begin(), before.end(), n) == before.end();
    before.push_back(n);
  }
  if (!good) {
    state.nodes.free(node);
    return CUDA_ERROR_INVALID_VALUE;
  }
  add_node(*graph, *node, before);
  *out = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

Node* exec_node(Process& process, CUgraphExec handle, CUgraphNode node) {
  GraphExec* exec = exec_of(process, handle);
  if (exec == nullptr) return nullptr;
  const auto at = std::find_if(exec->origin.begin(), exec->origin.end(),
                               [&](const auto& pair) { return pair.first == reinterpret_cast<Node*>(node); });
  return at == exec->origin.end() ? nullptr : at->second;
}

CUgraphNodeType type_of(const Node& node) {
  switch (node.kind) {
    case NodeKind::kKernel:
      return CU_GRAPH_NODE_TYPE_KERNEL;
    case NodeKind::kMemcpy:
      return CU_GRAPH_NODE_TYPE_MEMCPY;
    case NodeKind::kMemset:
      return CU_GRAPH_NODE_TYPE_MEMSET;
    case NodeKind::kHost:
      return CU_GRAPH_NODE_TYPE_HOST;
    case NodeKind::kChild:
      return CU_GRAPH_NODE_TYPE_GRAPH;
    case NodeKind::kEmpty:
      return CU_GRAPH_NODE_TYPE_EMPTY;
    case NodeKind::kWaitEvent:
      return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case NodeKind::kRecordEvent:
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case NodeKind::kMemop:
      return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case NodeKind::kAlloc:
      return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case NodeKind::kFree:
      return CU_GRAPH_NODE_TYPE_MEM_FREE;
  }
  return CU_GRAPH_NODE_TYPE_EMPTY;
}

namespace {

template <typename Params>
CUresult kernel_launch(Process& process, const Params& p, CUfunction handle, Launch* launch) {
  launch->function = find_function(process, handle);
  if (launch->function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const unsigned grid[3] = {p.gridDimX, p.gridDimY, p.gridDimZ}, block[3] = {p.blockDimX, p.blockDimY, p.blockDimZ};
  std::memcpy(launch->grid, grid, sizeof grid);
  std::memcpy(launch->block, block, sizeof block);
  launch->shared_bytes = p.sharedMemBytes;
  if (const CUresult result = read_parameters(*launch->function, p.kernelParams, p.extra, &launch->parameters);
      result != CUDA_SUCCESS) {
    return result;
  }
  Card& card = *process.device(launch->function->module->context->card)->card;
  return check_launch(card, *launch);
}
CUfunction handle_of(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return p.func;
}
template <typename Params>
CUfunction handle_of(const Params& p) {
  return p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
}

template <typename Params>
CUresult add_kernel(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, const Params* params,
                    const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Launch launch;
  if (const CUresult result = kernel_launch(call.process, *params, handle_of(*params), &launch); result != CUDA_SUCCESS)
    return result;
  ObjectsLock objects(call.process);
  return place(call.process, out, graph, after, count, make_kernel_node(call.process, launch));
}

template <typename Params>
CUresult set_kernel(Process& process, Node* node, const Params* params) {
  if (node == nullptr || params == nullptr || node->kind != NodeKind::kKernel) return CUDA_ERROR_INVALID_VALUE;
  Launch launch;
  if (const CUresult result = kernel_launch(process, *params, handle_of(*params), &launch); result != CUDA_SUCCESS)
    return result;
  node->launch = launch;
  return CUDA_SUCCESS;
}

template <typename Params>
CUresult get_kernel(Node* node, Params* params) {
  if (node == nullptr || params == nullptr || node->kind != NodeKind::kKernel) return CUDA_ERROR_INVALID_VALUE;
  std::memset(static_cast<void*>(params), 0, sizeof *params);
  const Launch& l = node->launch;
  params->func = reinterpret_cast<CUfunction>(l.function);
  params->gridDimX = l.grid[0], params->gridDimY = l.grid[1], params->gridDimZ = l.grid[2];
  params->blockDimX = l.block[0], params->blockDimY = l.block[1], params->blockDimZ = l.block[2];
  params->sharedMemBytes = l.shared_bytes;
  node->parameter_values.clear();
  node->parameter_pointers.clear();
  for (const KernelInfo::Parameter& p : l.function->kernel.parameters) {
    if (p.offset + p.bytes > l.parameters.size()) break;
    node->parameter_values.emplace_back(l.parameters.begin() + p.offset, l.parameters.begin() + p.offset + p.bytes);
  }
  for (auto& value : node->parameter_values) node->parameter_pointers.push_back(value.data());
  params->kernelParams = node->parameter_pointers.empty() ? nullptr : node->parameter_pointers.data();
  return CUDA_SUCCESS;
}

CUresult add_any(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t count, CUgraphNodeParams* p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return add_kernel(out, graph, after, count, &p->kernel, "cuGraphAddNode");
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return sim_cuGraphAddMemcpyNode(out, graph, after, count, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v1 m{p->memset.dst,         p->memset.pitch, p->memset.value,
                                         p->memset.elementSize, p->memset.width, p->memset.height};
      return sim_cuGraphAddMemsetNode(out, graph, after, count, &m, p->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS_v1 h{p->host.fn, p->host.userData};
      return sim_cuGraphAddHostNode(out, graph, after, count, &h);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return sim_cuGraphAddChildGraphNode(out, graph, after, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return sim_cuGraphAddEmptyNode(out, graph, after, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return sim_cuGraphAddEventWaitNode(out, graph, after, count, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return sim_cuGraphAddEventRecordNode(out, graph, after, count, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS_v1 a{p->alloc.poolProps, p->alloc.accessDescs, p->alloc.accessDescCount,
                                      p->alloc.bytesize, 0};
      const CUresult result = sim_cuGraphAddMemAllocNode(out, graph, after, count, &a);
      p->alloc.dptr = a.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return sim_cuGraphAddMemFreeNode(out, graph, after, count, p->free.dptr);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult set_any(Process& process, Node* node, CUgraphNodeParams* p) {
  if (node == nullptr || p == nullptr || type_of(*node) != p->type) return CUDA_ERROR_INVALID_VALUE;
  switch (node->kind) {
    case NodeKind::kKernel:
      return set_kernel(process, node, &p->kernel);
    case NodeKind::kMemcpy:
      node->copy = p->memcpy.copyParams;
      return CUDA_SUCCESS;
    case NodeKind::kMemset:
      node->memset = {p->memset.dst,         p->memset.pitch, p->memset.value,
                      p->memset.elementSize, p->memset.width, p->memset.height};
      return CUDA_SUCCESS;
    case NodeKind::kHost:
      node->host = {p->host.fn, p->host.userData};
      return CUDA_SUCCESS;
    case NodeKind::kWaitEvent:
      node->event = p->eventWait.event;
      return CUDA_SUCCESS;
    case NodeKind::kRecordEvent:
      node->event = p->eventRecord.event;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

template <typename Value>
CUresult get_value(CUgraphNode handle, NodeKind kind, Value Node::* member, Value* out, const char* name) {
  Call call(name, kDriver);
  if (call.result != CUDA_SUCCESS) return call.result;
  Node* node = node_of(call.process, handle);
  if (node == nullptr || out == nullptr || node->kind != kind) return CUDA_ERROR_INVALID_VALUE;
  *out = node->*member;
  return CUDA_SUCCESS;
}
template <typename Value>
CUresult set_value(Node* node, NodeKind kind, Value Node::* member, const Value* in) {
  if (node == nullptr || in == nullptr || node->kind != kind) return CUDA_ERROR_INVALID_VALUE;
  node->*member = *in;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuGraphAddKernelNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                  const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  return add_kernel(out, g, after, n, p, "cuGraphAddKernelNode");
}
CUresult sim_cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                     const CUDA_KERNEL_NODE_PARAMS* p) {
  return add_kernel(out, g, after, n, p, "cuGraphAddKernelNode_v2");
}
CUresult sim_cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                  const CUDA_MEMCPY3D* p, CUcontext) {
  SIM_ENTER(cuGraphAddMemcpyNode, kContext);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyPlan plan;
  if (const CUresult result = plan_copy(call.process, *p, &plan); result != CUDA_SUCCESS) return result;
  ObjectsLock objects(call.process);
  return place(call.process, out, g, after, n, make_copy_node(call.process, *p));
}
CUresult sim_cuGraphAddMemsetNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                  const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  SIM_ENTER(cuGraphAddMemsetNode, kContext);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MemsetPlan plan;
  if (const CUresult result = plan_memset(call.process, *p, &plan); result != CUDA_SUCCESS) return result;
  ObjectsLock objects(call.process);
  return place(call.process, out, g, after, n, make_memset_node(call.process, *p));
}
CUresult sim_cuGraphAddHostNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                const CUDA_HOST_NODE_PARAMS* p) {
  SIM_ENTER(cuGraphAddHostNode, kContext);
  if (p == nullptr || p->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ObjectsLock objects(call.process);
  return place(call.process, out, g, after, n, make_host_node(call.process, *p));
}
CUresult sim_cuGraphAddEmptyNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n) {
  SIM_ENTER(cuGraphAddEmptyNode, kDriver);
  ObjectsLock objects(call.process);
  return place(call.process, out, g, after, n, make_node(call.process, NodeKind::kEmpty));
}
CUresult sim_cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                      CUgraph child_handle) {
  SIM_ENTER(cuGraphAddChildGraphNode, kDriver);
  ObjectsLock objects(call.process);
  Graph* child = graph_of(call.process, child_handle);
  if (child == nullptr || child_handle == g) return CUDA_ERROR_INVALID_VALUE;
  Node* node = make_node(call.process, NodeKind::kChild);
  if (node == nullptr || (node->child = clone_graph(call.process, *child, nullptr)) == nullptr)
    return CUDA_ERROR_OUT_OF_MEMORY;
  node->child->child = true;
  return place(call.process, out, g, after, n, node);
}
CUresult sim_cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n, CUevent event) {
  SIM_ENTER(cuGraphAddEventRecordNode, kDriver);
  if (find_event(call, event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ObjectsLock objects(call.process);
  Node* node = make_node(call.process, NodeKind::kRecordEvent);
  if (node != nullptr) node->event = event;
  return place(call.process, out, g, after, n, node);
}
CUresult sim_cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n, CUevent event) {
  SIM_ENTER(cuGraphAddEventWaitNode, kDriver);
  if (find_event(call, event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ObjectsLock objects(call.process);
  Node* node = make_node(call.process, NodeKind::kWaitEvent);
  if (node != nullptr) node->event = event;
  return place(call.process, out, g, after, n, node);
}
CUresult sim_cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n,
                                      const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  SIM_ENTER(cuGraphAddBatchMemOpNode, kContext);
  if (p == nullptr || p->paramArray == nullptr || p->count == 0) return CUDA_ERROR_INVALID_VALUE;
  ObjectsLock objects(call.process);
  return place(call.process, out, g, after, n,
               make_memop_node(call.process, {p->paramArray, p->paramArray + p->count}));
}
CUresult sim_cuGraphAddNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t n, CUgraphNodeParams* p) {
  return add_any(out, g, after, n, p);
}
CUresult sim_cuGraphAddNode_v2(CUgraphNode* out, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData*, size_t n,
                               CUgraphNodeParams* p) {
  return add_any(out, g, after, n, p);
}
CUresult sim_cuGraphAddNode_v3(CUgraphNode* out, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData*, size_t n,
                               CUgraphNodeParams* p) {
  return add_any(out, g, after, n, p);
}
#define SIM_KERNEL_PARAMS(suffix, Params)                                                              \
  CUresult sim_cuGraphKernelNodeGetParams##suffix(CUgraphNode n, Params* p) {                          \
    SIM_ENTER(cuGraphKernelNodeGetParams##suffix, kDriver);                                            \
    return get_kernel(node_of(call.process, n), p);                                                    \
  }                                                                                                    \
  CUresult sim_cuGraphKernelNodeSetParams##suffix(CUgraphNode n, const Params* p) {                    \
    SIM_ENTER(cuGraphKernelNodeSetParams##suffix, kDriver);                                            \
    return set_kernel(call.process, node_of(call.process, n), p);                                      \
  }                                                                                                    \
  CUresult sim_cuGraphExecKernelNodeSetParams##suffix(CUgraphExec e, CUgraphNode n, const Params* p) { \
    SIM_ENTER(cuGraphExecKernelNodeSetParams##suffix, kDriver);                                        \
    return set_kernel(call.process, exec_node(call.process, e, n), p);                                 \
  }
SIM_KERNEL_PARAMS(, CUDA_KERNEL_NODE_PARAMS_v1)
SIM_KERNEL_PARAMS(_v2, CUDA_KERNEL_NODE_PARAMS)

CUresult sim_cuGraphMemcpyNodeGetParams(CUgraphNode n, CUDA_MEMCPY3D* p) {
  return get_value(n, NodeKind::kMemcpy, &Node::copy, p, "cuGraphMemcpyNodeGetParams");
}
CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode n, const CUDA_MEMCPY3D* p) {
  return set_value(node_of(current_process(), n), NodeKind::kMemcpy, &Node::copy, p);
}
CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D* p, CUcontext) {
  return set_value(exec_node(current_process(), e, n), NodeKind::kMemcpy, &Node::copy, p);
}
CUresult sim_cuGraphMemsetNodeGetParams(CUgraphNode n, CUDA_MEMSET_NODE_PARAMS* p) {
  return get_value(n, NodeKind::kMemset, &Node::memset, p, "cuGraphMemsetNodeGetParams");
}
CUresult sim_cuGraphMemsetNodeSetParams(CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* p) {
  return set_value(node_of(current_process(), n), NodeKind::kMemset, &Node::memset, p);
}
CUresult sim_cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  return set_value(exec_node(current_process(), e, n), NodeKind::kMemset, &Node::memset, p);
}
CUresult sim_cuGraphHostNodeGetParams(CUgraphNode n, CUDA_HOST_NODE_PARAMS* p) {
  return get_value(n, NodeKind::kHost, &Node::host, p, "cuGraphHostNodeGetParams");
}
CUresult sim_cuGraphHostNodeSetParams(CUgraphNode n, const CUDA_HOST_NODE_PARAMS* p) {
  return set_value(node_of(current_process(), n), NodeKind::kHost, &Node::host, p);
}
CUresult sim_cuGraphExecHostNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_HOST_NODE_PARAMS* p) {
  return set_value(exec_node(current_process(), e, n), NodeKind::kHost, &Node::host, p);
}
CUresult sim_cuGraphEventRecordNodeGetEvent(CUgraphNode n, CUevent* e) {
  return get_value(n, NodeKind::kRecordEvent, &Node::event, e, "cuGraphEventRecordNodeGetEvent");
}
CUresult sim_cuGraphEventRecordNodeSetEvent(CUgraphNode n, CUevent e) {
  return set_value(node_of(current_process(), n), NodeKind::kRecordEvent, &Node::event, &e);
}
CUresult sim_cuGraphExecEventRecordNodeSetEvent(CUgraphExec x, CUgraphNode n, CUevent e) {
  return set_value(exec_node(current_process(), x, n), NodeKind::kRecordEvent, &Node::event, &e);
}
CUresult sim_cuGraphEventWaitNodeGetEvent(CUgraphNode n, CUevent* e) {
  return get_value(n, NodeKind::kWaitEvent, &Node::event, e, "cuGraphEventWaitNodeGetEvent");
}
CUresult sim_cuGraphEventWaitNodeSetEvent(CUgraphNode n, CUevent e) {
  return set_value(node_of(current_process(), n), NodeKind::kWaitEvent, &Node::event, &e);
}
CUresult sim_cuGraphExecEventWaitNodeSetEvent(CUgraphExec x, CUgraphNode n, CUevent e) {
  return set_value(exec_node(current_process(), x, n), NodeKind::kWaitEvent, &Node::event, &e);
}
CUresult sim_cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph* out) {
  SIM_ENTER(cuGraphChildGraphNodeGetGraph, kDriver);
  Node* node = node_of(call.process, n);
  if (node == nullptr || out == nullptr || node->kind != NodeKind::kChild) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraph>(node->child);
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child) {
  SIM_ENTER(cuGraphExecChildGraphNodeSetParams, kDriver);
  ObjectsLock objects(call.process);
  Node* node = exec_node(call.process, e, n);
  Graph* graph = graph_of(call.process, child);
  if (node == nullptr || graph == nullptr || node->kind != NodeKind::kChild) return CUDA_ERROR_INVALID_VALUE;
  Graph* copy = clone_graph(call.process, *graph, nullptr);
  if (copy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  destroy_graph(call.process, *node->child);
  node->child = copy;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphNodeSetParams(CUgraphNode n, CUgraphNodeParams* p) {
  SIM_ENTER(cuGraphNodeSetParams, kDriver);
  return set_any(call.process, node_of(call.process, n), p);
}
CUresult sim_cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams* p) {
  SIM_ENTER(cuGraphExecNodeSetParams, kDriver);
  return set_any(call.process, exec_node(call.process, e, n), p);
}
CUresult sim_cuGraphKernelNodeCopyAttributes(CUgraphNode, CUgraphNode) {
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphKernelNodeGetAttribute(CUgraphNode n, CUkernelNodeAttrID id, CUkernelNodeAttrValue* value) {
  SIM_ENTER(cuGraphKernelNodeGetAttribute, kDriver);
  Node* node = node_of(call.process, n);
  if (node == nullptr || value == nullptr || node->kind != NodeKind::kKernel) return CUDA_ERROR_INVALID_VALUE;
  std::memset(value, 0, sizeof *value);
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value->cooperative = node->launch.cooperative;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphKernelNodeSetAttribute(CUgraphNode n, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value) {
  SIM_ENTER(cuGraphKernelNodeSetAttribute, kDriver);
  Node* node = node_of(call.process, n);
  if (node == nullptr || value == nullptr || node->kind != NodeKind::kKernel) return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) node->launch.cooperative = value->cooperative != 0;
  return CUDA_SUCCESS;
}
}
