// Arrays and mipmapped arrays. The driver does not say what an array costs (cuArrayGetMemoryRequirements answers only
// for deferred ones), so it is computed from the descriptor and rounded to 64 KiB, the granule of array placement;
// bigger ones to whole blocks. SPARSE and DEFERRED_MAPPING arrays own nothing: what is mapped to them is charged where
// it is created.
#include "guest/booking.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kArrayGranule = 64 * 1024;
constexpr uint64_t kHugeBytes = 1ull << 60;
constexpr unsigned int kUnowned = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

// Bits of one channel; block-compressed and planar formats are given at least their size.
uint64_t channel_bits(CUarray_format format) {
  switch (static_cast<unsigned int>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 8;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 16;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 32;
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return 4;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return 8;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      return 16;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return 64;
    default:
      return 32;
  }
}

// A block of the fixed-size formats above is one texel of all its channels; the packed ones name all channels at once.
bool packed(CUarray_format format) {
  return format >= CU_AD_FORMAT_BC1_UNORM || format == CU_AD_FORMAT_UNORM_INT_101010_2;
}

struct Shape {
  uint64_t width;
  uint64_t height;
  uint64_t depth;
  CUarray_format format;
  unsigned int channels;
};

uint64_t at_least_one(uint64_t value) {
  return value == 0 ? 1 : value;
}

// Bytes of one level, saturating at kHugeBytes.
uint64_t level_bytes(const Shape& shape) {
  const uint64_t bits = channel_bits(shape.format) * (packed(shape.format) ? 1 : at_least_one(shape.channels));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.width, bits, &bytes)) return kHugeBytes;
  bytes = (bytes + 7) / 8;
  if (__builtin_mul_overflow(bytes, at_least_one(shape.height), &bytes)) return kHugeBytes;
  if (__builtin_mul_overflow(bytes, at_least_one(shape.depth), &bytes)) return kHugeBytes;
  return bytes > kHugeBytes ? kHugeBytes : bytes;
}

uint64_t charge_for(uint64_t bytes) {
  if (bytes >= kHugeBytes) return kHugeBytes;
  const uint64_t granules = round_up(at_least_one(bytes), kArrayGranule);
  return granules < kBlockBytes / 2 ? granules : round_up(granules, kBlockBytes);
}

template <typename Call, typename Handle, typename Undo>
CUresult create(Guest* guest, uint64_t bytes, Call&& call, Handle&& handle, Undo&& undo) {
  const uint32_t card = current_card(guest);
  if (!booked(guest, card) || bytes == 0) return call();
  const uint64_t charge = charge_for(bytes);
  if (charge >= kHugeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult refused = reserve_memory(guest, card, charge)) return refused;
  CUresult result;
  {
    Operation operation(guest, card);
    result = retry_while_full(guest, call);
    guest->points.at(kAfterDriver);
  }
  if (result != CUDA_SUCCESS) {
    give_back_memory(guest, card, charge);
    return result;
  }
  bool kept;
  const CUcontext context = current_context(guest);
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    kept = guest->memory.arrays.insert(handle(), Allocation{charge, card, 0, 0, context}) != nullptr;
  }
  guest->points.at(kBooked);
  if (kept) return CUDA_SUCCESS;
  undo();
  give_back_memory(guest, card, charge);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Call>
CUresult destroy(Guest* guest, uint64_t handle, Call&& call) {
  Allocation entry = {};
  bool known;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    known = guest->memory.arrays.erase(handle, &entry);
  }
  if (!known) return call();
  CUresult result;
  {
    Operation operation(guest, entry.card);
    guest->points.at(kBeforeDriverFree);
    result = call();
    guest->points.at(kAfterDriverFree);
  }
  if (result == CUDA_SUCCESS) {
    give_back_memory(guest, entry.card, entry.bytes);
  } else {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    guest->memory.arrays.insert(handle, entry);
  }
  return result;
}

uint64_t key(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

template <typename Function, typename Descriptor>
CUresult create_2d(Guest* guest, Function function, CUarray* array, const Descriptor* descriptor) {
  auto call = [&] { return function(array, descriptor); };
  if (array == nullptr || descriptor == nullptr) return call();
  const Shape shape = {descriptor->Width, descriptor->Height, 1, descriptor->Format, descriptor->NumChannels};
  return create(
      guest, level_bytes(shape), call, [&] { return key(*array); }, [&] { guest->cuda.cuArrayDestroy(*array); });
}

template <typename Function, typename Descriptor>
CUresult create_3d(Guest* guest, Function function, CUarray* array, const Descriptor* descriptor) {
  auto call = [&] { return function(array, descriptor); };
  if (array == nullptr || descriptor == nullptr || (descriptor->Flags & kUnowned) != 0) return call();
  const Shape shape = {descriptor->Width, descriptor->Height, descriptor->Depth, descriptor->Format,
                       descriptor->NumChannels};
  return create(
      guest, level_bytes(shape), call, [&] { return key(*array); }, [&] { guest->cuda.cuArrayDestroy(*array); });
}

}  // namespace
}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v1* descriptor) {
  Guest* guest = enter();
  return create_2d(guest, guest->cuda.cuArrayCreate, array, descriptor);
}

CUresult hook_cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  Guest* guest = enter();
  return create_2d(guest, guest->cuda.cuArrayCreate_v2, array, descriptor);
}

CUresult hook_cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v1* descriptor) {
  Guest* guest = enter();
  return create_3d(guest, guest->cuda.cuArray3DCreate, array, descriptor);
}

CUresult hook_cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  Guest* guest = enter();
  return create_3d(guest, guest->cuda.cuArray3DCreate_v2, array, descriptor);
}

CUresult hook_cuArrayDestroy(CUarray array) {
  Guest* guest = enter();
  return destroy(guest, key(array), [&] { return guest->cuda.cuArrayDestroy(array); });
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                     unsigned int levels) {
  Guest* guest = enter();
  auto call = [&] { return guest->cuda.cuMipmappedArrayCreate(array, descriptor, levels); };
  if (array == nullptr || descriptor == nullptr || (descriptor->Flags & kUnowned) != 0) return call();
  Shape shape = {descriptor->Width, descriptor->Height, descriptor->Depth, descriptor->Format, descriptor->NumChannels};
  const bool layered = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  uint64_t bytes = 0;
  for (unsigned int level = 0; level < levels && level < 64 && bytes < kHugeBytes; ++level) {
    bytes += round_up(level_bytes(shape), kArrayGranule);
    if (shape.width <= 1 && shape.height <= 1 && (layered || shape.depth <= 1)) break;
    shape.width = at_least_one(shape.width / 2);
    if (shape.height != 0) shape.height = at_least_one(shape.height / 2);
    if (!layered && shape.depth != 0) shape.depth = at_least_one(shape.depth / 2);
  }
  return create(guest, bytes, call, [&] { return key(*array); }, [&] { guest->cuda.cuMipmappedArrayDestroy(*array); });
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
  Guest* guest = enter();
  return destroy(guest, key(array), [&] { return guest->cuda.cuMipmappedArrayDestroy(array); });
}

}  // extern "C"
