// What the hooks of the compute part do around the driver's call: `unit` for work of the card, `boundary` for anything
// else on a stream.
#pragma once

#include "guest/compute.h"
#include "guest/guest.h"

namespace sluice::guest {

enum DeviceWork : uint64_t { kMemset = 1, kCopy = 2 };

// Key of device copies and memsets: the kind and the power of two of the size.
inline uint64_t device_key(DeviceWork kind, uint64_t bytes) {
  return unit_key(0xc0b1ull + kind, bytes == 0 ? 0 : 64 - static_cast<uint64_t>(__builtin_clzll(bytes)), 0);
}

// True when the hook has nothing to do but to call the driver.
inline bool passes(const Guest* guest) {
  return guest->refusal != page::kRefusalNone || compute_free(guest);
}

inline uint64_t key_of(uint64_t key) {
  return key;
}
template <typename Key>
inline uint64_t key_of(Key key) {
  return key();
}

// `key`: the unit's key, or a function that makes it, which costs nothing where nothing is measured.
template <typename Key, typename Call>
inline CUresult unit(CUstream stream, StreamForm form, Key key, Call call) {
  Guest* guest = enter();
  if (__builtin_expect(passes(guest), 0)) return call(guest);
  const Launch launch = compute_before(guest, stream, form, key_of(key));
  const CUresult result = call(guest);
  compute_after(guest, launch, result);
  return result;
}

template <typename Call>
inline CUresult boundary(CUstream stream, StreamForm form, Call call) {
  Guest* guest = enter();
  if (!passes(guest)) compute_boundary(guest, stream, form);
  return call(guest);
}

// Copies whose call does not say where they run.
inline bool both_on_card(CUdeviceptr to, CUdeviceptr from) {
  Guest* guest = enter();
  if (passes(guest)) return false;
  unsigned int to_type = 0;
  unsigned int from_type = 0;
  return guest->cuda.cuPointerGetAttribute(&to_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, to) == CUDA_SUCCESS &&
         guest->cuda.cuPointerGetAttribute(&from_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, from) == CUDA_SUCCESS &&
         to_type == CU_MEMORYTYPE_DEVICE && from_type == CU_MEMORYTYPE_DEVICE;
}

template <typename Copy>
inline bool on_card(const Copy* copy) {
  if (copy == nullptr) return false;
  const auto on = [](CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY; };
  if (copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED && copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
    return both_on_card(copy->dstDevice, copy->srcDevice);
  }
  return on(copy->srcMemoryType) && on(copy->dstMemoryType);
}

template <typename Copy>
inline uint64_t bytes_of(const Copy* copy) {
  if constexpr (requires { copy->Depth; }) {
    return copy->WidthInBytes * copy->Height * copy->Depth;
  } else {
    return copy->WidthInBytes * copy->Height;
  }
}

}  // namespace sluice::guest
