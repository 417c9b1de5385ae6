#include "sim/mem_graph.h"

#include <algorithm>
#include <memory>

#include "sim/engine.h"

namespace sluice::sim {
namespace {

struct GraphRange {
  int card;
  uint64_t bytes;
  std::shared_ptr<Physical> memory;  // nothing until launched
};

// Ranges by address, and blocks that lie idle in the graph pool, per card.
struct GraphMemory {
  std::map<uint64_t, GraphRange> ranges;
  std::map<int, std::vector<std::shared_ptr<Physical>>> idle;
  struct Figures {
    uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  };
  std::map<int, Figures> figures;
  struct Free {
    CUdeviceptr address;
    int card;
    CommandRef last;
  };
  std::vector<Free> frees;  // of free nodes that were launched
};

GraphMemory& graph_memory(Process& process) {
  MemoryState& state = memory_state(process);
  if (state.graph == nullptr) state.graph = std::make_shared<GraphMemory>();
  return *static_cast<GraphMemory*>(state.graph.get());
}

std::shared_ptr<Physical> take_idle(GraphMemory& state, int card, uint64_t bytes) {
  std::vector<std::shared_ptr<Physical>>& idle = state.idle[card];
  const auto fits = std::find_if(idle.begin(), idle.end(), [&](const auto& m) { return m->bytes == bytes; });
  if (fits == idle.end()) return nullptr;
  auto memory = *fits;
  idle.erase(fits);
  return memory;
}

void trim(Process& process, GraphMemory& state, int card) {
  for (const auto& memory : state.idle[card]) {
    state.figures[card].reserved -= memory->bytes;
    memory->handles = 0;
    drop_physical(process, *memory);
  }
  state.idle[card].clear();
}

uint64_t* figure(GraphMemory::Figures& figures, CUgraphMem_attribute attribute) {
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      return &figures.used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      return &figures.used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      return &figures.reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      return &figures.reserved_high;
    default:
      return nullptr;
  }
}

}  // namespace

CUdeviceptr graph_reserve(Process& process, int card, uint64_t bytes) {
  if (process.device(card) == nullptr || bytes == 0) return 0;
  const uint64_t size = round_up_to(bytes, kMemBlock);
  const uint64_t address = process.device(card)->memory->reserve(size, kMemBlock, 0);
  if (address != 0) graph_memory(process).ranges[address] = {card, bytes, nullptr};
  return address;
}

CUresult graph_commit(Process& process, CUdeviceptr address) {
  GraphMemory& state = graph_memory(process);
  const auto at = state.ranges.find(address);
  if (at == state.ranges.end()) return CUDA_ERROR_INVALID_VALUE;
  GraphRange& range = at->second;
  if (range.memory != nullptr) return CUDA_SUCCESS;
  const uint64_t size = round_up_to(range.bytes, kMemBlock);
  GraphMemory::Figures& figures = state.figures[range.card];
  range.memory = take_idle(state, range.card, size);
  if (range.memory == nullptr) {
    range.memory = make_physical(process, range.card, size, BlockKind::kGraph);
    if (range.memory == nullptr) {
      trim(process, state, range.card);
      range.memory = make_physical(process, range.card, size, BlockKind::kGraph);
    }
    if (range.memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    figures.reserved += size;
    figures.reserved_high = std::max(figures.reserved_high, figures.reserved);
  }
  figures.used += size;
  figures.used_high = std::max(figures.used_high, figures.used);
  return map_physical(process, *range.memory, address, range.bytes, 0, nullptr, true) ? CUDA_SUCCESS
                                                                                      : CUDA_ERROR_UNKNOWN;
}

bool graph_free(Process& process, CUdeviceptr address) {
  if (memory_state(process).graph == nullptr) return false;
  GraphMemory& state = graph_memory(process);
  const auto at = state.ranges.find(address);
  if (at == state.ranges.end() || at->second.memory == nullptr) return false;
  GraphRange& range = at->second;
  process.device(range.card)->memory->unmap(address, range.bytes);
  state.figures[range.card].used -= range.memory->bytes;
  state.idle[range.card].push_back(std::move(range.memory));
  range.memory = nullptr;
  return true;
}

void graph_unreserve(Process& process, CUdeviceptr address) {
  graph_free(process, address);
  GraphMemory& state = graph_memory(process);
  const auto at = state.ranges.find(address);
  if (at == state.ranges.end()) return;
  process.device(at->second.card)->memory->unreserve(address, round_up_to(at->second.bytes, kMemBlock));
  state.ranges.erase(at);
}

bool free_elsewhere(Process& process, CUdeviceptr address, const Mapping& mapping, CUresult* result) {
  if (mapping.managed) return *result = free_managed(process, mapping), true;
  const MemoryLock lock(process);
  if (graph_free(process, address)) return *result = CUDA_SUCCESS, true;
  if (Pool* pool = pool_of(process, address)) return *result = pool_free(process, *pool, address, kNone), true;
  const MemoryState& state = memory_state(process);
  *result = CUDA_ERROR_INVALID_VALUE;
  return state.mapped.count(mapping.address) != 0 || state.imported.count(mapping.address) != 0;
}

bool graph_is_committed(Process& process, CUdeviceptr address) {
  const GraphMemory& state = graph_memory(process);
  const auto at = state.ranges.find(address);
  return at != state.ranges.end() && at->second.memory != nullptr;
}

void graph_free_after(Process& process, CUdeviceptr address, int card, CommandRef last) {
  graph_memory(process).frees.push_back({address, card, last});
}

bool cancel_graph_free(Process& process, CUdeviceptr address) {
  return std::erase_if(graph_memory(process).frees, [&](const GraphMemory::Free& f) { return f.address == address; }) >
         0;
}

void settle_graph_frees(Process& process) {
  std::vector<GraphMemory::Free>& frees = graph_memory(process).frees;
  std::vector<CUdeviceptr> due;
  std::erase_if(frees, [&](const GraphMemory::Free& f) {
    Card& card = *process.device(f.card)->card;
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    if (f.last.index != kNone && !is_done(card, f.last)) return false;
    due.push_back(f.address);
    return true;
  });
  for (const CUdeviceptr address : due) {
    if (!graph_free(process, address)) {
      // A free node may also free what cuMemAllocAsync gave.
      if (Pool* pool = pool_of(process, address)) pool_free(process, *pool, address, kNone);
    }
  }
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  SIM_ENTER(cuDeviceGetGraphMemAttribute, kDriver);
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  settle_graph_frees(call.process);
  const uint64_t* number = figure(graph_memory(call.process).figures[device], attribute);
  if (number == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<cuuint64_t*>(value) = *number;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  SIM_ENTER(cuDeviceSetGraphMemAttribute, kDriver);
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  GraphMemory::Figures& figures = graph_memory(call.process).figures[device];
  // High-water marks can be set back, nothing else can be set.
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    figures.used_high = figures.used;
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    figures.reserved_high = figures.reserved;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGraphMemTrim(CUdevice device) {
  SIM_ENTER(cuDeviceGraphMemTrim, kDriver);
  if (call.process.device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(call.process);
  settle_graph_frees(call.process);
  trim(call.process, graph_memory(call.process), device);
  return CUDA_SUCCESS;
}

}  // extern "C"
