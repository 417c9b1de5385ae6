#include "sim/copy.h"

#include <algorithm>
#include <cstring>

#include "sim/capture.h"

namespace sluice::sim {

namespace {

constexpr uint64_t kStagedBytes = 64 << 10;  // pageable copies up to this return when staged

// One side of a copy, row by row.
struct Side {
  bool device = false;  // needs translation; else `base` is a host address
  uint64_t base = 0;    // of byte 0 of row 0
  uint64_t pitch = 0, rows = 0;
  int card = -1;
  bool pinned = false;
  uint64_t row(uint64_t y, uint64_t z) const { return base + (z * rows + y) * pitch; }
};

bool resolve_side(Process& process, CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, uint64_t x,
                  uint64_t y, uint64_t z, uint64_t pitch, uint64_t height, uint64_t width, uint64_t copy_rows,
                  Side* side) {
  side->pitch = pitch != 0 ? pitch : width;
  side->rows = height != 0 ? height : copy_rows;
  uint64_t address = 0;
  Mapping mapping;
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      address = reinterpret_cast<uint64_t>(host);
      break;
    case CU_MEMORYTYPE_DEVICE:
      address = device;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      address = device;
      break;
    case CU_MEMORYTYPE_ARRAY: {
      ArrayLayout layout;
      if (!array_layout(process, array, &layout)) return false;
      address = layout.address;
      side->pitch = layout.pitch_bytes;
      side->rows = layout.rows;
      break;
    }
    default:
      return false;
  }
  if (address == 0) return false;
  side->base = address + z * side->rows * side->pitch + y * side->pitch + x;
  const bool known = memory_of(process, side->base, &mapping) != nullptr;
  if (!known) {
    if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY) return false;
    return true;  // pageable host memory
  }
  side->card = mapping.card;
  side->pinned = mapping.host != nullptr && !mapping.managed;
  side->device = mapping.host == nullptr || mapping.managed;
  if (type == CU_MEMORYTYPE_HOST && !mapping.managed) side->device = false;
  if (side->pinned) {
    side->base = reinterpret_cast<uint64_t>(mapping.host) + (side->base - mapping.address);
    side->device = false;
  }
  return true;
}

bool side_spans(Process& process, const Side& side, uint64_t address, uint64_t bytes, bool write,
                std::vector<Span>* spans) {
  if (!side.device) {
    spans->push_back({reinterpret_cast<char*>(address), bytes});
    return true;
  }
  Mapping mapping;
  Memory* memory = memory_of(process, address, &mapping);
  return memory != nullptr && memory->spans(address, bytes, write, spans);
}

void move_run(Process& process, const Side& to, uint64_t to_address, const Side& from, uint64_t from_address,
              uint64_t bytes) {
  std::vector<Span> target, source;
  if (!side_spans(process, from, from_address, bytes, false, &source)) return;
  if (!side_spans(process, to, to_address, bytes, true, &target)) return;
  size_t s = 0, t = 0;
  uint64_t in_s = 0, in_t = 0;
  while (s < source.size() && t < target.size()) {
    const uint64_t part = std::min(source[s].length - in_s, target[t].length - in_t);
    if (char* at = target[t].bytes; at != nullptr) {
      if (source[s].bytes != nullptr) {
        std::memmove(at + in_t, source[s].bytes + in_s, part);
      } else {
        std::memset(at + in_t, 0, part);
      }
    }
    in_s += part;
    in_t += part;
    if (in_s == source[s].length) ++s, in_s = 0;
    if (in_t == target[t].length) ++t, in_t = 0;
  }
}

bool range_ok(Process& process, const Side& side, uint64_t width, uint64_t rows, uint64_t layers) {
  if (!side.device || width == 0) return true;
  const uint64_t first = side.row(0, 0), last = side.row(rows - 1, layers - 1) + width - 1;
  Mapping mapping;
  // Memory that was mapped but never given access to is as good as none.
  return memory_of(process, first, &mapping) != nullptr && mapping.readable &&
         memory_of(process, last, &mapping) != nullptr && mapping.readable;
}

}  // namespace

__attribute__((weak)) bool array_layout(Process&, CUarray, ArrayLayout*) {
  return false;
}

CUDA_MEMCPY3D linear_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = from;
  c.dstDevice = to;
  c.WidthInBytes = bytes;
  c.Height = c.Depth = 1;
  return c;
}

CUDA_MEMCPY3D linear_copy_to_device(CUdeviceptr to, const void* from, size_t bytes) {
  CUDA_MEMCPY3D c = linear_copy(to, 0, bytes);
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = from;
  return c;
}

CUDA_MEMCPY3D linear_copy_to_host(void* to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D c = linear_copy(0, from, bytes);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstMemoryType = CU_MEMORYTYPE_HOST;
  c.dstHost = to;
  return c;
}

CUresult plan_copy(Process& process, const CUDA_MEMCPY3D& c, CopyPlan* plan) {
  const uint64_t rows = std::max<size_t>(1, c.Height), layers = std::max<size_t>(1, c.Depth), width = c.WidthInBytes;
  plan->bytes = width * rows * layers;
  plan->run = [] {};
  if (plan->bytes == 0) return CUDA_SUCCESS;
  Side from, to;
  if (!resolve_side(process, c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes, c.srcY, c.srcZ,
                    c.srcPitch, c.srcHeight, width, rows, &from) ||
      !resolve_side(process, c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes, c.dstY, c.dstZ,
                    c.dstPitch, c.dstHeight, width, rows, &to)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((rows > 1 && (from.pitch < width || to.pitch < width)) || !range_ok(process, from, width, rows, layers) ||
      !range_ok(process, to, width, rows, layers)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  plan->pageable = (!from.device && !from.pinned) || (!to.device && !to.pinned);
  plan->direction =
      from.device ? (to.device ? (from.card != to.card ? Direction::kPeer : Direction::kOnDevice) : Direction::kToHost)
                  : (to.device ? Direction::kToDevice : Direction::kHostToHost);
  const bool one_run = rows * layers == 1 || (from.pitch == width && to.pitch == width &&
                                              (layers == 1 || (from.rows == rows && to.rows == rows)));
  Process* p = &process;
  if (one_run) {
    plan->run = [p, from, to, bytes = plan->bytes] { move_run(*p, to, to.row(0, 0), from, from.row(0, 0), bytes); };
  } else {
    plan->run = [p, from, to, width, rows, layers] {
      for (uint64_t z = 0; z < layers; ++z) {
        for (uint64_t y = 0; y < rows; ++y) move_run(*p, to, to.row(y, z), from, from.row(y, z), width);
      }
    };
  }
  return CUDA_SUCCESS;
}

uint64_t copy_duration(Card& card, const CopyPlan& plan) {
  const ProfileData& p = card.profile();
  const auto speed = [&card](Knob knob, int64_t fallback) {
    const int64_t value = card.knob(knob);
    return static_cast<uint64_t>(std::max<int64_t>(1, value > 0 ? value : fallback));
  };
  uint64_t rate = speed(Knob::d2h_bytes_per_us, p.d2h_bytes_per_us);
  if (plan.direction == Direction::kOnDevice) rate = speed(Knob::d2d_bytes_per_us, p.d2d_bytes_per_us);
  if (plan.direction == Direction::kToDevice) rate = speed(Knob::h2d_bytes_per_us, p.h2d_bytes_per_us);
  return card.knob_ns(Knob::copy_base_ns) + plan.bytes * 1000 / rate;
}

CUresult copy_on_stream(Call& call, Stream& stream, const CUDA_MEMCPY3D& copy, bool wait) {
  if (const CUresult result = check_implicit_capture(call, stream); result != CUDA_SUCCESS) return result;
  if (stream.capture != nullptr) {
    return wait ? check_not_capturing(stream) : capture_node(stream, make_copy_node(call.process, copy));
  }
  CopyPlan plan;
  if (const CUresult result = plan_copy(call.process, copy, &plan); result != CUDA_SUCCESS) return result;
  Card& card = *call.process.device(stream.context->card)->card;
  if (plan.direction == Direction::kHostToHost) {
    if (const CUresult result = wait_stream(call, stream); result != CUDA_SUCCESS) return result;
    plan.run();
    return CUDA_SUCCESS;
  }
  Submission s;
  s.kind = plan.direction == Direction::kOnDevice   ? CommandKind::kCopyDevice
           : plan.direction == Direction::kToDevice ? CommandKind::kCopyToDevice
                                                    : CommandKind::kCopyToHost;
  s.duration_ns = copy_duration(card, plan);
  bool blocks = wait && plan.direction != Direction::kOnDevice && plan.direction != Direction::kPeer;
  if (plan.pageable) {
    // The driver moves pageable memory through buffers of its own, on the calling thread.
    const auto rate = static_cast<uint64_t>(std::max<int64_t>(1, card.knob(Knob::pageable_bytes_per_us)));
    call.host().charge(Charge::kCopy, 1 + plan.bytes * 1000 / rate);
    const bool small = plan.direction == Direction::kToDevice && plan.bytes <= kStagedBytes;
    blocks = blocks || !small;
    if (small && !blocks && copy.Height <= 1 && copy.Depth <= 1) {
      // The program may change its memory as soon as the call returns.
      auto staged = std::make_shared<std::vector<char>>(plan.bytes);
      const char* source = copy.srcMemoryType == CU_MEMORYTYPE_HOST
                               ? static_cast<const char*>(copy.srcHost) + copy.srcXInBytes
                               : reinterpret_cast<const char*>(copy.srcDevice + copy.srcXInBytes);
      std::memcpy(staged->data(), source, plan.bytes);
      CUDA_MEMCPY3D from_stage = copy;
      from_stage.srcMemoryType = CU_MEMORYTYPE_HOST;
      from_stage.srcHost = staged->data();
      from_stage.srcXInBytes = 0;
      if (const CUresult result = plan_copy(call.process, from_stage, &plan); result != CUDA_SUCCESS) return result;
      plan.run = [staged, run = std::move(plan.run)] { run(); };
    } else {
      blocks = true;
    }
  }
  s.effect = call.process.add_effect(std::move(plan.run));
  CommandRef made;
  if (const CUresult result = enqueue(call, stream, s, Charge::kCopy, &made); result != CUDA_SUCCESS) return result;
  return blocks ? wait_command(*stream.context, made) : CUDA_SUCCESS;
}

CUresult plan_memset(Process& process, const CUDA_MEMSET_NODE_PARAMS_v1& m, MemsetPlan* plan) {
  const uint64_t row_bytes = uint64_t{m.width} * m.elementSize, rows = std::max<size_t>(1, m.height);
  const uint64_t pitch = rows > 1 ? m.pitch : row_bytes;
  if ((m.elementSize != 1 && m.elementSize != 2 && m.elementSize != 4) || m.dst % m.elementSize != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (rows > 1 && (m.pitch < row_bytes || m.pitch % m.elementSize != 0)) return CUDA_ERROR_INVALID_VALUE;
  plan->bytes = row_bytes * rows;
  plan->run = [] {};
  if (plan->bytes == 0) return CUDA_SUCCESS;
  Mapping first, last;
  if (memory_of(process, m.dst, &first) == nullptr ||
      memory_of(process, m.dst + pitch * (rows - 1) + row_bytes - 1, &last) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  plan->host = first.host != nullptr && !first.managed;
  const bool zero = m.value == 0;
  plan->run = [p = &process, dst = uint64_t{m.dst}, pitch, rows, row_bytes, value = m.value, size = m.elementSize,
               zero] {
    for (uint64_t y = 0; y < rows; ++y) {
      Mapping mapping;
      std::vector<Span> spans;
      Memory* memory = memory_of(*p, dst + y * pitch, &mapping);
      // Zeros over what was never written need no room.
      if (memory == nullptr || !memory->spans(dst + y * pitch, row_bytes, !zero, &spans)) return;
      for (const Span& span : spans) {
        if (span.bytes == nullptr) continue;
        if (size == 1 || zero) {
          std::memset(span.bytes, static_cast<int>(value), span.length);
        } else {
          for (uint64_t i = 0; i + size <= span.length; i += size) std::memcpy(span.bytes + i, &value, size);
        }
      }
    }
  };
  return CUDA_SUCCESS;
}

uint64_t memset_duration(Card& card, const MemsetPlan& plan) {
  CopyPlan copy;
  copy.bytes = plan.bytes;
  return copy_duration(card, copy);
}

}  // namespace sluice::sim
