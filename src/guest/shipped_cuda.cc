// libcuda.so.1: the one Guest of a real process.
#include "guest/attach.h"
#include "guest/dl_driver.h"
#include "guest/guest.h"

namespace sluice::guest {

namespace {

constexpr char kCudaPath[] = "/run/sluice/container/driver/libcuda.so.1";
constexpr char kNvmlPath[] = "/run/sluice/container/driver/libnvidia-ml.so.1";
constexpr size_t kDirectoryLength = sizeof page::kDriverDirectory - 1;
static_assert(__builtin_memcmp(kCudaPath, page::kDriverDirectory, kDirectoryLength) == 0);
static_assert(__builtin_memcmp(kNvmlPath, page::kDriverDirectory, kDirectoryLength) == 0);

constinit OsClock clock;
constinit OsWaiter waiter;
constinit RecordLocks locks;
constinit DlDriver driver{kCudaPath, kNvmlPath};

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
