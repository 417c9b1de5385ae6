// A stand-in for libcuda.so.1 to link against where no driver is installed, as the CUDA toolkit's stub library is. Only
// its name and symbols matter; at run time the loader takes the real library of that name.
#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

extern "C" {
CUresult cuInit(unsigned int) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuDeviceGet(CUdevice*, int) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuMemGetInfo_v2(size_t*, size_t*) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t) {
  return CUDA_ERROR_STUB_LIBRARY;
}
CUresult cuMemFree_v2(CUdeviceptr) {
  return CUDA_ERROR_STUB_LIBRARY;
}
}
