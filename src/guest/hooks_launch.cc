// Launches of kernels and graphs: gated and measured.
#include "guest/hooks.h"
#include "guest/hooks_work.h"

namespace sluice::guest {

namespace {

inline uint64_t kernel_key(CUfunction function, uint64_t gx, uint64_t gy, uint64_t gz, uint64_t bx, uint64_t by,
                           uint64_t bz) {
  return unit_key(reinterpret_cast<uint64_t>(function), gx * gy * gz, bx * by * bz);
}

inline uint64_t graph_key(CUgraphExec exec) {
  return unit_key(reinterpret_cast<uint64_t>(exec), 0, 0);
}

template <typename Call>
CUresult launch_ex(const CUlaunchConfig* config, CUfunction function, StreamForm form, Call call) {
  if (config == nullptr) return call(enter());
  return unit(config->hStream, form,
              kernel_key(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                         config->blockDimY, config->blockDimZ),
              call);
}

constexpr unsigned int kMostCards = page::kMaxCards;

}  // namespace

extern "C" {

CUresult hook_cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                             unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
                             void** parameters, void** extra) {
  return unit(
      stream, kLegacyForm, [=] { return kernel_key(f, gx, gy, gz, bx, by, bz); },
      [=](Guest* guest) {
        return guest->cuda.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra);
      });
}

CUresult hook_cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                  unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
                                  void** parameters, void** extra) {
  return unit(
      stream, kPerThreadForm, [=] { return kernel_key(f, gx, gy, gz, bx, by, bz); },
      [=](Guest* guest) {
        return guest->cuda.cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra);
      });
}

CUresult hook_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
  return launch_ex(config, f, kLegacyForm,
                   [=](Guest* guest) { return guest->cuda.cuLaunchKernelEx(config, f, parameters, extra); });
}

CUresult hook_cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
  return launch_ex(config, f, kPerThreadForm,
                   [=](Guest* guest) { return guest->cuda.cuLaunchKernelEx_ptsz(config, f, parameters, extra); });
}

CUresult hook_cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared_bytes,
                                        CUstream stream, void** parameters) {
  return unit(
      stream, kLegacyForm, [=] { return kernel_key(f, gx, gy, gz, bx, by, bz); },
      [=](Guest* guest) {
        return guest->cuda.cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters);
      });
}

CUresult hook_cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                             unsigned int bx, unsigned int by, unsigned int bz,
                                             unsigned int shared_bytes, CUstream stream, void** parameters) {
  return unit(
      stream, kPerThreadForm, [=] { return kernel_key(f, gx, gy, gz, bx, by, bz); },
      [=](Guest* guest) {
        return guest->cuda.cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters);
      });
}

CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count, unsigned int flags) {
  Guest* guest = enter();
  Launch launches[kMostCards];
  if (passes(guest) || list == nullptr || count > kMostCards) {
    return guest->cuda.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
  }
  for (unsigned int i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& one = list[i];
    launches[i] = compute_before(guest, one.hStream, kLegacyForm,
                                 kernel_key(one.function, one.gridDimX, one.gridDimY, one.gridDimZ, one.blockDimX,
                                            one.blockDimY, one.blockDimZ));
  }
  const CUresult result = guest->cuda.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
  for (unsigned int i = 0; i < count; ++i) compute_after(guest, launches[i], result);
  return result;
}

CUresult hook_cuLaunch(CUfunction f) {
  return unit(nullptr, kLegacyForm, kernel_key(f, 1, 1, 1, 0, 0, 0),
              [=](Guest* guest) { return guest->cuda.cuLaunch(f); });
}

CUresult hook_cuLaunchGrid(CUfunction f, int width, int height) {
  return unit(nullptr, kLegacyForm,
              kernel_key(f, static_cast<uint64_t>(width), static_cast<uint64_t>(height), 1, 0, 0, 0),
              [=](Guest* guest) { return guest->cuda.cuLaunchGrid(f, width, height); });
}

CUresult hook_cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return unit(stream, kLegacyForm,
              kernel_key(f, static_cast<uint64_t>(width), static_cast<uint64_t>(height), 1, 0, 0, 0),
              [=](Guest* guest) { return guest->cuda.cuLaunchGridAsync(f, width, height, stream); });
}

CUresult hook_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  if (CUresult refused = memory_before_graph_launch(enter(), exec)) return refused;
  const CUresult result =
      unit(stream, kLegacyForm, graph_key(exec), [=](Guest* guest) { return guest->cuda.cuGraphLaunch(exec, stream); });
  memory_after_graph_launch(enter(), exec);
  return result;
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  if (CUresult refused = memory_before_graph_launch(enter(), exec)) return refused;
  const CUresult result = unit(stream, kPerThreadForm, graph_key(exec),
                               [=](Guest* guest) { return guest->cuda.cuGraphLaunch_ptsz(exec, stream); });
  memory_after_graph_launch(enter(), exec);
  return result;
}

CUresult hook_cuGraphExecDestroy(CUgraphExec exec) {
  Guest* guest = enter();
  if (!passes(guest)) compute_graph_destroyed(guest, graph_key(exec));
  memory_graph_exec_destroyed(guest, exec);
  return guest->cuda.cuGraphExecDestroy(exec);
}

}  // extern "C"

}  // namespace sluice::guest
