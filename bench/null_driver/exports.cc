// Every exported name of the driver as a function that returns success at once. Weak, so that the bodies that must give
// something back (bodies.cc) replace them. No prototypes here: callers pass what they like, nothing is read.
#define SLUICE_CALL(name, base, since, stream, group)                  \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    return 0;                                                          \
  }
#include "abi/cuda_calls.inc"
#undef SLUICE_CALL
