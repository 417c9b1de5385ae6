// Where a program waits, captures, records events and ends streams. Before it waits, the tail of what it waits for is
// marked: then the marker passes together with the work.
#include "guest/hooks.h"
#include "guest/hooks_work.h"

namespace sluice::guest {

namespace {

template <typename Call>
CUresult sync_stream(CUstream stream, StreamForm form, Call call) {
  Guest* guest = enter();
  if (!passes(guest)) compute_sync_stream(guest, stream, form);
  return call(guest);
}

template <typename Call>
CUresult sync_all(Call call) {
  Guest* guest = enter();
  if (!passes(guest)) compute_sync_all(guest);
  return call(guest);
}

// The program's own event record stands inside a segment like a marker of ours.
template <typename Call>
CUresult record(CUstream stream, StreamForm form, Call call) {
  Guest* guest = enter();
  if (!passes(guest)) compute_event_recorded(guest, stream, form);
  return call(guest);
}

// Captures are counted whether the gate is free or not: it may close while one is under way.
template <typename Call>
CUresult begin_capture(CUstream stream, StreamForm form, Call call) {
  Guest* guest = enter();
  if (!passes(guest)) compute_boundary(guest, stream, form);
  const CUresult result = call(guest);
  if (result == CUDA_SUCCESS) compute_capture(guest, true);
  return result;
}

template <typename Call>
CUresult end_capture(Call call) {
  Guest* guest = enter();
  const CUresult result = call(guest);
  // A capture that was spoiled has ended too.
  if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
      result != CUDA_ERROR_INVALID_VALUE) {
    compute_capture(guest, false);
  }
  return result;
}

}  // namespace

extern "C" {

CUresult hook_cuCtxSynchronize(void) {
  return sync_all([](Guest* guest) { return guest->cuda.cuCtxSynchronize(); });
}
CUresult hook_cuCtxSynchronize_v2(CUcontext context) {
  return sync_all([=](Guest* guest) { return guest->cuda.cuCtxSynchronize_v2(context); });
}
CUresult hook_cuEventSynchronize(CUevent event) {
  return sync_all([=](Guest* guest) { return guest->cuda.cuEventSynchronize(event); });
}
CUresult hook_cuStreamSynchronize(CUstream stream) {
  return sync_stream(stream, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamSynchronize(stream); });
}
CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
  return sync_stream(stream, kPerThreadForm,
                     [=](Guest* guest) { return guest->cuda.cuStreamSynchronize_ptsz(stream); });
}
CUresult hook_cuStreamQuery(CUstream stream) {
  return sync_stream(stream, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamQuery(stream); });
}
CUresult hook_cuStreamQuery_ptsz(CUstream stream) {
  return sync_stream(stream, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuStreamQuery_ptsz(stream); });
}

CUresult hook_cuEventRecord(CUevent event, CUstream stream) {
  return record(stream, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuEventRecord(event, stream); });
}
CUresult hook_cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return record(stream, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuEventRecord_ptsz(event, stream); });
}
CUresult hook_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(stream, kLegacyForm,
                [=](Guest* guest) { return guest->cuda.cuEventRecordWithFlags(event, stream, flags); });
}
CUresult hook_cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  return record(stream, kPerThreadForm,
                [=](Guest* guest) { return guest->cuda.cuEventRecordWithFlags_ptsz(event, stream, flags); });
}

CUresult hook_cuStreamBeginCapture(CUstream stream) {
  return begin_capture(stream, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamBeginCapture(stream); });
}
CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(stream, kPerThreadForm,
                       [=](Guest* guest) { return guest->cuda.cuStreamBeginCapture_ptsz(stream); });
}
CUresult hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, kLegacyForm,
                       [=](Guest* guest) { return guest->cuda.cuStreamBeginCapture_v2(stream, mode); });
}
CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, kPerThreadForm,
                       [=](Guest* guest) { return guest->cuda.cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* nodes,
                                          const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin_capture(stream, kLegacyForm, [=](Guest* guest) {
    return guest->cuda.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode);
  });
}
CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* nodes,
                                               const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin_capture(stream, kPerThreadForm, [=](Guest* guest) {
    return guest->cuda.cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode);
  });
}
CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture([=](Guest* guest) { return guest->cuda.cuStreamEndCapture(stream, graph); });
}
CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture([=](Guest* guest) { return guest->cuda.cuStreamEndCapture_ptsz(stream, graph); });
}

CUresult hook_cuStreamDestroy(CUstream stream) {
  Guest* guest = enter();
  if (guest->refusal == page::kRefusalNone) compute_stream_destroyed(guest, stream);
  return guest->cuda.cuStreamDestroy(stream);
}
CUresult hook_cuStreamDestroy_v2(CUstream stream) {
  Guest* guest = enter();
  if (guest->refusal == page::kRefusalNone) compute_stream_destroyed(guest, stream);
  return guest->cuda.cuStreamDestroy_v2(stream);
}

}  // extern "C"

}  // namespace sluice::guest
