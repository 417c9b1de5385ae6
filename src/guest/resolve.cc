// The table of real functions, the way from a real function's address to our hook, and the hooks of cuInit and
// cuGetProcAddress.
#include "guest/guest.h"
#include "guest/hooks.h"
#include "guest/text.h"

extern "C" {
#define SLUICE_REFUSE(name) CUresult hook_##name(int pid, void* arguments);
#include "guest/refused.inc"
#undef SLUICE_REFUSE
}

namespace sluice::guest {

namespace {

// Stand in for functions that the real driver lacks, and for all of them when there is no driver. Called with any
// arguments: the caller cleans the stack.
CUresult answer_not_supported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult answer_not_initialized() {
  return CUDA_ERROR_NOT_INITIALIZED;
}

uint64_t base_hash(const char* name) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  const size_t length = base_length(name);
  for (size_t i = 0; i < length; ++i) hash = (hash ^ static_cast<unsigned char>(name[i])) * 0x100000001b3ull;
  return hash;
}

// Several names may share one address (a driver's common "not supported" body), hence the name in the key.
uint64_t real_key(const char* name, const void* real) {
  return base_hash(name) ^ mix64(reinterpret_cast<uint64_t>(real));
}

}  // namespace

void resolve_real_cuda(Guest* guest) {
  Driver* driver = guest->seams.driver;
  void* stand_in = driver != nullptr ? reinterpret_cast<void*>(&answer_not_supported)
                                     : reinterpret_cast<void*>(&answer_not_initialized);
#define SLUICE_CALL(name)                                                                               \
  {                                                                                                     \
    void* real = driver != nullptr ? driver->symbol(#name) : nullptr;                                   \
    guest->cuda.name = reinterpret_cast<decltype(guest->cuda.name)>(real != nullptr ? real : stand_in); \
  }
#define SLUICE_HOOK(name, part)                                                      \
  SLUICE_CALL(name)                                                                  \
  if (reinterpret_cast<void*>(guest->cuda.name) != stand_in) {                       \
    const uint64_t key = real_key(#name, reinterpret_cast<void*>(guest->cuda.name)); \
    void** hook = guest->hook_by_real.insert(key, nullptr);                          \
    if (hook != nullptr) *hook = reinterpret_cast<void*>(&hook_##name);              \
  }
#include "guest/hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
#define SLUICE_REFUSE(name)                                                                \
  if (void* real = driver != nullptr ? driver->symbol(#name) : nullptr; real != nullptr) { \
    void** hook = guest->hook_by_real.insert(real_key(#name, real), nullptr);              \
    if (hook != nullptr) *hook = reinterpret_cast<void*>(&hook_##name);                    \
  }
#include "guest/refused.inc"
#undef SLUICE_REFUSE
}

void* hook_for_real(Guest* guest, const char* symbol, void* real) {
  void** hook = guest->hook_by_real.find(real_key(symbol, real));
  return hook == nullptr ? nullptr : *hook;
}

void* hook_for_name(const char* name) {
  // A function's address is no constant expression across a cast, hence a switch by comparison; only used without a
  // driver and by tests.
#define SLUICE_CALL(entry)
#define SLUICE_HOOK(entry, part) \
  if (text_equal(name, #entry)) return reinterpret_cast<void*>(&hook_##entry);
#include "guest/hooks.inc"
#undef SLUICE_HOOK
#undef SLUICE_CALL
  return nullptr;
}

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuInit(unsigned int flags) {
  Guest* guest = enter();
  if (guest->state.load(std::memory_order_acquire) != kReady) return CUDA_ERROR_NOT_INITIALIZED;
  if (guest->refusal != sluice::page::kRefusalNone) return CUDA_ERROR_SYSTEM_NOT_READY;
  renew_after_fork(guest);
  return guest->cuda.cuInit(flags);
}

}  // extern "C"

namespace {

// The real driver has answered; where its answer is a function that we hook, ours takes its place.
CUresult put_hook(Guest* guest, CUresult result, const char* symbol, void** function) {
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    if (void* hook = hook_for_real(guest, symbol, *function)) *function = hook;
  }
  return result;
}

// Without a driver the only name worth answering is the one that says so.
bool answer_without_driver(Guest* guest, const char* symbol, void** function, CUresult* result) {
  if (guest->seams.driver != nullptr) return false;
  if (symbol == nullptr || function == nullptr) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  *function = hook_for_name(symbol);
  *result = *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  return true;
}

}  // namespace

extern "C" {

CUresult hook_cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  Guest* guest = enter();
  CUresult result;
  if (answer_without_driver(guest, symbol, function, &result)) return result;
  return put_hook(guest, guest->cuda.cuGetProcAddress(symbol, function, version, flags), symbol, function);
}

CUresult hook_cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  Guest* guest = enter();
  CUresult result;
  if (answer_without_driver(guest, symbol, function, &result)) return result;
  return put_hook(guest, guest->cuda.cuGetProcAddress_v2(symbol, function, version, flags, status), symbol, function);
}

CUresult hook_cuGetProcAddress_v2_ptsz(const char* symbol, void** function, int version, cuuint64_t flags,
                                       CUdriverProcAddressQueryResult* status) {
  Guest* guest = enter();
  CUresult result;
  if (answer_without_driver(guest, symbol, function, &result)) return result;
  return put_hook(guest, guest->cuda.cuGetProcAddress_v2_ptsz(symbol, function, version, flags, status), symbol,
                  function);
}

}  // extern "C"
