// Arrays and mipmapped arrays: memory with a shape and no address. Their size on the card is that of their elements,
// rounded up to whole blocks of 64 KiB and then to the card's granularity; sparse and deferred arrays own nothing.

#include <algorithm>

#include "sim/copy.h"
#include "sim/mem_array.h"

namespace sluice::sim {
namespace {

constexpr uint64_t kTile = 64 << 10;

// Bytes of one channel; 0 for formats that the card does not know.
uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

CUresult check_shape(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (shape.Width == 0 || channel_bytes(shape.Format) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (shape.NumChannels != 1 && shape.NumChannels != 2 && shape.NumChannels != 4) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kMost = 131072;
  if (shape.Width > kMost || shape.Height > kMost || shape.Depth > 16384) return CUDA_ERROR_INVALID_VALUE;
  const bool cube = (shape.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  if (cube && (shape.Width != shape.Height || shape.Depth % 6 != 0)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

bool owns_memory(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

void fill_rows(Array& array) {
  array.row_bytes = array.shape.Width * channel_bytes(array.shape.Format) * array.shape.NumChannels;
  array.rows = std::max<uint64_t>(array.shape.Height, 1);
  array.slices = std::max<uint64_t>(array.shape.Depth, 1);
}

uint64_t bytes_of(const Array& array) {
  return array.row_bytes * array.rows * array.slices;
}

// Memory with an address behind it; 0 when there is none.
uint64_t place(Process& process, int card, uint64_t bytes, std::shared_ptr<Physical>* memory) {
  *memory = make_physical(process, card, round_up_to(bytes, kTile), BlockKind::kArray);
  if (*memory == nullptr) return 0;
  const uint64_t address = process.device(card)->memory->reserve((*memory)->bytes, kMemBlock, 0);
  if (address != 0 && map_physical(process, **memory, address, (*memory)->bytes, 0, nullptr, true)) return address;
  (*memory)->handles = 0;
  drop_physical(process, **memory);
  return 0;
}

void unplace(Process& process, Physical& memory, uint64_t address) {
  Memory& space = *process.device(memory.card)->memory;
  const uint64_t bytes = memory.bytes;
  space.unmap(address, bytes);
  space.unreserve(address, bytes);
  memory.handles = 0;
  drop_physical(process, memory);
}

CUresult create_array(Call& call, const CUDA_ARRAY3D_DESCRIPTOR& shape, CUarray* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_shape(shape); result != CUDA_SUCCESS) return result;
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  Array* array = state.arrays.make();
  if (array == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  array->context = call.context;
  array->shape = shape;
  fill_rows(*array);
  if (owns_memory(shape)) {
    array->address = place(call.process, call.context->card, bytes_of(*array), &array->memory);
    if (array->address == 0) {
      state.arrays.free(array);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}

CUDA_ARRAY3D_DESCRIPTOR from_2d(const CUDA_ARRAY_DESCRIPTOR& flat) {
  return {flat.Width, flat.Height, 0, flat.Format, flat.NumChannels, 0};
}

void free_array(Process& process, Array& array) {
  if (array.address != 0 && !array.level) unplace(process, *array.memory, array.address);
  memory_state(process).arrays.free(&array);
}

void free_mipmap(Process& process, Mipmap& mipmap) {
  for (Array* level : mipmap.levels) free_array(process, *level);
  if (mipmap.address != 0) unplace(process, *mipmap.memory, mipmap.address);
  memory_state(process).mipmaps.free(&mipmap);
}

Mipmap* find_mipmap(Process& process, CUmipmappedArray handle) {
  return memory_state(process).mipmaps.find(reinterpret_cast<void*>(handle));
}

CUresult requirements(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t bytes, CUDA_ARRAY_MEMORY_REQUIREMENTS* out) {
  if (out == nullptr || (shape.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->size = round_up_to(bytes, kTile);
  out->alignment = kTile;
  return CUDA_SUCCESS;
}

}  // namespace

bool array_layout(Process& process, CUarray handle, ArrayLayout* layout) {
  const MemoryLock lock(process);
  const Array* array = find_array(process, handle);
  if (array == nullptr || array->address == 0) return false;
  layout->address = array->address;
  layout->pitch_bytes = array->row_bytes;
  layout->rows = array->rows;
  layout->layers = array->slices;
  layout->element_bytes = channel_bytes(array->shape.Format) * array->shape.NumChannels;
  return true;
}

void release_context_memory(Process& process, const Context& context) {
  if (process.memory_state == nullptr) return;
  std::vector<Mapping> managed = process.device(context.card)->memory->managed_of(&context);
  for (const Mapping& mapping : managed) free_managed(process, mapping);
  const MemoryLock lock(process);
  MemoryState& state = memory_state(process);
  std::vector<Mipmap*> mipmaps;
  state.mipmaps.each([&](Mipmap& m) {
    if (m.context == &context) mipmaps.push_back(&m);
  });
  for (Mipmap* m : mipmaps) free_mipmap(process, *m);
  std::vector<Array*> arrays;
  state.arrays.each([&](Array& a) {
    if (a.context == &context) arrays.push_back(&a);
  });
  for (Array* a : arrays) free_array(process, *a);
  std::vector<uint64_t> imported;
  for (const auto& [address, memory] : state.imported) {
    Mapping mapping;
    Memory& space = *process.device(memory->card)->memory;
    if (space.find(address, &mapping) &&
        mapping.context == reinterpret_cast<CUcontext>(const_cast<Context*>(&context))) {
      imported.push_back(address);
    }
  }
  for (const uint64_t address : imported) close_imported(process, address);
}

Array* find_array(Process& process, CUarray handle) {
  return memory_state(process).arrays.find(reinterpret_cast<void*>(handle));
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  SIM_ENTER(cuArrayCreate_v2, kContext | kNoCapture, Charge::kAllocate);
  return shape == nullptr ? CUDA_ERROR_INVALID_VALUE : create_array(call, from_2d(*shape), out);
}

CUresult sim_cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* shape) {
  SIM_ENTER(cuArrayCreate, kContext | kNoCapture, Charge::kAllocate);
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create_array(call, {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0}, out);
}

CUresult sim_cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  SIM_ENTER(cuArray3DCreate_v2, kContext | kNoCapture, Charge::kAllocate);
  return shape == nullptr ? CUDA_ERROR_INVALID_VALUE : create_array(call, *shape, out);
}

CUresult sim_cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* shape) {
  SIM_ENTER(cuArray3DCreate, kContext | kNoCapture, Charge::kAllocate);
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create_array(
      call, {shape->Width, shape->Height, shape->Depth, shape->Format, shape->NumChannels, shape->Flags}, out);
}

CUresult sim_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* shape, CUarray handle) {
  SIM_ENTER(cuArrayGetDescriptor_v2, kContext);
  const MemoryLock lock(call.process);
  const Array* array = find_array(call.process, handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *shape = {array->shape.Width, array->shape.Height, array->shape.Format, array->shape.NumChannels};
  return CUDA_SUCCESS;
}

CUresult sim_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* shape, CUarray handle) {
  SIM_ENTER(cuArray3DGetDescriptor_v2, kContext);
  const MemoryLock lock(call.process);
  const Array* array = find_array(call.process, handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *shape = array->shape;
  return CUDA_SUCCESS;
}

CUresult sim_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice) {
  SIM_ENTER(cuArrayGetMemoryRequirements, kContext);
  const MemoryLock lock(call.process);
  const Array* array = find_array(call.process, handle);
  return array == nullptr ? CUDA_ERROR_INVALID_HANDLE : requirements(array->shape, bytes_of(*array), out);
}

CUresult sim_cuArrayDestroy(CUarray handle) {
  SIM_ENTER(cuArrayDestroy, kContext | kNoCapture);
  const MemoryLock lock(call.process);
  Array* array = find_array(call.process, handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (array->level) return CUDA_ERROR_INVALID_HANDLE;
  free_array(call.process, *array);
  return CUDA_SUCCESS;
}

CUresult sim_cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  SIM_ENTER(cuMipmappedArrayCreate, kContext | kNoCapture, Charge::kAllocate);
  if (out == nullptr || shape == nullptr || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_shape(*shape); result != CUDA_SUCCESS) return result;
  const MemoryLock lock(call.process);
  MemoryState& state = memory_state(call.process);
  Mipmap* mipmap = state.mipmaps.make();
  if (mipmap == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  mipmap->context = call.context;
  mipmap->shape = *shape;
  const bool layered = (shape->Flags & CUDA_ARRAY3D_LAYERED) != 0;
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) {
    Array* array = state.arrays.make();
    if (array == nullptr) break;
    array->context = call.context;
    array->level = true;
    array->shape = *shape;
    const auto halved = [&](size_t size) { return size == 0 ? 0 : std::max<size_t>(size >> level, 1); };
    array->shape.Width = halved(shape->Width);
    array->shape.Height = halved(shape->Height);
    array->shape.Depth = layered ? shape->Depth : halved(shape->Depth);
    fill_rows(*array);
    array->address = bytes;  // from the start, until that is known
    bytes += round_up_to(bytes_of(*array), 512);
    mipmap->levels.push_back(array);
    if (array->shape.Width == 1 && array->shape.Height <= 1 && array->shape.Depth <= 1) break;
  }
  if (owns_memory(*shape)) {
    mipmap->address = place(call.process, call.context->card, bytes, &mipmap->memory);
    if (mipmap->address == 0) {
      for (Array* array : mipmap->levels) state.arrays.free(array);
      state.mipmaps.free(mipmap);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (Array* array : mipmap->levels) array->memory = mipmap->memory;
  }
  for (Array* array : mipmap->levels) array->address = mipmap->address == 0 ? 0 : mipmap->address + array->address;
  mipmap->bytes = bytes;
  *out = reinterpret_cast<CUmipmappedArray>(mipmap);
  return CUDA_SUCCESS;
}

CUresult sim_cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  SIM_ENTER(cuMipmappedArrayGetLevel, kContext);
  const MemoryLock lock(call.process);
  const Mipmap* mipmap = find_mipmap(call.process, handle);
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUarray>(mipmap->levels[level]);
  return CUDA_SUCCESS;
}

CUresult sim_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle,
                                                   CUdevice) {
  SIM_ENTER(cuMipmappedArrayGetMemoryRequirements, kContext);
  const MemoryLock lock(call.process);
  const Mipmap* mipmap = find_mipmap(call.process, handle);
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return requirements(mipmap->shape, mipmap->bytes, out);
}

CUresult sim_cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  SIM_ENTER(cuMipmappedArrayDestroy, kContext | kNoCapture);
  const MemoryLock lock(call.process);
  Mipmap* mipmap = find_mipmap(call.process, handle);
  if (mipmap == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  free_mipmap(call.process, *mipmap);
  return CUDA_SUCCESS;
}

}  // extern "C"
