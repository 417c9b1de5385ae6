// The copy and memset calls. Forms without a suffix are the first generation's, with 32-bit addresses and sizes.
#include <algorithm>
#include <cstring>

#include "sim/capture.h"
#include "sim/copy.h"

namespace sluice::sim {

namespace {

CUresult copy_call(const CUDA_MEMCPY3D& copy, CUstream handle, bool wait, const char* name) {
  Call call(name, kContext | (wait ? kNoCapture : 0u));
  if (call.result != CUDA_SUCCESS) return call.result;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  return copy_on_stream(call, *stream, copy, wait);
}

CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D& c) {
  CUDA_MEMCPY3D d{};
  d.srcXInBytes = c.srcXInBytes;
  d.srcY = c.srcY;
  d.srcMemoryType = c.srcMemoryType;
  d.srcHost = c.srcHost;
  d.srcDevice = c.srcDevice;
  d.srcArray = c.srcArray;
  d.srcPitch = c.srcPitch;
  d.dstXInBytes = c.dstXInBytes;
  d.dstY = c.dstY;
  d.dstMemoryType = c.dstMemoryType;
  d.dstHost = c.dstHost;
  d.dstDevice = c.dstDevice;
  d.dstArray = c.dstArray;
  d.dstPitch = c.dstPitch;
  d.WidthInBytes = c.WidthInBytes;
  d.Height = c.Height;
  d.Depth = 1;
  return d;
}

template <typename Old>
CUDA_MEMCPY3D from_old_2d(const Old& c) {
  return from_2d({c.srcXInBytes, c.srcY, c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcPitch, c.dstXInBytes,
                  c.dstY, c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstPitch, c.WidthInBytes, c.Height});
}

CUDA_MEMCPY3D from_old_3d(const CUDA_MEMCPY3D_v1& c) {
  CUDA_MEMCPY3D d = from_old_2d(c);
  d.srcZ = c.srcZ;
  d.srcLOD = c.srcLOD;
  d.srcHeight = c.srcHeight;
  d.dstZ = c.dstZ;
  d.dstLOD = c.dstLOD;
  d.dstHeight = c.dstHeight;
  d.Depth = c.Depth;
  return d;
}

CUDA_MEMCPY3D from_peer(const CUDA_MEMCPY3D_PEER& c) {
  CUDA_MEMCPY3D d{};
  d.srcXInBytes = c.srcXInBytes, d.srcY = c.srcY, d.srcZ = c.srcZ, d.srcMemoryType = c.srcMemoryType,
  d.srcHost = c.srcHost;
  d.srcDevice = c.srcDevice, d.srcArray = c.srcArray, d.srcPitch = c.srcPitch, d.srcHeight = c.srcHeight;
  d.dstXInBytes = c.dstXInBytes, d.dstY = c.dstY, d.dstZ = c.dstZ, d.dstMemoryType = c.dstMemoryType,
  d.dstHost = c.dstHost;
  d.dstDevice = c.dstDevice, d.dstArray = c.dstArray, d.dstPitch = c.dstPitch, d.dstHeight = c.dstHeight;
  d.WidthInBytes = c.WidthInBytes, d.Height = c.Height, d.Depth = c.Depth;
  return d;
}

// Part of an array from a byte offset on: whole rows in between are contiguous only when nothing pads them, so a run is
// cut at the end of its row.
CUresult array_copy(CUarray to, size_t to_offset, CUarray from, size_t from_offset, CUdeviceptr device, void* host,
                    bool host_side, size_t bytes, CUstream stream, bool wait, const char* name) {
  Process& process = current_process();
  ArrayLayout layout;
  const CUarray array = to != nullptr ? to : from;
  if (!array_layout(process, array, &layout) || layout.pitch_bytes == 0) return CUDA_ERROR_INVALID_HANDLE;
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = from != nullptr ? CU_MEMORYTYPE_ARRAY : host_side ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  c.dstMemoryType = to != nullptr ? CU_MEMORYTYPE_ARRAY : host_side ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  c.srcArray = from;
  c.dstArray = to;
  c.srcHost = c.dstHost = host;
  c.srcDevice = c.dstDevice = device;
  if (from != nullptr) c.srcXInBytes = from_offset;
  if (to != nullptr) c.dstXInBytes = to_offset;
  c.WidthInBytes = bytes;
  c.Height = c.Depth = 1;
  return copy_call(c, stream, wait, name);
}

CUresult memset_call(CUdeviceptr dst, size_t pitch, unsigned value, unsigned size, size_t width, size_t height,
                     CUstream handle, bool wait, const char* name) {
  Call call(name, kContext | (wait ? kNoCapture : 0u));
  if (call.result != CUDA_SUCCESS) return call.result;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(call, handle, &stream); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_implicit_capture(call, *stream); result != CUDA_SUCCESS) return result;
  const CUDA_MEMSET_NODE_PARAMS_v1 params{dst, pitch, value, size, width, height};
  if (stream->capture != nullptr) {
    return wait ? check_not_capturing(*stream) : capture_node(*stream, make_memset_node(call.process, params));
  }
  MemsetPlan plan;
  if (const CUresult result = plan_memset(call.process, params, &plan); result != CUDA_SUCCESS) return result;
  if (plan.bytes == 0) return CUDA_SUCCESS;
  Submission s;
  s.kind = CommandKind::kMemset;
  s.duration_ns = memset_duration(*call.process.device(stream->context->card)->card, plan);
  s.effect = call.process.add_effect(std::move(plan.run));
  CommandRef made;
  if (const CUresult result = enqueue(call, *stream, s, Charge::kCopy, &made); result != CUDA_SUCCESS) return result;
  // On the card memsets are asynchronous in all forms; the host sees its own memory set when the plain form returns.
  return wait && plan.host ? wait_command(*stream->context, made) : CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_call(linear_copy(to, from, n), nullptr, true, "cuMemcpy");
}
CUresult sim_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_call(linear_copy(to, from, n), s, false, "cuMemcpyAsync");
}
CUresult sim_cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUmemcpyAttributes*, CUstream s) {
  return copy_call(linear_copy(to, from, n), s, false, "cuMemcpyWithAttributesAsync");
}
CUresult sim_cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n) {
  return copy_call(linear_copy(to, from, n), nullptr, true, "cuMemcpyPeer");
}
CUresult sim_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream s) {
  return copy_call(linear_copy(to, from, n), s, false, "cuMemcpyPeerAsync");
}

CUresult sim_cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) {
  return copy_call(linear_copy_to_device(to, from, n), nullptr, true, "cuMemcpyHtoD_v2");
}
CUresult sim_cuMemcpyHtoD(CUdeviceptr_v1 to, const void* from, unsigned n) {
  return sim_cuMemcpyHtoD_v2(to, from, n);
}
CUresult sim_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream s) {
  return copy_call(linear_copy_to_device(to, from, n), s, false, "cuMemcpyHtoDAsync_v2");
}
CUresult sim_cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void* from, unsigned n, CUstream s) {
  return sim_cuMemcpyHtoDAsync_v2(to, from, n, s);
}
CUresult sim_cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) {
  return copy_call(linear_copy_to_host(to, from, n), nullptr, true, "cuMemcpyDtoH_v2");
}
CUresult sim_cuMemcpyDtoH(void* to, CUdeviceptr_v1 from, unsigned n) {
  return sim_cuMemcpyDtoH_v2(to, from, n);
}
CUresult sim_cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_call(linear_copy_to_host(to, from, n), s, false, "cuMemcpyDtoHAsync_v2");
}
CUresult sim_cuMemcpyDtoHAsync(void* to, CUdeviceptr_v1 from, unsigned n, CUstream s) {
  return sim_cuMemcpyDtoHAsync_v2(to, from, n, s);
}
CUresult sim_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return copy_call(linear_copy(to, from, n), nullptr, true, "cuMemcpyDtoD_v2");
}
CUresult sim_cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n) {
  return sim_cuMemcpyDtoD_v2(to, from, n);
}
CUresult sim_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return copy_call(linear_copy(to, from, n), s, false, "cuMemcpyDtoDAsync_v2");
}
CUresult sim_cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned n, CUstream s) {
  return sim_cuMemcpyDtoDAsync_v2(to, from, n, s);
}

CUresult sim_cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t n) {
  return array_copy(to, offset, nullptr, 0, from, nullptr, false, n, nullptr, true, "cuMemcpyDtoA_v2");
}
CUresult sim_cuMemcpyDtoA(CUarray to, unsigned offset, CUdeviceptr_v1 from, unsigned n) {
  return sim_cuMemcpyDtoA_v2(to, offset, from, n);
}
CUresult sim_cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t n) {
  return array_copy(nullptr, 0, from, offset, to, nullptr, false, n, nullptr, true, "cuMemcpyAtoD_v2");
}
CUresult sim_cuMemcpyAtoD(CUdeviceptr_v1 to, CUarray from, unsigned offset, unsigned n) {
  return sim_cuMemcpyAtoD_v2(to, from, offset, n);
}
CUresult sim_cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t n) {
  return array_copy(to, offset, nullptr, 0, 0, const_cast<void*>(from), true, n, nullptr, true, "cuMemcpyHtoA_v2");
}
CUresult sim_cuMemcpyHtoA(CUarray to, unsigned offset, const void* from, unsigned n) {
  return sim_cuMemcpyHtoA_v2(to, offset, from, n);
}
CUresult sim_cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t n, CUstream s) {
  return array_copy(to, offset, nullptr, 0, 0, const_cast<void*>(from), true, n, s, false, "cuMemcpyHtoAAsync_v2");
}
CUresult sim_cuMemcpyHtoAAsync(CUarray to, unsigned offset, const void* from, unsigned n, CUstream s) {
  return sim_cuMemcpyHtoAAsync_v2(to, offset, from, n, s);
}
CUresult sim_cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t n) {
  return array_copy(nullptr, 0, from, offset, 0, to, true, n, nullptr, true, "cuMemcpyAtoH_v2");
}
CUresult sim_cuMemcpyAtoH(void* to, CUarray from, unsigned offset, unsigned n) {
  return sim_cuMemcpyAtoH_v2(to, from, offset, n);
}
CUresult sim_cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t n, CUstream s) {
  return array_copy(nullptr, 0, from, offset, 0, to, true, n, s, false, "cuMemcpyAtoHAsync_v2");
}
CUresult sim_cuMemcpyAtoHAsync(void* to, CUarray from, unsigned offset, unsigned n, CUstream s) {
  return sim_cuMemcpyAtoHAsync_v2(to, from, offset, n, s);
}
CUresult sim_cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t n) {
  return array_copy(to, to_offset, from, from_offset, 0, nullptr, false, n, nullptr, true, "cuMemcpyAtoA_v2");
}
CUresult sim_cuMemcpyAtoA(CUarray to, unsigned to_offset, CUarray from, unsigned from_offset, unsigned n) {
  return sim_cuMemcpyAtoA_v2(to, to_offset, from, from_offset, n);
}

#define SIM_NULL_CHECK(c) \
  if ((c) == nullptr) return CUDA_ERROR_INVALID_VALUE
CUresult sim_cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) {
  SIM_NULL_CHECK(c);
  return copy_call(from_2d(*c), nullptr, true, "cuMemcpy2D_v2");
}
CUresult sim_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) {
  return sim_cuMemcpy2D_v2(c);
}
CUresult sim_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream s) {
  SIM_NULL_CHECK(c);
  return copy_call(from_2d(*c), s, false, "cuMemcpy2DAsync_v2");
}
CUresult sim_cuMemcpy2D(const CUDA_MEMCPY2D_v1* c) {
  SIM_NULL_CHECK(c);
  return copy_call(from_old_2d(*c), nullptr, true, "cuMemcpy2D");
}
CUresult sim_cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* c) {
  return sim_cuMemcpy2D(c);
}
CUresult sim_cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* c, CUstream s) {
  SIM_NULL_CHECK(c);
  return copy_call(from_old_2d(*c), s, false, "cuMemcpy2DAsync");
}
CUresult sim_cuMemcpy3D_v2(const CUDA_MEMCPY3D* c) {
  SIM_NULL_CHECK(c);
  return copy_call(*c, nullptr, true, "cuMemcpy3D_v2");
}
CUresult sim_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* c, CUstream s) {
  SIM_NULL_CHECK(c);
  return copy_call(*c, s, false, "cuMemcpy3DAsync_v2");
}
CUresult sim_cuMemcpy3D(const CUDA_MEMCPY3D_v1* c) {
  SIM_NULL_CHECK(c);
  return copy_call(from_old_3d(*c), nullptr, true, "cuMemcpy3D");
}
CUresult sim_cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* c, CUstream s) {
  SIM_NULL_CHECK(c);
  return copy_call(from_old_3d(*c), s, false, "cuMemcpy3DAsync");
}
CUresult sim_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* c) {
  SIM_NULL_CHECK(c);
  return copy_call(from_peer(*c), nullptr, true, "cuMemcpy3DPeer");
}
CUresult sim_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* c, CUstream s) {
  SIM_NULL_CHECK(c);
  return copy_call(from_peer(*c), s, false, "cuMemcpy3DPeerAsync");
}

CUresult sim_cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count, CUmemcpyAttributes*,
                                   size_t*, size_t, CUstream s) {
  if (to == nullptr || from == nullptr || sizes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (s == nullptr || s == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; i < count; ++i) {
    if (const CUresult result = copy_call(linear_copy(to[i], from[i], sizes[i]), s, false, "cuMemcpyBatchAsync_v2");
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}
CUresult sim_cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                CUmemcpyAttributes* attrs, size_t* indices, size_t attr_count, size_t* failed,
                                CUstream s) {
  const CUresult result = sim_cuMemcpyBatchAsync_v2(to, from, sizes, count, attrs, indices, attr_count, s);
  if (result != CUDA_SUCCESS && failed != nullptr) *failed = SIZE_MAX;
  return result;
}

#define SIM_MEMSET(bits, type)                                                                                 \
  CUresult sim_cuMemsetD##bits##_v2(CUdeviceptr d, type v, size_t n) {                                         \
    return memset_call(d, 0, v, bits / 8, n, 1, nullptr, true, "cuMemsetD" #bits "_v2");                       \
  }                                                                                                            \
  CUresult sim_cuMemsetD##bits(CUdeviceptr_v1 d, type v, unsigned n) {                                         \
    return sim_cuMemsetD##bits##_v2(d, v, n);                                                                  \
  }                                                                                                            \
  CUresult sim_cuMemsetD##bits##Async(CUdeviceptr d, type v, size_t n, CUstream s) {                           \
    return memset_call(d, 0, v, bits / 8, n, 1, s, false, "cuMemsetD" #bits "Async");                          \
  }                                                                                                            \
  CUresult sim_cuMemsetD2D##bits##_v2(CUdeviceptr d, size_t pitch, type v, size_t w, size_t h) {               \
    return memset_call(d, pitch, v, bits / 8, w, h, nullptr, true, "cuMemsetD2D" #bits "_v2");                 \
  }                                                                                                            \
  CUresult sim_cuMemsetD2D##bits(CUdeviceptr_v1 d, unsigned pitch, type v, unsigned w, unsigned h) {           \
    return sim_cuMemsetD2D##bits##_v2(d, pitch, v, w, h);                                                      \
  }                                                                                                            \
  CUresult sim_cuMemsetD2D##bits##Async(CUdeviceptr d, size_t pitch, type v, size_t w, size_t h, CUstream s) { \
    return memset_call(d, pitch, v, bits / 8, w, h, s, false, "cuMemsetD2D" #bits "Async");                    \
  }
SIM_MEMSET(8, unsigned char)
SIM_MEMSET(16, unsigned short)
SIM_MEMSET(32, unsigned)
}
