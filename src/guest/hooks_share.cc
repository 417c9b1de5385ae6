// Memory that crosses processes: IPC handles, shareable handles, pool pointers, external memory. What is imported costs
// the card nothing while its exporter is charged for it; share.h says what happens when it no longer is.
#include "guest/booking.h"
#include "guest/hooks.h"
#include "guest/share.h"

namespace sluice::guest {

namespace {

uint64_t range_bytes(Guest* guest, CUdeviceptr address, CUdeviceptr* base = nullptr) {
  CUdeviceptr start = 0;
  size_t bytes = 0;
  if (guest->cuda.cuMemGetAddressRange_v2(&start, &bytes, address) != CUDA_SUCCESS) return 0;
  if (base != nullptr) *base = start;
  return bytes;
}

// By what a shareable handle is known to both sides.
uint64_t name_of_handle(const void* handle, CUmemAllocationHandleType type) {
  if (handle == nullptr) return 0;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return name_of_bytes(handle, CU_IPC_HANDLE_SIZE);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return 0;
  return name_of_file(*static_cast<const int*>(handle));
}

uint64_t name_of_import(void* handle, CUmemAllocationHandleType type) {
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return name_of_handle(handle, type);
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  return name_of_handle(&descriptor, type);
}

// open(): the real import. Where no process of the container speaks for the memory (any more), late(claim) claims it
// once it is open; close() takes the opening back.
template <typename Open, typename Late, typename Close>
CUresult import(Guest* guest, uint64_t name, Claim* claim, Open&& open, Late&& late, Close&& close) {
  bool refused = false;
  *claim = claim_export(guest, name, &refused);
  if (refused) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = open();
  guest->points.at(kAfterDriver);
  if (result != CUDA_SUCCESS) {
    drop_claim(guest, *claim);
    return result;
  }
  if (claim->byte != 0 || late(claim) == CUDA_SUCCESS) return CUDA_SUCCESS;
  close();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// An import that is known by an address or a handle of its own.
template <typename Open, typename Late, typename Close, typename Key>
CUresult import_and_book(Guest* guest, uint64_t name, CUcontext context, Open&& open, Late&& late, Close&& close,
                         Key&& key) {
  Claim claim;
  const CUresult result = import(guest, name, &claim, open, late, close);
  if (result != CUDA_SUCCESS || book_import(guest, key(), claim, context)) return result;
  close();
  drop_claim(guest, claim);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Open>
CUresult open_ipc(Guest* guest, CUdeviceptr* address, const CUipcMemHandle& handle, Open&& open) {
  if (address == nullptr) return open();
  const uint64_t name = name_of_bytes(&handle, sizeof handle);
  return import_and_book(
      guest, name, current_context(guest), open,
      [&](Claim* claim) { return claim_bytes(guest, current_card(guest), name, range_bytes(guest, *address), claim); },
      [&] { guest->cuda.cuIpcCloseMemHandle(*address); }, [&] { return *address; });
}

// close(): the real one. The book comes first: the driver may give the address to another thread at once.
template <typename Close>
CUresult close_import(Guest* guest, uint64_t key, Close&& close) {
  CUcontext context = nullptr;
  const Claim claim = unbook_import(guest, key, &context);
  const CUresult result = close();
  if (result == CUDA_SUCCESS) {
    drop_claim(guest, claim);
  } else {
    book_import(guest, key, claim, context);
  }
  return result;
}

uint32_t card_of_handle(Guest* guest, CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp properties = {};
  if (guest->cuda.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS) return kNoCard;
  return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? card_of_device(guest, properties.location.id)
                                                                 : kNoCard;
}

// Puts an imported handle into the book. False: the book is full.
bool book_handle(Guest* guest, CUmemGenericAllocationHandle handle, const Claim& claim) {
  if (claim.byte == 0) return true;
  Memory& memory = guest->memory;
  bool known = false;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    if (Physical** physical = memory.physical.find(handle)) {
      ++(*physical)->handles;
      known = true;
    } else {
      Physical* made = memory.physical_pool.take();
      if (made == nullptr) return false;
      *made = Physical{0, claim.card, 1, 0, claim.byte};
      if (memory.physical.insert(handle, made) == nullptr) {
        memory.physical_pool.give(made);
        return false;
      }
    }
  }
  if (known) drop_claim(guest, claim);  // a handle that stood for this memory already
  return true;
}

}  // namespace
}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuIpcGetMemHandle(handle, address);
  if (result != CUDA_SUCCESS || handle == nullptr) return result;
  CUdeviceptr base = address;
  const uint64_t bytes = range_bytes(guest, address, &base);
  uint32_t card = kNoCard;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (const Allocation* entry = guest->memory.allocations.find(base)) card = entry->card;
  }
  share_export(guest, card, base, name_of_bytes(handle, sizeof *handle), bytes);
  return result;
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  Guest* guest = enter();
  return open_ipc(guest, address, handle, [&] { return guest->cuda.cuIpcOpenMemHandle(address, handle, flags); });
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  Guest* guest = enter();
  return open_ipc(guest, address, handle, [&] { return guest->cuda.cuIpcOpenMemHandle_v2(address, handle, flags); });
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr address) {
  Guest* guest = enter();
  return close_import(guest, address, [&] { return guest->cuda.cuIpcCloseMemHandle(address); });
}

CUresult hook_cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemExportToShareableHandle(shareable, handle, type, flags);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t name = name_of_handle(shareable, type);
  SpinGuard guard(guest->memory.lock, guest->seams.waiter);
  Physical** found = guest->memory.physical.find(handle);
  if (found != nullptr && (*found)->bytes != 0) {
    share_export(guest, (*found)->card, reinterpret_cast<uint64_t>(*found), name, (*found)->bytes);
  }
  return result;
}

CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                             CUmemAllocationHandleType type) {
  Guest* guest = enter();
  auto open = [&] { return guest->cuda.cuMemImportFromShareableHandle(handle, shareable, type); };
  if (handle == nullptr) return open();
  const uint64_t name = name_of_import(shareable, type);
  const auto close = [&] { guest->cuda.cuMemRelease(*handle); };
  Claim claim;
  // How large it is does the driver not say: the claim grows with what is mapped.
  const CUresult result = import(
      guest, name, &claim, open,
      [&](Claim* late) { return claim_bytes(guest, card_of_handle(guest, *handle), name, 0, late); }, close);
  if (result != CUDA_SUCCESS || book_handle(guest, *handle, claim)) return result;
  close();
  drop_claim(guest, claim);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemPoolExportPointer(data, address);
  if (result != CUDA_SUCCESS || data == nullptr) return result;
  CUdeviceptr base = address;
  const uint64_t bytes = range_bytes(guest, address, &base);
  share_export(guest, current_card(guest), base, name_of_bytes(data, sizeof *data), bytes);
  return result;
}

CUresult hook_cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  Guest* guest = enter();
  auto open = [&] { return guest->cuda.cuMemPoolImportPointer(address, pool, data); };
  if (address == nullptr || data == nullptr) return open();
  const uint64_t name = name_of_bytes(data, sizeof *data);
  return import_and_book(
      guest, name, nullptr, open,
      [&](Claim* claim) { return claim_bytes(guest, current_card(guest), name, range_bytes(guest, *address), claim); },
      [&] { guest->cuda.cuMemFree_v2(*address); }, [&] { return *address; });
}

CUresult hook_cuImportExternalMemory(CUexternalMemory* memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  Guest* guest = enter();
  auto open = [&] { return guest->cuda.cuImportExternalMemory(memory, description); };
  if (memory == nullptr || description == nullptr || description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
    return open();
  }
  const uint64_t name = name_of_file(description->handle.fd);  // before the driver: a successful import closes it
  const uint64_t bytes = description->size;
  return import_and_book(
      guest, name, nullptr, open,
      [&](Claim* claim) { return claim_bytes(guest, current_card(guest), name, bytes, claim); },
      [&] { guest->cuda.cuDestroyExternalMemory(*memory); }, [&] { return reinterpret_cast<uint64_t>(*memory); });
}

CUresult hook_cuDestroyExternalMemory(CUexternalMemory memory) {
  Guest* guest = enter();
  return close_import(guest, reinterpret_cast<uint64_t>(memory),
                      [&] { return guest->cuda.cuDestroyExternalMemory(memory); });
}

}  // extern "C"
