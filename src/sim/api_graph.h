// Shared by the graph calls: handles to objects, and putting a node where it belongs.
#pragma once

#include "sim/capture.h"

namespace sluice::sim {

inline Graph* graph_of(Process& p, CUgraph g) {
  return graph_state(p).graphs.find(g);
}
inline Node* node_of(Process& p, CUgraphNode n) {
  return graph_state(p).nodes.find(n);
}
inline GraphExec* exec_of(Process& p, CUgraphExec e) {
  return graph_state(p).execs.find(e);
}

// Puts a made node into a graph; frees it when a dependency is wrong.
CUresult place(Process& process, CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* after, size_t count,
               Node* node);
// The node of an executable graph that came from a node of the graph it was made of; nullptr when there is none.
Node* exec_node(Process& process, CUgraphExec handle, CUgraphNode node);
CUgraphNodeType type_of(const Node& node);

}  // namespace sluice::sim
