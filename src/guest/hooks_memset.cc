// Memsets on the card: work like a kernel, gated and charged. Synchronous ones run on the default stream.
#include "guest/hooks.h"
#include "guest/hooks_work.h"

namespace sluice::guest {

extern "C" {

CUresult hook_cuMemsetD16(CUdeviceptr_v1 a0, unsigned short a1, unsigned int a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD16(a0, a1, a2); });
}
CUresult hook_cuMemsetD16Async(CUdeviceptr a0, unsigned short a1, size_t a2, CUstream a3) {
  return unit(a3, kLegacyForm, device_key(kMemset, a2 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD16Async(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD16Async_ptsz(CUdeviceptr a0, unsigned short a1, size_t a2, CUstream a3) {
  return unit(a3, kPerThreadForm, device_key(kMemset, a2 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD16Async_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD16_v2(CUdeviceptr a0, unsigned short a1, size_t a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD16_v2(a0, a1, a2); });
}
CUresult hook_cuMemsetD16_v2_ptds(CUdeviceptr a0, unsigned short a1, size_t a2) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a2 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD16_v2_ptds(a0, a1, a2); });
}
CUresult hook_cuMemsetD2D16(CUdeviceptr_v1 a0, unsigned int a1, unsigned short a2, unsigned int a3, unsigned int a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D16(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D16Async(CUdeviceptr a0, size_t a1, unsigned short a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kLegacyForm, device_key(kMemset, a3 * a4 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D16Async(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D16Async_ptsz(CUdeviceptr a0, size_t a1, unsigned short a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kPerThreadForm, device_key(kMemset, a3 * a4 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D16Async_ptsz(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D16_v2(CUdeviceptr a0, size_t a1, unsigned short a2, size_t a3, size_t a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D16_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D16_v2_ptds(CUdeviceptr a0, size_t a1, unsigned short a2, size_t a3, size_t a4) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a3 * a4 * 2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D16_v2_ptds(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D32(CUdeviceptr_v1 a0, unsigned int a1, unsigned int a2, unsigned int a3, unsigned int a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D32(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D32Async(CUdeviceptr a0, size_t a1, unsigned int a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kLegacyForm, device_key(kMemset, a3 * a4 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D32Async(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D32Async_ptsz(CUdeviceptr a0, size_t a1, unsigned int a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kPerThreadForm, device_key(kMemset, a3 * a4 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D32Async_ptsz(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D32_v2(CUdeviceptr a0, size_t a1, unsigned int a2, size_t a3, size_t a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D32_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D32_v2_ptds(CUdeviceptr a0, size_t a1, unsigned int a2, size_t a3, size_t a4) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a3 * a4 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D32_v2_ptds(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D8(CUdeviceptr_v1 a0, unsigned int a1, unsigned char a2, unsigned int a3, unsigned int a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D8(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D8Async(CUdeviceptr a0, size_t a1, unsigned char a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kLegacyForm, device_key(kMemset, a3 * a4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D8Async(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D8Async_ptsz(CUdeviceptr a0, size_t a1, unsigned char a2, size_t a3, size_t a4, CUstream a5) {
  return unit(a5, kPerThreadForm, device_key(kMemset, a3 * a4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D8Async_ptsz(a0, a1, a2, a3, a4, a5); });
}
CUresult hook_cuMemsetD2D8_v2(CUdeviceptr a0, size_t a1, unsigned char a2, size_t a3, size_t a4) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a3 * a4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D8_v2(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD2D8_v2_ptds(CUdeviceptr a0, size_t a1, unsigned char a2, size_t a3, size_t a4) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a3 * a4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD2D8_v2_ptds(a0, a1, a2, a3, a4); });
}
CUresult hook_cuMemsetD32(CUdeviceptr_v1 a0, unsigned int a1, unsigned int a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD32(a0, a1, a2); });
}
CUresult hook_cuMemsetD32Async(CUdeviceptr a0, unsigned int a1, size_t a2, CUstream a3) {
  return unit(a3, kLegacyForm, device_key(kMemset, a2 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD32Async(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD32Async_ptsz(CUdeviceptr a0, unsigned int a1, size_t a2, CUstream a3) {
  return unit(a3, kPerThreadForm, device_key(kMemset, a2 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD32Async_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD32_v2(CUdeviceptr a0, unsigned int a1, size_t a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD32_v2(a0, a1, a2); });
}
CUresult hook_cuMemsetD32_v2_ptds(CUdeviceptr a0, unsigned int a1, size_t a2) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a2 * 4),
              [=](Guest* guest) { return guest->cuda.cuMemsetD32_v2_ptds(a0, a1, a2); });
}
CUresult hook_cuMemsetD8(CUdeviceptr_v1 a0, unsigned char a1, unsigned int a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD8(a0, a1, a2); });
}
CUresult hook_cuMemsetD8Async(CUdeviceptr a0, unsigned char a1, size_t a2, CUstream a3) {
  return unit(a3, kLegacyForm, device_key(kMemset, a2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD8Async(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD8Async_ptsz(CUdeviceptr a0, unsigned char a1, size_t a2, CUstream a3) {
  return unit(a3, kPerThreadForm, device_key(kMemset, a2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD8Async_ptsz(a0, a1, a2, a3); });
}
CUresult hook_cuMemsetD8_v2(CUdeviceptr a0, unsigned char a1, size_t a2) {
  return unit(nullptr, kLegacyForm, device_key(kMemset, a2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD8_v2(a0, a1, a2); });
}
CUresult hook_cuMemsetD8_v2_ptds(CUdeviceptr a0, unsigned char a1, size_t a2) {
  return unit(nullptr, kPerThreadForm, device_key(kMemset, a2),
              [=](Guest* guest) { return guest->cuda.cuMemsetD8_v2_ptds(a0, a1, a2); });
}

}  // extern "C"

}  // namespace sluice::guest
