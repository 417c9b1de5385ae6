// PTX whose kernels take a stated time: by spinning on the global timer on hardware, by a cost line on the simulated
// card, so that one program shows the same behaviour on both.
#include <cstdio>

#include "common/card.h"

namespace workloads {
namespace {

// PTX 6.0 for compute capability 6.0: any card since Pascal translates it when the module is loaded.
constexpr char kHeader[] = ".version 6.0\n.target sm_60\n.address_size 64\n";

constexpr char kSpinKernel[] =
    ".visible .entry %s(.param .u64 address)\n"
    "{\n"
    "  .reg .pred %%p<2>;\n"
    "  .reg .u64 %%rd<4>;\n"
    "  mov.u64 %%rd1, %%globaltimer;\n"
    "$L_%s:\n"
    "  mov.u64 %%rd2, %%globaltimer;\n"
    "  sub.u64 %%rd3, %%rd2, %%rd1;\n"
    "  setp.lt.u64 %%p1, %%rd3, %llu;\n"
    "  @%%p1 bra $L_%s;\n"
    "  ret;\n"
    "}\n";

// The line that the simulated card reads.
std::string cost_line(const KernelSpec& kernel) {
  char line[256];
  if (kernel.log_sigma > 0) {
    std::snprintf(line, sizeof line, "// sluice kernel %s lognormal=%.6g,%.6g,%.6g\n", kernel.name.c_str(), kernel.us,
                  kernel.log_sigma, kernel.log_max_us);
  } else {
    std::snprintf(line, sizeof line, "// sluice kernel %s us=%.6g\n", kernel.name.c_str(), kernel.us);
  }
  return line;
}

// One thread: stores the step to word[rank], then reads every word until all hold at least the step. The simulated card
// takes the first three parameters as the collective's identity and does the waiting itself.
constexpr char kArrivalKernel[] =
    "// sluice kernel arrive_and_spin collective us=10\n"
    ".visible .entry arrive_and_spin(.param .u64 id, .param .u32 rank, .param .u32 ranks, .param .u32 step,\n"
    "  .param .u64 words)\n"
    "{\n"
    "  .reg .pred %p<3>;\n"
    "  .reg .u32 %r<6>;\n"
    "  .reg .u64 %rd<4>;\n"
    "  ld.param.u64 %rd1, [words];\n"
    "  ld.param.u32 %r1, [rank];\n"
    "  ld.param.u32 %r2, [ranks];\n"
    "  ld.param.u32 %r3, [step];\n"
    "  mad.wide.u32 %rd2, %r1, 128, %rd1;\n"
    "  st.volatile.global.u32 [%rd2], %r3;\n"
    "  membar.sys;\n"
    "  mov.u32 %r4, 0;\n"
    "$L_next:\n"
    "  mad.wide.u32 %rd3, %r4, 128, %rd1;\n"
    "$L_spin:\n"
    "  ld.volatile.global.u32 %r5, [%rd3];\n"
    "  setp.lt.u32 %p1, %r5, %r3;\n"
    "  @%p1 bra $L_spin;\n"
    "  add.u32 %r4, %r4, 1;\n"
    "  setp.lt.u32 %p2, %r4, %r2;\n"
    "  @%p2 bra $L_next;\n"
    "  ret;\n"
    "}\n";

}  // namespace

std::string arrival_image() {
  return std::string(kHeader) + kArrivalKernel;
}

std::string kernel_image(const std::vector<KernelSpec>& kernels, uint64_t global_bytes) {
  std::string image = kHeader;
  for (const KernelSpec& kernel : kernels) image += cost_line(kernel);
  if (global_bytes > 0) {
    image += ".visible .global .align 16 .b8 workload_global[" + std::to_string(global_bytes) + "];\n";
  }
  for (const KernelSpec& kernel : kernels) {
    char text[1024];
    std::snprintf(text, sizeof text, kSpinKernel, kernel.name.c_str(), kernel.name.c_str(),
                  static_cast<unsigned long long>(kernel.us * 1000), kernel.name.c_str());
    image += text;
  }
  return image;
}

}  // namespace workloads
