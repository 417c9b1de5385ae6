// Memory of graphs. Allocation nodes cost nothing when they are added or captured; the driver takes their memory when
// an executable graph is uploaded or launched, keeps it in a reserve per device that all graphs share, and gives it
// back only at cuDeviceGraphMemTrim. The charge is that reserve (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT); what an
// upload or launch may add to it is known from the nodes, counted when the graph is instantiated.
#include "guest/booking.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr int kMaxDepth = 16;  // of child graphs

uint64_t graph_attribute(Guest* guest, uint32_t card, CUgraphMem_attribute attribute) {
  cuuint64_t value = 0;
  const CUdevice device = guest->cards[card].device;
  return guest->cuda.cuDeviceGetGraphMemAttribute(device, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

uint64_t node_bytes(Guest* guest, CUgraphNode node, int depth);

// Bytes of all allocation nodes of a graph and its child graphs, each rounded to blocks.
uint64_t graph_bytes(Guest* guest, CUgraph graph, int depth) {
  size_t count = 0;
  if (depth > kMaxDepth || guest->cuda.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return 0;
  const size_t room = count * sizeof(CUgraphNode);
  CUgraphNode* nodes = static_cast<CUgraphNode*>(sys::map_pages(room));
  if (nodes == nullptr) return 0;
  uint64_t bytes = 0;
  if (guest->cuda.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t i = 0; i < count; ++i) bytes += node_bytes(guest, nodes[i], depth);
  }
  sys::unmap_pages(nodes, room);
  return bytes;
}

uint64_t node_bytes(Guest* guest, CUgraphNode node, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (guest->cuda.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return 0;
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    if (guest->cuda.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) return 0;
    return params.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? round_up(params.bytesize, kBlockBytes) : 0;
  }
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    CUgraph child = nullptr;
    if (guest->cuda.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS) return 0;
    return graph_bytes(guest, child, depth + 1);
  }
  return 0;
}

uint64_t exec_key(CUgraphExec exec) {
  return reinterpret_cast<uint64_t>(exec);
}

// The reserve's charge moves to what the driver has now; `credit` bytes were reserved for growth.
void settle_graph_memory(Guest* guest, uint32_t card, uint64_t credit) {
  const uint64_t reserved = graph_attribute(guest, card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  uint64_t charged = credit;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    charged += guest->memory.cards[card].graph_charged_bytes;
    guest->memory.cards[card].graph_charged_bytes = reserved;
  }
  adjust_memory(guest, card, charged, reserved);
}

void note_instantiated(Guest* guest, CUgraphExec exec, CUgraph graph) {
  const uint32_t card = current_card(guest);
  if (!booked(guest, card)) return;
  const uint64_t bytes = graph_bytes(guest, graph, 0);
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  guest->memory.graph_execs.erase(exec_key(exec));  // the handle value of a destroyed one
  if (bytes != 0) guest->memory.graph_execs.insert(exec_key(exec), GraphExec{bytes, 0, card});
  guest->memory.graph_exec_count.store(static_cast<uint32_t>(guest->memory.graph_execs.size()),
                                       std::memory_order_release);
  // Instantiation with the upload flag has taken the memory already; the first launch would find it anyway.
}

template <typename Call>
CUresult instantiate(Guest* guest, CUgraphExec* exec, CUgraph graph, Call&& call) {
  const CUresult result = call();
  if (result == CUDA_SUCCESS && exec != nullptr) note_instantiated(guest, *exec, graph);
  return result;
}

template <typename Call>
CUresult upload(Guest* guest, CUgraphExec exec, Call&& call) {
  if (CUresult refused = memory_before_graph_launch(guest, exec)) return refused;
  const CUresult result = call();
  memory_after_graph_launch(guest, exec);
  return result;
}

}  // namespace

CUresult memory_before_graph_launch(Guest* guest, CUgraphExec exec) {
  if (guest->memory.graph_exec_count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  uint64_t bytes = 0;
  uint32_t card = kNoCard;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (GraphExec* entry = guest->memory.graph_execs.find(exec_key(exec))) {
      bytes = entry->bytes;
      card = entry->card;
    }
  }
  if (!booked(guest, card)) return CUDA_SUCCESS;
  const uint64_t cached = graph_attribute(guest, card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) -
                          graph_attribute(guest, card, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
  const uint64_t growth = cached >= bytes ? 0 : round_up(bytes - cached, kBlockBytes);
  if (growth != 0) {
    if (CUresult refused = reserve_memory(guest, card, growth)) return refused;
  }
  guest->memory.cards[card].operations.fetch_add(1, std::memory_order_acq_rel);
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  if (GraphExec* entry = guest->memory.graph_execs.find(exec_key(exec))) entry->credit = growth;
  return CUDA_SUCCESS;
}

void memory_after_graph_launch(Guest* guest, CUgraphExec exec) {
  if (guest->memory.graph_exec_count.load(std::memory_order_acquire) == 0) return;
  uint64_t credit = 0;
  uint32_t card = kNoCard;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (GraphExec* entry = guest->memory.graph_execs.find(exec_key(exec))) {
      credit = entry->credit;
      card = entry->card;
      entry->credit = 0;
    }
  }
  if (!booked(guest, card)) return;
  settle_graph_memory(guest, card, credit);
  guest->memory.cards[card].operations_done.fetch_add(1, std::memory_order_acq_rel);
  guest->memory.cards[card].operations.fetch_sub(1, std::memory_order_acq_rel);
}

void memory_graph_exec_destroyed(Guest* guest, CUgraphExec exec) {
  if (guest->memory.graph_exec_count.load(std::memory_order_acquire) == 0) return;
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  guest->memory.graph_execs.erase(exec_key(exec));
  guest->memory.graph_exec_count.store(static_cast<uint32_t>(guest->memory.graph_execs.size()),
                                       std::memory_order_release);
}

void refresh_graph_memory(Guest* guest, uint32_t card) {
  uint64_t charged;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    charged = guest->memory.cards[card].graph_charged_bytes;
  }
  if (charged == 0) return;
  const uint64_t reserved = graph_attribute(guest, card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  uint64_t shrunk = 0;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    uint64_t& now_charged = guest->memory.cards[card].graph_charged_bytes;
    if (now_charged > reserved) {
      shrunk = now_charged - reserved;
      now_charged = reserved;
    }
  }
  give_back_memory(guest, card, shrunk);
}

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t bytes) {
  Guest* guest = enter();
  return instantiate(guest, exec, graph,
                     [&] { return guest->cuda.cuGraphInstantiate(exec, graph, error_node, log, bytes); });
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                                    size_t bytes) {
  Guest* guest = enter();
  return instantiate(guest, exec, graph,
                     [&] { return guest->cuda.cuGraphInstantiate_v2(exec, graph, error_node, log, bytes); });
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Guest* guest = enter();
  return instantiate(guest, exec, graph, [&] { return guest->cuda.cuGraphInstantiateWithFlags(exec, graph, flags); });
}

CUresult hook_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  Guest* guest = enter();
  return instantiate(guest, exec, graph, [&] { return guest->cuda.cuGraphInstantiateWithParams(exec, graph, params); });
}

CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  Guest* guest = enter();
  return instantiate(guest, exec, graph,
                     [&] { return guest->cuda.cuGraphInstantiateWithParams_ptsz(exec, graph, params); });
}

CUresult hook_cuGraphUpload(CUgraphExec exec, CUstream stream) {
  Guest* guest = enter();
  return upload(guest, exec, [&] { return guest->cuda.cuGraphUpload(exec, stream); });
}

CUresult hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  Guest* guest = enter();
  return upload(guest, exec, [&] { return guest->cuda.cuGraphUpload_ptsz(exec, stream); });
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuDeviceGraphMemTrim(device);
  const uint32_t card = result == CUDA_SUCCESS ? card_of_device(guest, device) : kNoCard;
  if (booked(guest, card)) refresh_graph_memory(guest, card);
  return result;
}

}  // extern "C"
