// Commands that order a stream and do no work of the card: host functions, waits for events and values, writes of
// values, semaphores. Never gated (what they wait for may stand at the gate), never charged; a segment ends before
// them.
#include "guest/hooks.h"
#include "guest/hooks_work.h"

namespace sluice::guest {

extern "C" {

CUresult hook_cuGraphicsMapResources(unsigned int a0, CUgraphicsResource* a1, CUstream a2) {
  return boundary(a2, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuGraphicsMapResources(a0, a1, a2); });
}
CUresult hook_cuGraphicsMapResources_ptsz(unsigned int a0, CUgraphicsResource* a1, CUstream a2) {
  return boundary(a2, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuGraphicsMapResources_ptsz(a0, a1, a2); });
}
CUresult hook_cuGraphicsUnmapResources(unsigned int a0, CUgraphicsResource* a1, CUstream a2) {
  return boundary(a2, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuGraphicsUnmapResources(a0, a1, a2); });
}
CUresult hook_cuGraphicsUnmapResources_ptsz(unsigned int a0, CUgraphicsResource* a1, CUstream a2) {
  return boundary(a2, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuGraphicsUnmapResources_ptsz(a0, a1, a2); });
}
CUresult hook_cuLaunchHostFunc(CUstream a0, CUhostFn a1, void* a2) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuLaunchHostFunc(a0, a1, a2); });
}
CUresult hook_cuLaunchHostFunc_ptsz(CUstream a0, CUhostFn a1, void* a2) {
  return boundary(a0, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuLaunchHostFunc_ptsz(a0, a1, a2); });
}
CUresult hook_cuLaunchHostFunc_v2(CUstream a0, CUhostFn a1, void* a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuLaunchHostFunc_v2(a0, a1, a2, a3); });
}
CUresult hook_cuLaunchHostFunc_v2_ptsz(CUstream a0, CUhostFn a1, void* a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuLaunchHostFunc_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* a0, size_t* a1, size_t a2, CUmemLocation* a3, size_t* a4,
                                                size_t a5, unsigned long long a6, CUstream a7) {
  return boundary(a7, kLegacyForm, [=](Guest* guest) {
    return guest->cuda.cuMemDiscardAndPrefetchBatchAsync(a0, a1, a2, a3, a4, a5, a6, a7);
  });
}
CUresult hook_cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr* a0, size_t* a1, size_t a2, CUmemLocation* a3,
                                                     size_t* a4, size_t a5, unsigned long long a6, CUstream a7) {
  return boundary(a7, kPerThreadForm, [=](Guest* guest) {
    return guest->cuda.cuMemDiscardAndPrefetchBatchAsync_ptsz(a0, a1, a2, a3, a4, a5, a6, a7);
  });
}
CUresult hook_cuMemDiscardBatchAsync(CUdeviceptr* a0, size_t* a1, size_t a2, unsigned long long a3, CUstream a4) {
  return boundary(a4, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuMemDiscardBatchAsync(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemDiscardBatchAsync_ptsz(CUdeviceptr* a0, size_t* a1, size_t a2, unsigned long long a3, CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemDiscardBatchAsync_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemPrefetchAsync(CUdeviceptr a0, size_t a1, CUdevice a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemPrefetchAsync(a0, a1, a2, a3); });
}
CUresult hook_cuMemPrefetchAsync_ptsz(CUdeviceptr a0, size_t a1, CUdevice a2, CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemPrefetchAsync_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemPrefetchAsync_v2(CUdeviceptr a0, size_t a1, CUmemLocation a2, unsigned int a3, CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemPrefetchAsync_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemPrefetchAsync_v2_ptsz(CUdeviceptr a0, size_t a1, CUmemLocation a2, unsigned int a3, CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemPrefetchAsync_v2_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemPrefetchBatchAsync(CUdeviceptr* a0, size_t* a1, size_t a2, CUmemLocation* a3, size_t* a4, size_t a5,
                                      unsigned long long a6, CUstream a7) {
  return boundary(a7, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuMemPrefetchBatchAsync(a0, a1, a2, a3, a4, a5, a6, a7); });
}
CUresult hook_cuMemPrefetchBatchAsync_ptsz(CUdeviceptr* a0, size_t* a1, size_t a2, CUmemLocation* a3, size_t* a4,
                                           size_t a5, unsigned long long a6, CUstream a7) {
  return boundary(a7, kPerThreadForm, [=](Guest* guest) {
    return guest->cuda.cuMemPrefetchBatchAsync_ptsz(a0, a1, a2, a3, a4, a5, a6, a7);
  });
}
CUresult hook_cuSignalExternalSemaphoresAsync(const CUexternalSemaphore* a0,
                                              const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* a1, unsigned int a2,
                                              CUstream a3) {
  return boundary(a3, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuSignalExternalSemaphoresAsync(a0, a1, a2, a3); });
}
CUresult hook_cuSignalExternalSemaphoresAsync_ptsz(const CUexternalSemaphore* a0,
                                                   const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* a1, unsigned int a2,
                                                   CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuSignalExternalSemaphoresAsync_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamAddCallback(CUstream a0, CUstreamCallback a1, void* a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamAddCallback(a0, a1, a2, a3); });
}
CUresult hook_cuStreamAddCallback_ptsz(CUstream a0, CUstreamCallback a1, void* a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamAddCallback_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamAttachMemAsync(CUstream a0, CUdeviceptr a1, size_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamAttachMemAsync(a0, a1, a2, a3); });
}
CUresult hook_cuStreamAttachMemAsync_ptsz(CUstream a0, CUdeviceptr a1, size_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamAttachMemAsync_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamBatchMemOp(CUstream a0, unsigned int a1, CUstreamBatchMemOpParams* a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamBatchMemOp(a0, a1, a2, a3); });
}
CUresult hook_cuStreamBatchMemOp_ptsz(CUstream a0, unsigned int a1, CUstreamBatchMemOpParams* a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamBatchMemOp_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamBatchMemOp_v2(CUstream a0, unsigned int a1, CUstreamBatchMemOpParams* a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamBatchMemOp_v2(a0, a1, a2, a3); });
}
CUresult hook_cuStreamBatchMemOp_v2_ptsz(CUstream a0, unsigned int a1, CUstreamBatchMemOpParams* a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamBatchMemOp_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitEvent(CUstream a0, CUevent a1, unsigned int a2) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitEvent(a0, a1, a2); });
}
CUresult hook_cuStreamWaitEvent_ptsz(CUstream a0, CUevent a1, unsigned int a2) {
  return boundary(a0, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitEvent_ptsz(a0, a1, a2); });
}
CUresult hook_cuStreamWaitValue32(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitValue32(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue32_ptsz(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWaitValue32_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue32_v2(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitValue32_v2(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue32_v2_ptsz(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWaitValue32_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue64(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitValue64(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue64_ptsz(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWaitValue64_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue64_v2(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWaitValue64_v2(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWaitValue64_v2_ptsz(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWaitValue64_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue32(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWriteValue32(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue32_ptsz(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWriteValue32_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue32_v2(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWriteValue32_v2(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue32_v2_ptsz(CUstream a0, CUdeviceptr a1, cuuint32_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWriteValue32_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue64(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWriteValue64(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue64_ptsz(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWriteValue64_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue64_v2(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuStreamWriteValue64_v2(a0, a1, a2, a3); });
}
CUresult hook_cuStreamWriteValue64_v2_ptsz(CUstream a0, CUdeviceptr a1, cuuint64_t a2, unsigned int a3) {
  return boundary(a0, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuStreamWriteValue64_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuWaitExternalSemaphoresAsync(const CUexternalSemaphore* a0,
                                            const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* a1, unsigned int a2,
                                            CUstream a3) {
  return boundary(a3, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuWaitExternalSemaphoresAsync(a0, a1, a2, a3); });
}
CUresult hook_cuWaitExternalSemaphoresAsync_ptsz(const CUexternalSemaphore* a0,
                                                 const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* a1, unsigned int a2,
                                                 CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuWaitExternalSemaphoresAsync_ptsz(a0, a1, a2, a3); });
}

}  // extern "C"

}  // namespace sluice::guest
