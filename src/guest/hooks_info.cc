// Devices and what a program is told about memory. A container sees the cards of its grant and no others, in the real
// driver's order; a device number stays the real driver's, so that every other call passes it through untouched.
#include "guest/booking.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

constexpr int kMaxDevices = 256;

bool same_uuid(const uint8_t* a, const char* b) {
  for (int i = 0; i < 16; ++i) {
    if (a[i] != static_cast<uint8_t>(b[i])) return false;
  }
  return true;
}

unsigned int clamp32(uint64_t bytes) {
  return bytes > 0xffffffffull ? 0xffffffffu : static_cast<unsigned int>(bytes);
}

}  // namespace

bool learn_devices(Guest* guest) {
  if (guest->devices_known.load(std::memory_order_acquire) != 0) return true;
  int count = 0;
  if (guest->refusal != page::kRefusalNone || guest->cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return false;
  int visible[page::kMaxCards];
  CUdevice devices[page::kMaxCards];
  int visible_count = 0;
  for (CUdevice& device : devices) device = -1;
  for (int ordinal = 0; ordinal < count && ordinal < kMaxDevices; ++ordinal) {
    CUdevice device = -1;
    CUuuid uuid = {};
    if (guest->cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) continue;
    if (guest->cuda.cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS) continue;
    for (uint32_t card = 0; card < guest->card_count; ++card) {
      if (devices[card] != -1 || !same_uuid(guest->cards[card].grant->uuid, uuid.bytes)) continue;
      devices[card] = device;
      visible[visible_count++] = ordinal;
    }
  }
  SpinGuard guard(guest->devices_lock, guest->seams.waiter);
  if (guest->devices_known.load(std::memory_order_relaxed) != 0) return true;
  for (uint32_t card = 0; card < page::kMaxCards; ++card) guest->cards[card].device = devices[card];
  for (int i = 0; i < visible_count; ++i) guest->visible_devices[i] = visible[i];
  guest->visible_count = visible_count;
  guest->devices_known.store(1, std::memory_order_release);
  return true;
}

uint32_t card_of_device(Guest* guest, CUdevice device) {
  if (device < 0 || !learn_devices(guest)) return kNoCard;
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    if (guest->cards[card].device == device) return card;
  }
  return kNoCard;
}

CUcontext current_context(Guest* guest) {
  CUcontext context = nullptr;
  return guest->cuda.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

uint32_t current_card(Guest* guest) {
  CUdevice device = -1;
  if (guest->cuda.cuCtxGetDevice(&device) != CUDA_SUCCESS) return kNoCard;
  return card_of_device(guest, device);
}

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuDeviceGetCount(int* count) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuDeviceGetCount(count);
  if (result == CUDA_SUCCESS && count != nullptr && learn_devices(guest)) *count = guest->visible_count;
  return result;
}

CUresult hook_cuDeviceGet(CUdevice* device, int ordinal) {
  Guest* guest = enter();
  if (!learn_devices(guest)) return guest->cuda.cuDeviceGet(device, ordinal);
  if (ordinal < 0 || ordinal >= guest->visible_count) {
    return guest->cuda.cuDeviceGet(device, -1);  // the driver's own answer to a device that is not there
  }
  return guest->cuda.cuDeviceGet(device, guest->visible_devices[ordinal]);
}

CUresult hook_cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuDeviceTotalMem_v2(bytes, device);
  if (result != CUDA_SUCCESS || bytes == nullptr) return result;
  const uint32_t card = card_of_device(guest, device);
  if (!booked(guest, card)) return result;
  const uint64_t total = ledger_of(guest, card).view().total_bytes;
  if (total < *bytes) *bytes = total;
  return result;
}

CUresult hook_cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuDeviceTotalMem(bytes, device);
  if (result != CUDA_SUCCESS || bytes == nullptr) return result;
  const uint32_t card = card_of_device(guest, device);
  if (!booked(guest, card)) return result;
  const unsigned int total = clamp32(ledger_of(guest, card).view().total_bytes);
  if (total < *bytes) *bytes = total;
  return result;
}

CUresult hook_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemGetInfo_v2(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || free_bytes == nullptr || total_bytes == nullptr) return result;
  const uint32_t card = current_card(guest);
  if (!booked(guest, card)) return result;
  const Ledger::View view = memory_view(guest, card);
  *free_bytes = view.free_bytes;
  *total_bytes = view.total_bytes;
  return result;
}

CUresult hook_cuMemGetInfo(unsigned int* free_bytes, unsigned int* total_bytes) {
  Guest* guest = enter();
  const CUresult result = guest->cuda.cuMemGetInfo(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS || free_bytes == nullptr || total_bytes == nullptr) return result;
  const uint32_t card = current_card(guest);
  if (!booked(guest, card)) return result;
  const Ledger::View view = memory_view(guest, card);
  *free_bytes = clamp32(view.free_bytes);
  *total_bytes = clamp32(view.total_bytes);
  return result;
}

}  // extern "C"
