// What the card makes of a code image: names, parameters and costs of its kernels.
//
// Any image loads. PTX text is read for its entries, their parameters, instruction counts and global variables; ELF
// images (cubin) for their entries and parameters; of anything else, such as compressed fat binaries, every name is
// taken to exist. A cost line in a text image says how long a kernel runs:
//   // sluice kernel NAME us=50
//   // sluice kernel NAME lognormal=100,1.2,1000     median us, sigma, largest us (drawn values are clipped)
//   // sluice kernel NAME uniform=20,80              us
//   // sluice kernel NAME choice=5,1000,0.5          us, us, probability of the second
// with any of: per_block (the cost of one block, taken once per wave), blocks_per_sm=N, registers=N.
// Kernels that end when observed:
//   // sluice kernel NAME spin          (first parameter: address of a 32-bit word; runs until it is not zero)
//   // sluice kernel NAME collective us=50   (parameters: u64 id, u32 rank, u32 ranks; runs once all ranks have begun)
// Kernels do not change memory, except those of these names: sluice_fill_u32(u64 to, u32 value, u64 count),
// sluice_vector_add_f32(u64 sum, u64 a, u64 b, u64 count), sluice_saxpy_f32(u64 y, u64 x, f32 a, u64 count).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/layout.h"

namespace sluice::sim {

enum class Behaviour { kPlain, kSpin, kCollective, kFill, kVectorAdd, kSaxpy };

struct KernelInfo {
  std::string name;
  Cost cost;
  Behaviour behaviour = Behaviour::kPlain;
  uint32_t registers = 32, shared_bytes = 0, local_bytes = 0, max_threads = 1024;
  struct Parameter {
    uint32_t offset, bytes;
  };
  bool parameters_known = false;
  std::vector<Parameter> parameters;
};

struct GlobalInfo {
  std::string name;
  uint64_t bytes;
};

struct ImageInfo {
  std::vector<KernelInfo> kernels;
  std::vector<GlobalInfo> globals;
  bool any_name = false;  // its names could not be read
  uint64_t bytes = 0;
};

// The bytes that an image pointer stands for, from its own header (ELF, fat binary) or its terminating zero (text).
std::string_view image_bytes(const void* image);
ImageInfo read_image(std::string_view bytes);
// What a kernel of this name does by itself.
void apply_name(KernelInfo& kernel);
// One cost line's words after the kernel's name; false when a word is not understood.
bool parse_cost(std::string_view words, KernelInfo* kernel);

}  // namespace sluice::sim
