// The kernel's own clock_gettime, mapped into every process: reads CLOCK_MONOTONIC without a system call, which the
// launch path and the settler's polling do all the time. Found through the auxiliary vector, by the ELF symbol table at
// AT_SYSINFO_EHDR (vdso(7)): no C library is asked, which may be any or none.
#pragma once

struct __kernel_timespec;

namespace sluice::guest {

using ClockGettime = int (*)(int clock, __kernel_timespec* out);

// `image`: address of the vDSO's ELF header, 0 when the process has none. nullptr when it lacks the function or is not
// what it should be; callers then use the system call.
ClockGettime find_clock_gettime(unsigned long image);

}  // namespace sluice::guest
