// A plug-in that needs libcuda.so.1 itself. The zoo loads it with RTLD_DEEPBIND and into a link-map list of its own:
// both keep a preloaded library's definitions away from it, unless those carry the driver's own name.
#include "binders/probe.h"

extern "C" __attribute__((visibility("default"))) void binder_plugin(ProbeOutcome* outcome,
                                                                     unsigned long long allocate_bytes) {
  const ProbeCalls calls = PROBE_LINKED_CALLS;
  *outcome = probe(&calls, allocate_bytes);
}
