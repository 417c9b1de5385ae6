// Calls that are refused under a limit (refused.inc), and the names of results, which programs ask for when nothing
// else works: answered here when there is no driver.
#include "guest/guest.h"
#include "guest/hooks.h"

namespace sluice::guest {

namespace {

bool limited(const Guest* guest) {
  for (uint32_t card = 0; card < guest->card_count; ++card) {
    const page::GrantCard* grant = guest->cards[card].grant;
    if (grant->memory_limit_bytes.load(std::memory_order_relaxed) != 0 ||
        grant->core_permille.load(std::memory_order_relaxed) != 0) {
      return true;
    }
  }
  return false;
}

CUresult pass_unless_limited(const char* name, int pid, void* arguments) {
  Guest* guest = enter();
  if (limited(guest)) return CUDA_ERROR_NOT_SUPPORTED;
  if (guest->seams.driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  void* real = guest->seams.driver->symbol(name);
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return reinterpret_cast<CUresult (*)(int, void*)>(real)(pid, arguments);
}

struct ResultName {
  CUresult result;
  const char* name;
  const char* text;
};
constexpr ResultName kResultNames[] = {
#define SLUICE_RESULT(result, text) {result, #result, text},
#include "result_names.inc"
#undef SLUICE_RESULT
};

CUresult answer(CUresult result, const char** out, const char* ResultName::* column) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  for (const ResultName& known : kResultNames) {
    if (known.result == result) *out = known.*column;
  }
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

#define SLUICE_REFUSE(name)                            \
  CUresult hook_##name(int pid, void* arguments);      \
  CUresult hook_##name(int pid, void* arguments) {     \
    return pass_unless_limited(#name, pid, arguments); \
  }
#include "guest/refused.inc"
#undef SLUICE_REFUSE

CUresult hook_cuGetErrorName(CUresult result, const char** name) {
  Guest* guest = enter();
  if (guest->seams.driver != nullptr) return guest->cuda.cuGetErrorName(result, name);
  return answer(result, name, &ResultName::name);
}

CUresult hook_cuGetErrorString(CUresult result, const char** text) {
  Guest* guest = enter();
  if (guest->seams.driver != nullptr) return guest->cuda.cuGetErrorString(result, text);
  return answer(result, text, &ResultName::text);
}

}  // extern "C"
