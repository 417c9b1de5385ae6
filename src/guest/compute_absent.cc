#include "guest/notify.h"
namespace sluice::guest {
void compute_context_created(Guest*, uint32_t, CUcontext) {}
void compute_context_destroying(Guest*, uint32_t, CUcontext) {}
void compute_forked(Guest*) {}
}  // namespace sluice::guest
