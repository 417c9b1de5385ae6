// The graph calls: graphs, edges, instantiating, updating, launching. Nodes are in api_graph_nodes.cc.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim/api_graph.h"

namespace sluice::sim {

namespace {

CUresult instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags, CUgraphNode* error_node, const char* name) {
  Call call(name, kContext, Charge::kCreate);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (error_node != nullptr) *error_node = nullptr;
  ObjectsLock objects(call.process);
  Graph* graph = graph_of(call.process, handle);
  if (out == nullptr || graph == nullptr || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  if (!graph->nodes.empty() && in_order(*graph).empty()) {
    if (error_node != nullptr) *error_node = reinterpret_cast<CUgraphNode>(graph->nodes.front());
    return CUDA_ERROR_INVALID_VALUE;
  }
  GraphState& state = graph_state(call.process);
  GraphExec* exec = state.execs.make();
  if (exec == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->id = ++state.next_exec;
  exec->flags = flags;
  exec->context = call.context;
  exec->graph = clone_graph(call.process, *graph, &exec->origin);
  if (exec->graph == nullptr) {
    state.execs.free(exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = reinterpret_cast<CUgraphExec>(exec);
  return CUDA_SUCCESS;
}

// Lists with the usual protocol: count only when there is no array, the rest of the array zeroed.
template <typename Handle>
CUresult list_out(const std::vector<Node*>& nodes, Handle* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? reinterpret_cast<Handle>(nodes[i]) : nullptr;
  }
  *count = out != nullptr ? std::min(*count, nodes.size()) : nodes.size();
  return CUDA_SUCCESS;
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  Graph* graph = graph_of(current_process(), handle);
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  size_t n = 0;
  for (Node* node : graph->nodes) {
    for (Node* before : node->after) {
      if (from != nullptr && n < *count) {
        from[n] = reinterpret_cast<CUgraphNode>(before);
        to[n] = reinterpret_cast<CUgraphNode>(node);
        if (data != nullptr) data[n] = {};
      }
      ++n;
    }
  }
  *count = from != nullptr ? std::min(*count, n) : n;
  return CUDA_SUCCESS;
}

std::vector<Node*> dependents(const Node& node) {
  std::vector<Node*> found;
  for (Node* other : node.graph->nodes) {
    if (std::find(other->after.begin(), other->after.end(), &node) != other->after.end()) found.push_back(other);
  }
  return found;
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count, bool add) {
  Process& process = current_process();
  Graph* graph = graph_of(process, handle);
  if (graph == nullptr || (count != 0 && (from == nullptr || to == nullptr))) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    Node *a = node_of(process, from[i]), *b = node_of(process, to[i]);
    if (a == nullptr || b == nullptr || a->graph != graph || b->graph != graph || a == b)
      return CUDA_ERROR_INVALID_VALUE;
    const auto at = std::find(b->after.begin(), b->after.end(), a);
    if (add == (at != b->after.end())) return CUDA_ERROR_INVALID_VALUE;
    if (add) {
      b->after.push_back(a);
    } else {
      b->after.erase(at);
    }
  }
  return CUDA_SUCCESS;
}

// Same shape, kinds may not change; parameters are taken over.
CUresult update_exec(Process& process, GraphExec& exec, const Graph& from, CUgraphExecUpdateResult* why, Node** where) {
  const auto fail = [&](CUgraphExecUpdateResult reason, Node* node) {
    *why = reason;
    *where = node;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  if (exec.graph->nodes.size() != from.nodes.size()) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  for (size_t i = 0; i < from.nodes.size(); ++i) {
    const Node &a = *exec.graph->nodes[i], &b = *from.nodes[i];
    if (a.kind != b.kind) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, from.nodes[i]);
    if (a.after.size() != b.after.size()) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, from.nodes[i]);
  }
  std::vector<std::pair<Node*, Node*>> origin;
  Graph* fresh = clone_graph(process, from, &origin);
  if (fresh == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  destroy_graph(process, *exec.graph);
  exec.graph = fresh;
  // Nodes of the graph it was made of go on naming the same places; those of the new one do too.
  for (size_t i = 0; i < std::min(exec.origin.size(), origin.size()); ++i) exec.origin[i].second = origin[i].second;
  exec.origin.insert(exec.origin.end(), origin.begin(), origin.end());
  *why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  *where = nullptr;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuGraphCreate(CUgraph* out, unsigned flags) {
  SIM_ENTER(cuGraphCreate, kDriver);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ObjectsLock objects(call.process);
  *out = reinterpret_cast<CUgraph>(make_graph(call.process));
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult sim_cuGraphDestroy(CUgraph handle) {
  SIM_ENTER(cuGraphDestroy, kDriver);
  ObjectsLock objects(call.process);
  Graph* graph = graph_of(call.process, handle);
  if (graph == nullptr || graph->child || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  destroy_graph(call.process, *graph);
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphClone(CUgraph* out, CUgraph handle) {
  SIM_ENTER(cuGraphClone, kDriver);
  ObjectsLock objects(call.process);
  Graph* graph = graph_of(call.process, handle);
  if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraph>(clone_graph(call.process, *graph, nullptr));
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult sim_cuGraphGetId(CUgraph handle, unsigned* id) {
  SIM_ENTER(cuGraphGetId, kDriver);
  Graph* graph = graph_of(call.process, handle);
  if (graph == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = graph->id;
  return CUDA_SUCCESS;
}

CUresult sim_cuGraphDestroyNode(CUgraphNode handle) {
  SIM_ENTER(cuGraphDestroyNode, kDriver);
  ObjectsLock objects(call.process);
  Node* node = node_of(call.process, handle);
  if (node == nullptr || node->graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (Node* other : node->graph->nodes) std::erase(other->after, node);
  std::erase(node->graph->nodes, node);
  if (node->child != nullptr) destroy_graph(call.process, *node->child);
  graph_state(call.process).nodes.free(node);
  return CUDA_SUCCESS;
}

CUresult sim_cuGraphGetNodes(CUgraph g, CUgraphNode* out, size_t* count) {
  Graph* graph = graph_of(current_process(), g);
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : list_out(graph->nodes, out, count);
}
CUresult sim_cuGraphGetRootNodes(CUgraph g, CUgraphNode* out, size_t* count) {
  Graph* graph = graph_of(current_process(), g);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> roots;
  std::copy_if(graph->nodes.begin(), graph->nodes.end(), std::back_inserter(roots),
               [](Node* n) { return n->after.empty(); });
  return list_out(roots, out, count);
}
CUresult sim_cuGraphGetEdges(CUgraph g, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return get_edges(g, from, to, nullptr, count);
}
CUresult sim_cuGraphGetEdges_v2(CUgraph g, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return get_edges(g, from, to, data, count);
}
CUresult sim_cuGraphNodeGetDependencies(CUgraphNode n, CUgraphNode* out, size_t* count) {
  Node* node = node_of(current_process(), n);
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : list_out(node->after, out, count);
}
CUresult sim_cuGraphNodeGetDependencies_v2(CUgraphNode n, CUgraphNode* out, CUgraphEdgeData* data, size_t* count) {
  const CUresult result = sim_cuGraphNodeGetDependencies(n, out, count);
  if (result == CUDA_SUCCESS && data != nullptr) std::fill(data, data + *count, CUgraphEdgeData{});
  return result;
}
CUresult sim_cuGraphNodeGetDependentNodes(CUgraphNode n, CUgraphNode* out, size_t* count) {
  Node* node = node_of(current_process(), n);
  return node == nullptr ? CUDA_ERROR_INVALID_VALUE : list_out(dependents(*node), out, count);
}
CUresult sim_cuGraphNodeGetDependentNodes_v2(CUgraphNode n, CUgraphNode* out, CUgraphEdgeData* data, size_t* count) {
  const CUresult result = sim_cuGraphNodeGetDependentNodes(n, out, count);
  if (result == CUDA_SUCCESS && data != nullptr) std::fill(data, data + *count, CUgraphEdgeData{});
  return result;
}
CUresult sim_cuGraphAddDependencies(CUgraph g, const CUgraphNode* from, const CUgraphNode* to, size_t n) {
  return change_edges(g, from, to, n, true);
}
CUresult sim_cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode* from, const CUgraphNode* to,
                                       const CUgraphEdgeData*, size_t n) {
  return change_edges(g, from, to, n, true);
}
CUresult sim_cuGraphRemoveDependencies(CUgraph g, const CUgraphNode* from, const CUgraphNode* to, size_t n) {
  return change_edges(g, from, to, n, false);
}
CUresult sim_cuGraphRemoveDependencies_v2(CUgraph g, const CUgraphNode* from, const CUgraphNode* to,
                                          const CUgraphEdgeData*, size_t n) {
  return change_edges(g, from, to, n, false);
}
CUresult sim_cuGraphNodeGetType(CUgraphNode n, CUgraphNodeType* type) {
  Node* node = node_of(current_process(), n);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = type_of(*node);
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphNodeGetContainingGraph(CUgraphNode n, CUgraph* out) {
  Node* node = node_of(current_process(), n);
  if (node == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraph>(node->graph);
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphNodeGetLocalId(CUgraphNode n, unsigned* id) {
  Node* node = node_of(current_process(), n);
  if (node == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = node->id;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  Graph* graph = graph_of(current_process(), clone);
  if (graph == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (Node* node : graph->nodes) {
    if (node->cloned_from != reinterpret_cast<Node*>(original)) continue;
    *out = reinterpret_cast<CUgraphNode>(node);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult sim_cuGraphNodeSetEnabled(CUgraphExec e, CUgraphNode n, unsigned enabled) {
  Node* node = exec_node(current_process(), e, n);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphNodeGetEnabled(CUgraphExec e, CUgraphNode n, unsigned* enabled) {
  Node* node = exec_node(current_process(), e, n);
  if (node == nullptr || enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *enabled = node->enabled;
  return CUDA_SUCCESS;
}

CUresult sim_cuGraphInstantiate(CUgraphExec* out, CUgraph g, CUgraphNode* error, char*, size_t) {
  return instantiate(out, g, 0, error, "cuGraphInstantiate");
}
CUresult sim_cuGraphInstantiate_v2(CUgraphExec* out, CUgraph g, CUgraphNode* error, char*, size_t) {
  return instantiate(out, g, 0, error, "cuGraphInstantiate_v2");
}
CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g, unsigned long long flags) {
  return instantiate(out, g, flags, nullptr, "cuGraphInstantiateWithFlags");
}
CUresult sim_cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate(out, g, p->flags, &p->hErrNode_out, "cuGraphInstantiateWithParams");
  p->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}
CUresult sim_cuGraphExecGetFlags(CUgraphExec e, cuuint64_t* flags) {
  GraphExec* exec = exec_of(current_process(), e);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphExecGetId(CUgraphExec e, unsigned* id) {
  GraphExec* exec = exec_of(current_process(), e);
  if (exec == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = exec->id;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphExecDestroy(CUgraphExec e) {
  SIM_ENTER(cuGraphExecDestroy, kDriver);
  ObjectsLock objects(call.process);
  GraphExec* exec = exec_of(call.process, e);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  destroy_graph(call.process, *exec->graph);
  graph_state(call.process).execs.free(exec);
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo* info) {
  SIM_ENTER(cuGraphExecUpdate_v2, kDriver);
  ObjectsLock objects(call.process);
  GraphExec* exec = exec_of(call.process, e);
  Graph* graph = graph_of(call.process, g);
  if (exec == nullptr || graph == nullptr || info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Node* where = nullptr;
  const CUresult result = update_exec(call.process, *exec, *graph, &info->result, &where);
  info->errorNode = reinterpret_cast<CUgraphNode>(where);
  info->errorFromNode = nullptr;
  return result;
}
CUresult sim_cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode* error, CUgraphExecUpdateResult* why) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = sim_cuGraphExecUpdate_v2(e, g, &info);
  if (error != nullptr) *error = info.errorNode;
  if (why != nullptr) *why = info.result;
  return result;
}
CUresult sim_cuGraphUpload(CUgraphExec e, CUstream s) {
  SIM_ENTER(cuGraphUpload, kContext, Charge::kGraphLaunch);
  GraphExec* exec = exec_of(call.process, e);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, s, &stream); result != CUDA_SUCCESS) return result;
  exec->uploaded = true;
  return CUDA_SUCCESS;
}
CUresult sim_cuGraphLaunch(CUgraphExec e, CUstream s) {
  SIM_ENTER(cuGraphLaunch, kContext);
  GraphExec* exec = exec_of(call.process, e);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, s, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) {
    ObjectsLock objects(call.process);
    Node* node = make_node(call.process, NodeKind::kChild);
    if (node == nullptr || (node->child = clone_graph(call.process, *exec->graph, nullptr)) == nullptr)
      return CUDA_ERROR_OUT_OF_MEMORY;
    node->child->child = true;
    return capture_node_locked(*stream, node);
  }
  return launch_graph(call, *exec, *stream);
}
CUresult sim_cuGraphDebugDotPrint(CUgraph g, const char* path, unsigned) {
  SIM_ENTER(cuGraphDebugDotPrint, kDriver);
  Graph* graph = graph_of(call.process, g);
  if (graph == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = std::fopen(path, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fprintf(file, "digraph graph_%u {\n", graph->id);
  for (const Node* node : graph->nodes) {
    std::fprintf(file, "  n%u;\n", node->id);
    for (const Node* before : node->after) std::fprintf(file, "  n%u -> n%u;\n", before->id, node->id);
  }
  std::fprintf(file, "}\n");
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
}
