// Memory that graphs allocate. A node owns an address range from the moment it is added; memory stands behind it from
// the graph's first launch until the memory is freed (by a free node, cuMemFree or the graph's destruction) and then
// stays with the card's graph pool, which only cuDeviceGraphMemTrim gives back.
#pragma once

#include "sim/mem_pool.h"

namespace sluice::sim {

// Adds an allocation node for `bytes` on `card`: an address range without memory yet. 0: no addresses left.
CUdeviceptr graph_reserve(Process& process, int card, uint64_t bytes);
// Puts memory behind the range (upload or launch); nothing to do when it is there.
CUresult graph_commit(Process& process, CUdeviceptr address);
// Takes the memory away again and returns it to the graph pool; false when `address` is no live graph allocation.
bool graph_free(Process& process, CUdeviceptr address);
bool graph_is_committed(Process& process, CUdeviceptr address);
// Frees it once a command (the launch's last) is done; settle looks which have come so far.
void graph_free_after(Process& process, CUdeviceptr address, int card, CommandRef last);
void settle_graph_frees(Process& process);
// Takes such a free back: a later launch of the same stream of work has the memory next. False: none is under way.
bool cancel_graph_free(Process& process, CUdeviceptr address);
// Forgets the range when its node is destroyed.
void graph_unreserve(Process& process, CUdeviceptr address);

// Before and after a launch of an executable graph: memory behind its allocation nodes, frees of its free nodes. These
// two take the memory lock, all others above want it held.
CUresult commit_graph_memory(Process& process, const GraphExec& exec);
void finish_graph_memory(Process& process, const GraphExec& exec, const Stream& stream);

// cuMemAllocAsync and cuMemFreeAsync on a capturing stream.
CUresult capture_memory_alloc(Call& call, Stream& stream, int card, size_t bytes, CUdeviceptr* address);
CUresult capture_memory_free(Call& call, Stream& stream, CUdeviceptr address);

}  // namespace sluice::sim
