// The binder that needs no dlopen: libcuda.so.1 stands in DT_NEEDED and the loader binds the calls. Built a second time
// as binder_next, linked behind a library that wraps cuMemGetInfo_v2 and calls the next one by dlsym(RTLD_NEXT).
#include "binders/probe.h"

int main(int argc, char** argv) {
  const ProbeCalls calls = PROBE_LINKED_CALLS;
  const ProbeOutcome outcome = probe(&calls, argc > 2 ? strtoull(argv[2], nullptr, 10) : 0);
  probe_print(argc > 1 ? argv[1] : "linked", &outcome);
  return 0;
}
