#include "sim/capture.h"

#include <algorithm>

namespace sluice::sim {

namespace {

bool forbids(const Capture& capture, uint64_t thread) {
  if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  return capture.thread == thread || capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult begin_capture(Call& call, CUstream handle, CUstreamCaptureMode mode, Graph* into, std::vector<Node*> after) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  ObjectsLock objects(call.process);
  GraphState& state = graph_state(call.process);
  auto capture = std::make_shared<Capture>();
  capture->graph = into != nullptr ? into : make_graph(call.process);
  if (capture->graph == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  capture->own_graph = into == nullptr;
  capture->graph->capturing = true;
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = call.thread.id;
  capture->id = ++state.next_capture;
  capture->branches.push_back({stream, std::move(after)});
  stream->capture = capture;
  state.active.push_back(capture);
  ++state.captures;
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** nodes, size_t* count, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (count != nullptr) *count = 0;
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  Capture& capture = *stream->capture;
  *status = capture.invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr) *id = capture.id;
  if (capture.invalidated) return CUDA_SUCCESS;
  Capture::Branch* branch = capture.branch(*stream);
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(capture.graph);
  if (nodes != nullptr) *nodes = reinterpret_cast<const CUgraphNode*>(branch->last.data());
  if (count != nullptr) *count = branch->last.size();
  return CUDA_SUCCESS;
}

void leave(Process& process, Capture& capture) {
  GraphState& state = graph_state(process);
  for (Capture::Branch& branch : capture.branches) branch.stream->capture.reset();
  capture.graph->capturing = false;
  const auto at =
      std::find_if(state.active.begin(), state.active.end(), [&](const auto& c) { return c.get() == &capture; });
  if (at == state.active.end()) return;
  state.active.erase(at);
  --state.captures;
}

// Every branch has to have come back to the origin by an event.
bool all_joined(Capture& capture) {
  std::vector<Node*> reached = capture.branch(*capture.origin)->last;
  for (size_t i = 0; i < reached.size(); ++i) {
    for (Node* before : reached[i]->after) {
      if (std::find(reached.begin(), reached.end(), before) == reached.end()) reached.push_back(before);
    }
  }
  return std::all_of(capture.branches.begin(), capture.branches.end(), [&](const Capture::Branch& branch) {
    return std::all_of(branch.last.begin(), branch.last.end(),
                       [&](Node* n) { return std::find(reached.begin(), reached.end(), n) != reached.end(); });
  });
}

CUresult update_dependencies(CUstream handle, CUgraphNode* nodes, size_t count, unsigned flags, const char* name) {
  Call call(name, kContext);
  if (call.result != CUDA_SUCCESS) return call.result;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags > 1 || (count != 0 && nodes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Capture::Branch* branch = stream->capture->branch(*stream);
  if (flags == 1) branch->last.clear();
  for (size_t i = 0; i < count; ++i) {
    Node* node = graph_state(call.process).nodes.find(nodes[i]);
    if (node == nullptr || node->graph != stream->capture->graph) return CUDA_ERROR_INVALID_VALUE;
    branch->last.push_back(node);
  }
  return CUDA_SUCCESS;
}

}  // namespace

Capture::Branch* Capture::branch(Stream& stream) {
  const auto at = std::find_if(branches.begin(), branches.end(), [&](const Branch& b) { return b.stream == &stream; });
  if (at != branches.end()) return &*at;
  branches.push_back({&stream, {}});
  return &branches.back();
}

CUresult check_unsafe_call(Call& call) {
  if (call.process.graphs_state == nullptr) return CUDA_SUCCESS;
  GraphState& state = graph_state(call.process);
  if (state.captures.load() == 0 || call.thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  ObjectsLock objects(call.process);
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : state.active) {
    const bool own_only = call.thread.capture_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    if (!forbids(*capture, call.thread.id) || (own_only && capture->thread != call.thread.id)) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult check_not_capturing(Stream& stream) {
  if (stream.capture == nullptr) return CUDA_SUCCESS;
  stream.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult check_implicit_capture(Call& call, Stream& stream) {
  if (!stream.legacy || call.process.graphs_state == nullptr) return CUDA_SUCCESS;
  GraphState& state = graph_state(call.process);
  if (state.captures.load() == 0) return CUDA_SUCCESS;
  ObjectsLock objects(call.process);
  for (const auto& capture : state.active) {
    // The legacy stream would have to wait for a capturing stream, unless that one does not take part in its barriers.
    const bool tied = std::any_of(capture->branches.begin(), capture->branches.end(), [&](const Capture::Branch& b) {
      return b.stream->context == stream.context && (b.stream->flags & CU_STREAM_NON_BLOCKING) == 0;
    });
    if (!tied) continue;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}

CUresult capture_node_locked(Stream& stream, Node* node) {
  Capture& capture = *stream.capture;
  if (node == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (capture.invalidated) {
    graph_state(*stream.context->process).nodes.free(node);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  Capture::Branch* branch = capture.branch(stream);
  add_node(*capture.graph, *node, branch->last);
  branch->last = {node};
  return CUDA_SUCCESS;
}

CUresult capture_node(Stream& stream, Node* node) {
  ObjectsLock objects(*stream.context->process);
  return capture_node_locked(stream, node);
}

CUresult capture_record(Stream& stream, Event& event) {
  if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event.captured = stream.capture;
  event.captured_nodes.clear();
  for (Node* n : stream.capture->branch(stream)->last) event.captured_nodes.push_back(reinterpret_cast<CUgraphNode>(n));
  return CUDA_SUCCESS;
}

CUresult capture_wait(Stream& stream, Event& event) {
  if (event.captured == nullptr) {
    // A capturing stream may not depend on work outside its capture.
    if (stream.capture != nullptr) stream.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  Capture& capture = *event.captured;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.capture != nullptr && stream.capture.get() != &capture) {
    stream.capture->invalidated = capture.invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream.legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const bool over = capture.graph == nullptr || !capture.graph->capturing;
  if (over) return CUDA_ERROR_CAPTURED_EVENT;
  stream.capture = event.captured;
  std::vector<Node*>& last = capture.branch(stream)->last;
  for (CUgraphNode handle : event.captured_nodes) {
    Node* node = reinterpret_cast<Node*>(handle);
    if (std::find(last.begin(), last.end(), node) == last.end()) last.push_back(node);
  }
  return CUDA_SUCCESS;
}

void drop_from_capture(Stream& stream) {
  ObjectsLock objects(*stream.context->process);
  auto capture = stream.capture;
  capture->invalidated = true;
  std::erase_if(capture->branches, [&](const Capture::Branch& b) { return b.stream == &stream; });
  stream.capture.reset();
  if (capture->origin == &stream) leave(*stream.context->process, *capture);
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  SIM_ENTER(cuStreamBeginCapture_v2, kContext);
  return begin_capture(call, stream, mode, nullptr, {});
}
CUresult sim_cuStreamBeginCapture(CUstream stream) {
  return sim_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode* nodes,
                                         const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode) {
  SIM_ENTER(cuStreamBeginCaptureToGraph, kContext);
  Graph* graph = graph_state(call.process).graphs.find(handle);
  if (graph == nullptr || (count != 0 && nodes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> after;
  for (size_t i = 0; i < count; ++i) {
    Node* node = graph_state(call.process).nodes.find(nodes[i]);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    after.push_back(node);
  }
  return begin_capture(call, stream, mode, graph, std::move(after));
}

CUresult sim_cuStreamEndCapture(CUstream handle, CUgraph* out) {
  SIM_ENTER(cuStreamEndCapture, kContext);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const auto capture = stream->capture;
  if (capture->origin != stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->thread != call.thread.id && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  ObjectsLock objects(call.process);
  CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS && !all_joined(*capture)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  leave(call.process, *capture);
  if (result == CUDA_SUCCESS) {
    *out = reinterpret_cast<CUgraph>(capture->graph);
  } else if (capture->own_graph) {
    destroy_graph(call.process, *capture->graph);
    capture->graph = nullptr;
  }
  return result;
}

CUresult sim_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr, nullptr, nullptr, "cuStreamIsCapturing");
}
CUresult sim_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(stream, status, id, nullptr, nullptr, nullptr, "cuStreamGetCaptureInfo");
}
CUresult sim_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                       const CUgraphNode** nodes, size_t* count) {
  return capture_info(stream, status, id, graph, nodes, count, "cuStreamGetCaptureInfo_v2");
}
CUresult sim_cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                       const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, nodes, count, "cuStreamGetCaptureInfo_v3");
}
CUresult sim_cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  return update_dependencies(stream, nodes, count, flags, "cuStreamUpdateCaptureDependencies");
}
CUresult sim_cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*,
                                                  size_t count, unsigned flags) {
  return update_dependencies(stream, nodes, count, flags, "cuStreamUpdateCaptureDependencies_v2");
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIM_ENTER(cuThreadExchangeStreamCaptureMode, kDriver);
  if (mode == nullptr || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, call.thread.capture_mode);
  return CUDA_SUCCESS;
}
}
