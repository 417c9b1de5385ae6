// Code that a program loads, and its global variables: the driver's calls do not say what they cost, and a module may
// declare a variable as large as the card. So the call is made, the card is asked what it spent, and a call that took
// the container over its limit is undone and refused as any allocation is.
//
// Between the two the card does hold more than the limit, for as long as the load takes; nobody can use it.
#pragma once

#include "guest/booking.h"

namespace sluice::guest {

class CodeLoad {
 public:
  // Before the call. `card` of the calling thread's context; without one, or without a limit, nothing is checked.
  explicit CodeLoad(Guest* guest);

  // After a load that succeeded: true when it must be undone and refused with CUDA_ERROR_OUT_OF_MEMORY.
  bool went_over() { return check(true); }
  // After a call that may have loaded something (lazy loading); costs one driver call when it has not.
  bool went_over_lazily() { return check(false); }
  // Bytes that the call took, as far as they are known. After a check.
  uint64_t grown_bytes() const { return grown_bytes_; }
  bool checks() const { return card_ != kNoCard; }

 private:
  bool check(bool surely_loaded);
  uint64_t driver_free_bytes() const;
  bool over(uint64_t more_bytes) const;

  Guest* guest_;
  uint32_t card_;
  uint64_t overhead_bytes_ = 0;
  uint64_t free_bytes_ = 0;
  uint64_t grown_bytes_ = 0;
};

// Code was unloaded: what it cost is measured again.
void code_unloaded(Guest* guest);

}  // namespace sluice::guest
