// Copies. What stays on the card is work like a kernel; what passes through the host runs on copy engines: never gated,
// never charged, and it ends a segment. Where the call does not say which it is, the memory types of its ends do.
#include "guest/hooks.h"
#include "guest/hooks_work.h"

namespace sluice::guest {

namespace {

template <typename Copy, typename Call>
CUresult described(CUstream stream, StreamForm form, const Copy* copy, Call call) {
  return on_card(copy) ? unit(stream, form, device_key(kCopy, bytes_of(copy)), call) : boundary(stream, form, call);
}

template <typename Call>
CUresult pointers(CUstream stream, StreamForm form, CUdeviceptr to, CUdeviceptr from, size_t bytes, Call call) {
  return both_on_card(to, from) ? unit(stream, form, device_key(kCopy, bytes), call) : boundary(stream, form, call);
}

}  // namespace

extern "C" {

CUresult hook_cuMemcpy(CUdeviceptr a0, CUdeviceptr a1, size_t a2) {
  return pointers(nullptr, kLegacyForm, a0, a1, a2, [=](Guest* guest) { return guest->cuda.cuMemcpy(a0, a1, a2); });
}
CUresult hook_cuMemcpy2D(const CUDA_MEMCPY2D_v1* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2D(a0); });
}
CUresult hook_cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* a0, CUstream a1) {
  return described(a1, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2DAsync(a0, a1); });
}
CUresult hook_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* a0, CUstream a1) {
  return described(a1, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2DAsync_v2(a0, a1); });
}
CUresult hook_cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* a0, CUstream a1) {
  return described(a1, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2DAsync_v2_ptsz(a0, a1); });
}
CUresult hook_cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2DUnaligned(a0); });
}
CUresult hook_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2DUnaligned_v2(a0); });
}
CUresult hook_cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* a0) {
  return described(nullptr, kPerThreadForm, a0,
                   [=](Guest* guest) { return guest->cuda.cuMemcpy2DUnaligned_v2_ptds(a0); });
}
CUresult hook_cuMemcpy2D_v2(const CUDA_MEMCPY2D* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2D_v2(a0); });
}
CUresult hook_cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* a0) {
  return described(nullptr, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy2D_v2_ptds(a0); });
}
CUresult hook_cuMemcpy3D(const CUDA_MEMCPY3D_v1* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3D(a0); });
}
CUresult hook_cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* a0, CUstream a1) {
  return described(a1, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DAsync(a0, a1); });
}
CUresult hook_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* a0, CUstream a1) {
  return described(a1, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DAsync_v2(a0, a1); });
}
CUresult hook_cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* a0, CUstream a1) {
  return described(a1, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DAsync_v2_ptsz(a0, a1); });
}
CUresult hook_cuMemcpy3DBatchAsync(size_t a0, CUDA_MEMCPY3D_BATCH_OP* a1, size_t* a2, unsigned long long a3,
                                   CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpy3DBatchAsync(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpy3DBatchAsync_ptsz(size_t a0, CUDA_MEMCPY3D_BATCH_OP* a1, size_t* a2, unsigned long long a3,
                                        CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpy3DBatchAsync_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpy3DBatchAsync_v2(size_t a0, CUDA_MEMCPY3D_BATCH_OP* a1, unsigned long long a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpy3DBatchAsync_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpy3DBatchAsync_v2_ptsz(size_t a0, CUDA_MEMCPY3D_BATCH_OP* a1, unsigned long long a2, CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpy3DBatchAsync_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DPeer(a0); });
}
CUresult hook_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* a0, CUstream a1) {
  return described(a1, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DPeerAsync(a0, a1); });
}
CUresult hook_cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* a0, CUstream a1) {
  return described(a1, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DPeerAsync_ptsz(a0, a1); });
}
CUresult hook_cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* a0) {
  return described(nullptr, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3DPeer_ptds(a0); });
}
CUresult hook_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* a0, unsigned long long a1, CUstream a2) {
  return boundary(a2, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpy3DWithAttributesAsync(a0, a1, a2); });
}
CUresult hook_cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP* a0, unsigned long long a1, CUstream a2) {
  return boundary(a2, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpy3DWithAttributesAsync_ptsz(a0, a1, a2); });
}
CUresult hook_cuMemcpy3D_v2(const CUDA_MEMCPY3D* a0) {
  return described(nullptr, kLegacyForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3D_v2(a0); });
}
CUresult hook_cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* a0) {
  return described(nullptr, kPerThreadForm, a0, [=](Guest* guest) { return guest->cuda.cuMemcpy3D_v2_ptds(a0); });
}
CUresult hook_cuMemcpyAsync(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return pointers(a3, kLegacyForm, a0, a1, a2, [=](Guest* guest) { return guest->cuda.cuMemcpyAsync(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAsync_ptsz(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return pointers(a3, kPerThreadForm, a0, a1, a2,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyAsync_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoA(CUarray a0, unsigned int a1, CUarray a2, unsigned int a3, unsigned int a4) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoA(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoA_v2(CUarray a0, size_t a1, CUarray a2, size_t a3, size_t a4) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoA_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoA_v2_ptds(CUarray a0, size_t a1, CUarray a2, size_t a3, size_t a4) {
  return unit(nullptr, kPerThreadForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoA_v2_ptds(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoD(CUdeviceptr_v1 a0, CUarray a1, unsigned int a2, unsigned int a3) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoD(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoD_v2(CUdeviceptr a0, CUarray a1, size_t a2, size_t a3) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoD_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoD_v2_ptds(CUdeviceptr a0, CUarray a1, size_t a2, size_t a3) {
  return unit(nullptr, kPerThreadForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyAtoD_v2_ptds(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoH(void* a0, CUarray a1, unsigned int a2, unsigned int a3) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyAtoH(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoHAsync(void* a0, CUarray a1, unsigned int a2, unsigned int a3, CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyAtoHAsync(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoHAsync_v2(void* a0, CUarray a1, size_t a2, size_t a3, CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyAtoHAsync_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoHAsync_v2_ptsz(void* a0, CUarray a1, size_t a2, size_t a3, CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyAtoHAsync_v2_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyAtoH_v2(void* a0, CUarray a1, size_t a2, size_t a3) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyAtoH_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyAtoH_v2_ptds(void* a0, CUarray a1, size_t a2, size_t a3) {
  return boundary(nullptr, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyAtoH_v2_ptds(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyBatchAsync(CUdeviceptr* a0, CUdeviceptr* a1, size_t* a2, size_t a3, CUmemcpyAttributes* a4,
                                 size_t* a5, size_t a6, size_t* a7, CUstream a8) {
  return boundary(a8, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyBatchAsync(a0, a1, a2, a3, a4, a5, a6, a7, a8); });
}
CUresult hook_cuMemcpyBatchAsync_ptsz(CUdeviceptr* a0, CUdeviceptr* a1, size_t* a2, size_t a3, CUmemcpyAttributes* a4,
                                      size_t* a5, size_t a6, size_t* a7, CUstream a8) {
  return boundary(a8, kPerThreadForm, [=](Guest* guest) {
    return guest->cuda.cuMemcpyBatchAsync_ptsz(a0, a1, a2, a3, a4, a5, a6, a7, a8);
  });
}
CUresult hook_cuMemcpyBatchAsync_v2(CUdeviceptr* a0, CUdeviceptr* a1, size_t* a2, size_t a3, CUmemcpyAttributes* a4,
                                    size_t* a5, size_t a6, CUstream a7) {
  return boundary(a7, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyBatchAsync_v2(a0, a1, a2, a3, a4, a5, a6, a7); });
}
CUresult hook_cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* a0, CUdeviceptr* a1, size_t* a2, size_t a3,
                                         CUmemcpyAttributes* a4, size_t* a5, size_t a6, CUstream a7) {
  return boundary(a7, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyBatchAsync_v2_ptsz(a0, a1, a2, a3, a4, a5, a6, a7); });
}
CUresult hook_cuMemcpyDtoA(CUarray a0, unsigned int a1, CUdeviceptr_v1 a2, unsigned int a3) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoA(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoA_v2(CUarray a0, size_t a1, CUdeviceptr a2, size_t a3) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoA_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoA_v2_ptds(CUarray a0, size_t a1, CUdeviceptr a2, size_t a3) {
  return unit(nullptr, kPerThreadForm, device_key(kCopy, a3),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoA_v2_ptds(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoD(CUdeviceptr_v1 a0, CUdeviceptr_v1 a1, unsigned int a2) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoD(a0, a1, a2); });
}
CUresult hook_cuMemcpyDtoDAsync(CUdeviceptr_v1 a0, CUdeviceptr_v1 a1, unsigned int a2, CUstream a3) {
  return unit(a3, kLegacyForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoDAsync(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoDAsync_v2(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return unit(a3, kLegacyForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoDAsync_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return unit(a3, kPerThreadForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoDAsync_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoD_v2(CUdeviceptr a0, CUdeviceptr a1, size_t a2) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoD_v2(a0, a1, a2); });
}
CUresult hook_cuMemcpyDtoD_v2_ptds(CUdeviceptr a0, CUdeviceptr a1, size_t a2) {
  return unit(nullptr, kPerThreadForm, device_key(kCopy, a2),
              [=](Guest* guest) { return guest->cuda.cuMemcpyDtoD_v2_ptds(a0, a1, a2); });
}
CUresult hook_cuMemcpyDtoH(void* a0, CUdeviceptr_v1 a1, unsigned int a2) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyDtoH(a0, a1, a2); });
}
CUresult hook_cuMemcpyDtoHAsync(void* a0, CUdeviceptr_v1 a1, unsigned int a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyDtoHAsync(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoHAsync_v2(void* a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyDtoHAsync_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoHAsync_v2_ptsz(void* a0, CUdeviceptr a1, size_t a2, CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyDtoHAsync_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyDtoH_v2(void* a0, CUdeviceptr a1, size_t a2) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyDtoH_v2(a0, a1, a2); });
}
CUresult hook_cuMemcpyDtoH_v2_ptds(void* a0, CUdeviceptr a1, size_t a2) {
  return boundary(nullptr, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuMemcpyDtoH_v2_ptds(a0, a1, a2); });
}
CUresult hook_cuMemcpyHtoA(CUarray a0, unsigned int a1, const void* a2, unsigned int a3) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoA(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoAAsync(CUarray a0, unsigned int a1, const void* a2, unsigned int a3, CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoAAsync(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyHtoAAsync_v2(CUarray a0, size_t a1, const void* a2, size_t a3, CUstream a4) {
  return boundary(a4, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoAAsync_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyHtoAAsync_v2_ptsz(CUarray a0, size_t a1, const void* a2, size_t a3, CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyHtoAAsync_v2_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyHtoA_v2(CUarray a0, size_t a1, const void* a2, size_t a3) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoA_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoA_v2_ptds(CUarray a0, size_t a1, const void* a2, size_t a3) {
  return boundary(nullptr, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyHtoA_v2_ptds(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoD(CUdeviceptr_v1 a0, const void* a1, unsigned int a2) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoD(a0, a1, a2); });
}
CUresult hook_cuMemcpyHtoDAsync(CUdeviceptr_v1 a0, const void* a1, unsigned int a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoDAsync(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoDAsync_v2(CUdeviceptr a0, const void* a1, size_t a2, CUstream a3) {
  return boundary(a3, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoDAsync_v2(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr a0, const void* a1, size_t a2, CUstream a3) {
  return boundary(a3, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyHtoDAsync_v2_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemcpyHtoD_v2(CUdeviceptr a0, const void* a1, size_t a2) {
  return boundary(nullptr, kLegacyForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoD_v2(a0, a1, a2); });
}
CUresult hook_cuMemcpyHtoD_v2_ptds(CUdeviceptr a0, const void* a1, size_t a2) {
  return boundary(nullptr, kPerThreadForm, [=](Guest* guest) { return guest->cuda.cuMemcpyHtoD_v2_ptds(a0, a1, a2); });
}
CUresult hook_cuMemcpyPeer(CUdeviceptr a0, CUcontext a1, CUdeviceptr a2, CUcontext a3, size_t a4) {
  return unit(nullptr, kLegacyForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyPeer(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyPeerAsync(CUdeviceptr a0, CUcontext a1, CUdeviceptr a2, CUcontext a3, size_t a4, CUstream a5) {
  return unit(a5, kLegacyForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyPeerAsync(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemcpyPeerAsync_ptsz(CUdeviceptr a0, CUcontext a1, CUdeviceptr a2, CUcontext a3, size_t a4,
                                     CUstream a5) {
  return unit(a5, kPerThreadForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyPeerAsync_ptsz(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemcpyPeer_ptds(CUdeviceptr a0, CUcontext a1, CUdeviceptr a2, CUcontext a3, size_t a4) {
  return unit(nullptr, kPerThreadForm, device_key(kCopy, a4),
              [=](Guest* guest) { return guest->cuda.cuMemcpyPeer_ptds(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyWithAttributesAsync(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUmemcpyAttributes* a3,
                                          CUstream a4) {
  return boundary(a4, kLegacyForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyWithAttributesAsync(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr a0, CUdeviceptr a1, size_t a2, CUmemcpyAttributes* a3,
                                               CUstream a4) {
  return boundary(a4, kPerThreadForm,
                  [=](Guest* guest) { return guest->cuda.cuMemcpyWithAttributesAsync_ptsz(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemcpy_ptds(CUdeviceptr a0, CUdeviceptr a1, size_t a2) {
  return pointers(nullptr, kPerThreadForm, a0, a1, a2,
                  [=](Guest* guest) { return guest->cuda.cuMemcpy_ptds(a0, a1, a2); });
}

}  // extern "C"

}  // namespace sluice::guest
