// libnvidia-ml.so.1: a Guest that only reads. It claims no slot and never opens the real libcuda.
#include "guest/attach.h"
#include "guest/dl_driver.h"
#include "guest/nvml_view.h"
#include "page/driver_names.h"

namespace sluice::guest {

namespace {

constinit OsClock clock;
constinit OsWaiter waiter;
constinit RecordLocks locks;
constinit DlDriver driver{nullptr, page::kRealNvmlPath};

uint32_t attach(Guest* guest) {
  guest->seams = Seams{driver.available("nvml") ? &driver : nullptr, &clock, &waiter, &locks};
  const uint32_t refusal = attach_pages(guest, page::kGrantPath, page::kUsagePath, &locks);
  if (refusal != page::kRefusalNone) return refusal;
  return guest->seams.driver == nullptr ? page::kRefusalDriverMissing : page::kRefusalNone;
}

constinit Guest the_guest{attach, resolve_real_nvml};
constinit NvmlView the_view = {};

}  // namespace

Guest* current_guest() {
  return &the_guest;
}
NvmlView* current_nvml() {
  return &the_view;
}

}  // namespace sluice::guest
