// Stream capture: which streams belong to which capture, and what may not be called meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "sim/api.h"
#include "sim/graph.h"

namespace sluice::sim {

struct Capture {
  Graph* graph = nullptr;
  bool own_graph = true;  // false: cuStreamBeginCaptureToGraph
  Stream* origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;  // that began it
  uint64_t id = 0;
  bool invalidated = false;
  struct Branch {
    Stream* stream;
    std::vector<Node*> last;  // what the next node of this stream depends on
  };
  std::vector<Branch> branches;

  Branch* branch(Stream& stream);
};

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (and the captures are invalidated) when a capture of this thread, or a global
// one of another, forbids potentially unsafe calls; CUDA_SUCCESS otherwise.
CUresult check_unsafe_call(Call& call);
// For calls that synchronise with a stream or query it.
CUresult check_not_capturing(Stream& stream);
// The nodes that a stream's capture has come to; a node made there takes their place. Results of an invalidated
// capture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
CUresult capture_node(Stream& stream, Node* node);
CUresult capture_node_locked(Stream& stream, Node* node);  // with the process's objects locked
CUresult capture_record(Stream& stream, Event& event);
CUresult capture_wait(Stream& stream, Event& event);

}  // namespace sluice::sim
