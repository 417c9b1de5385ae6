#include "sim/launch.h"

#include <algorithm>
#include <cstring>

#include "sim/capture.h"

namespace sluice::sim {

namespace {

uint64_t count_of(const unsigned v[3]) {
  return uint64_t{v[0]} * v[1] * v[2];
}

template <typename T>
T parameter(const Launch& launch, size_t offset) {
  T value{};
  if (offset + sizeof value <= launch.parameters.size())
    std::memcpy(&value, launch.parameters.data() + offset, sizeof value);
  return value;
}

// Runs a function of two or three float arrays in pieces that lie together in memory.
struct Array {
  Process* process;
  uint64_t address;
  float get(uint64_t i) const {
    float value = 0;
    Mapping m;
    std::vector<Span> spans;
    if (Memory* memory = memory_of(*process, address + i * 4, &m);
        memory != nullptr && memory->spans(address + i * 4, 4, false, &spans) && spans[0].bytes != nullptr) {
      std::memcpy(&value, spans[0].bytes, 4);
    }
    return value;
  }
  void set(uint64_t i, float value) const {
    Mapping m;
    std::vector<Span> spans;
    if (Memory* memory = memory_of(*process, address + i * 4, &m);
        memory != nullptr && memory->spans(address + i * 4, 4, true, &spans) && spans[0].bytes != nullptr) {
      std::memcpy(spans[0].bytes, &value, 4);
    }
  }
};

// The whole array when it lies in one piece: the usual case, and a hundred times faster than Array.
float* in_one_piece(Process& process, uint64_t address, uint64_t count) {
  Mapping m;
  std::vector<Span> spans;
  Memory* memory = memory_of(process, address, &m);
  if (memory == nullptr || !memory->spans(address, count * 4, true, &spans)) return nullptr;
  return spans.size() == 1 ? reinterpret_cast<float*>(spans[0].bytes) : nullptr;
}

void add_vectors(Process& process, uint64_t to, uint64_t a, uint64_t b, float scale, uint64_t count) {
  float* t = in_one_piece(process, to, count);
  const float* x = in_one_piece(process, a, count);
  const float* y = in_one_piece(process, b, count);
  if (t != nullptr && x != nullptr && y != nullptr) {
    for (uint64_t i = 0; i < count; ++i) t[i] = scale * x[i] + y[i];
    return;
  }
  const Array target{&process, to}, first{&process, a}, second{&process, b};
  for (uint64_t i = 0; i < count; ++i) target.set(i, scale * first.get(i) + second.get(i));
}

const Cost& cost_of(Card& card, const KernelInfo& kernel, Cost& own) {
  const CardFile& file = card.file();
  for (uint32_t i = 0; i < std::min(file.cost_count, kMaxCosts); ++i) {
    if (kernel.name == file.costs[i].name || std::strcmp(file.costs[i].name, "*") == 0) return file.costs[i].cost;
  }
  if (card.knob(Knob::hide_image_costs) == 0) return kernel.cost;
  own = {};
  return own;
}

}  // namespace

CUresult check_launch(Card& card, const Launch& launch) {
  const uint64_t threads = count_of(launch.block), blocks = count_of(launch.grid);
  if (threads == 0 || blocks == 0) return CUDA_ERROR_INVALID_VALUE;
  if (launch.block[0] > 1024 || launch.block[1] > 1024 || launch.block[2] > 64 || threads > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  if (launch.grid[0] > 2147483647 || launch.grid[1] > 65535 || launch.grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
  const Function& f = *launch.function;
  if (threads > f.kernel.max_threads) return CUDA_ERROR_INVALID_VALUE;
  if (launch.shared_bytes > static_cast<unsigned>(f.dynamic_shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned fit = blocks_per_sm(card.profile(), f, static_cast<unsigned>(threads), launch.shared_bytes);
  if (fit == 0) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (launch.cooperative && blocks > uint64_t{fit} * card.profile().sms) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return CUDA_SUCCESS;
}

CUresult read_parameters(const Function& function, void** params, void** extra, std::vector<unsigned char>* packed) {
  packed->clear();
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END && i < 16; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1] != nullptr)
        std::memcpy(&bytes, extra[i + 1], sizeof bytes);
    }
    if (bytes > 32764 || (bytes > 0 && buffer == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 0)
      packed->assign(static_cast<const unsigned char*>(buffer), static_cast<const unsigned char*>(buffer) + bytes);
    return CUDA_SUCCESS;
  }
  if (params == nullptr) return function.kernel.parameters.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < function.kernel.parameters.size(); ++i) {
    const KernelInfo::Parameter& p = function.kernel.parameters[i];
    if (params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (packed->size() < p.offset + p.bytes) packed->resize(p.offset + p.bytes);
    std::memcpy(packed->data() + p.offset, params[i], p.bytes);
  }
  return CUDA_SUCCESS;
}

Submission plan_launch(Call& call, Stream& stream, const Launch& launch, uint64_t ordinal) {
  Card& card = *call.process.device(stream.context->card)->card;
  const ProfileData& p = card.profile();
  const KernelInfo& kernel = launch.function->kernel;
  const uint64_t blocks = count_of(launch.grid);
  Cost none;
  const Cost& cost = cost_of(card, kernel, none);
  unsigned fit = blocks_per_sm(p, *launch.function, static_cast<unsigned>(count_of(launch.block)), launch.shared_bytes);
  if (cost.blocks_per_sm != 0) fit = std::min(fit, cost.blocks_per_sm);
  fit = std::max(1u, fit);
  Submission s;
  s.kind = CommandKind::kKernel;
  s.sms = static_cast<uint32_t>(std::min<uint64_t>(p.sms, (blocks + fit - 1) / fit));
  const uint64_t per_wave = uint64_t{fit} * p.sms;
  s.duration_ns = draw_duration(card, stream.record, cost, (blocks + per_wave - 1) / per_wave, ordinal);
  if (kernel.behaviour == Behaviour::kCollective) {
    s.kind = CommandKind::kCollective;
    s.value = parameter<uint64_t>(launch, 0);
    s.flags = parameter<uint32_t>(launch, 8);
    s.ranks = std::max(1u, parameter<uint32_t>(launch, 12));
    s.round = stream.context->collective_rounds[s.value << 6 | s.flags]++;
  }
  return s;
}

std::function<void()> kernel_effect(Process& process, const Launch& launch) {
  Process* p = &process;
  const auto word = [&](size_t offset) { return parameter<uint64_t>(launch, offset); };
  switch (launch.function->kernel.behaviour) {
    case Behaviour::kFill:
      return [p, to = word(0), value = parameter<uint32_t>(launch, 8), count = word(16)] {
        Mapping m;
        std::vector<Span> spans;
        Memory* memory = memory_of(*p, to, &m);
        if (memory == nullptr || !memory->spans(to, count * 4, true, &spans)) return;
        for (const Span& span : spans) {
          for (uint64_t i = 0; span.bytes != nullptr && i + 4 <= span.length; i += 4)
            std::memcpy(span.bytes + i, &value, 4);
        }
      };
    case Behaviour::kVectorAdd:
      return [p, to = word(0), a = word(8), b = word(16), count = word(24)] { add_vectors(*p, to, a, b, 1, count); };
    case Behaviour::kSaxpy:
      return [p, y = word(0), x = word(8), a = parameter<float>(launch, 16), count = word(24)] {
        add_vectors(*p, y, x, y, a, count);
      };
    default:
      return nullptr;
  }
}

CUresult launch_kernel(Call& call, Stream& stream, Launch& launch, void** params, void** extra) {
  Card& card = *call.process.device(stream.context->card)->card;
  if (launch.function->module->context != stream.context) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_launch(card, launch); result != CUDA_SUCCESS) return result;
  if (const CUresult result = read_parameters(*launch.function, params, extra, &launch.parameters);
      result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = check_implicit_capture(call, stream); result != CUDA_SUCCESS) return result;
  if (stream.capture != nullptr) return capture_node(stream, make_kernel_node(call.process, launch));
  if (const CUresult result = ensure_loaded(*launch.function); result != CUDA_SUCCESS) return result;
  ContextLock lock(*stream.context);
  call.host().charge(Charge::kLaunch, 0);
  Submission s = plan_launch(call, stream, launch, ++stream.launches);
  if (launch.function->kernel.behaviour == Behaviour::kSpin) {
    const CUresult result = plan_spin(call, stream, launch, &s);
    if (result != CUDA_SUCCESS) return result;
  } else if (auto effect = kernel_effect(call.process, launch)) {
    s.effect = call.process.add_effect(std::move(effect));
  }
  const CUresult result = call.process.submit(stream, s);
  if (s.kind == CommandKind::kSpin || s.kind == CommandKind::kCollective) call.process.need_service();
  return result;
}

}  // namespace sluice::sim
