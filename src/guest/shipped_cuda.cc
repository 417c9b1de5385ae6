// libcuda.so.1: the one Guest of a real process.
#include "guest/attach.h"
#include "guest/dl_driver.h"
#include "guest/guest.h"
#include "page/driver_names.h"

namespace sluice::guest {

namespace {

constexpr size_t kDirectoryLength = sizeof page::kDriverDirectory - 1;
static_assert(__builtin_memcmp(page::kRealCudaPath, page::kDriverDirectory, kDirectoryLength) == 0);
static_assert(__builtin_memcmp(page::kRealNvmlPath, page::kDriverDirectory, kDirectoryLength) == 0);

constinit OsClock clock;
constinit OsWaiter waiter;
constinit RecordLocks locks;
constinit DlDriver driver{page::kRealCudaPath, page::kRealNvmlPath};

uint32_t attach(Guest* guest) {
  guest->seams = Seams{driver.available("cu") ? &driver : nullptr, &clock, &waiter, &locks};
  const uint32_t refusal = attach_pages(guest, page::kGrantPath, page::kUsagePath, &locks);
  if (refusal != page::kRefusalNone) return refusal;
  if (guest->seams.driver == nullptr) return page::kRefusalDriverMissing;
  constexpr const char* kNeeded[] = {"cuInit", "cuDeviceGetCount", "cuDeviceGetUuid", "cuCtxGetDevice",
                                     "cuMemAlloc_v2"};
  for (const char* name : kNeeded) {
    if (driver.symbol(name) == nullptr) return page::kRefusalDriverSymbols;
  }
  return page::kRefusalNone;
}

constinit Guest the_guest{attach, resolve_real_cuda};

}  // namespace

Guest* current_guest() {
  return &the_guest;
}

uint64_t current_thread_key() {
  return reinterpret_cast<uint64_t>(__builtin_thread_pointer());
}

}  // namespace sluice::guest
