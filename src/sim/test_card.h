// For tests: a folder with cards that goes away again, processes on them over an injected clock.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "sim/card.h"
#include "sim/cuda_bodies.h"
#include "sim/fibre_host.h"
#include "sim/log_reader.h"
#include "sim/memory.h"

namespace sluice::sim {

#define EXPECT_CUDA(expression) EXPECT_EQ((expression), CUDA_SUCCESS)
#define ASSERT_CUDA(expression) ASSERT_EQ((expression), CUDA_SUCCESS)

class TestCards {
 public:
  explicit TestCards(const std::string& profile = "A100-40GB", uint32_t count = 1, uint64_t epoch_ns = 1) {
    static int number = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("sim_test_" + std::to_string(getpid()) + "_" + std::to_string(number++));
    std::filesystem::create_directories(folder_);
    for (uint32_t i = 0; i < count; ++i) {
      CardOptions options;
      options.profile = profile;
      options.card_index = i;
      options.seed = 7 + i;
      options.epoch_ns = epoch_ns;
      auto made = Card::create(path(i), options);
      EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    }
  }
  ~TestCards() { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_; }
  std::string path(uint32_t i = 0) const { return folder_ / ("card" + std::to_string(i)); }
  std::unique_ptr<Card> open(uint32_t i = 0) const { return std::move(Card::open(path(i)).value()); }
  void set(Knob knob, int64_t value) const { open()->set_knob(knob, value); }

 private:
  std::filesystem::path folder_;
};

// Kernels of known cost.
inline constexpr const char* kTestImage = R"(
// sluice kernel short us=20
// sluice kernel long us=5000
// sluice kernel narrow us=100
// sluice kernel mixed choice=5,1000,0.3
// sluice kernel lognormal lognormal=100,1.2,1000
// sluice kernel waves us=10 per_block blocks_per_sm=1
// sluice kernel spinner spin
// sluice kernel reduce collective us=30
.visible .entry short(.param .u64 a) { ret; }
.visible .entry long(.param .u64 a) { ret; }
.visible .entry narrow(.param .u64 a) { ret; }
.visible .entry mixed(.param .u64 a) { ret; }
.visible .entry lognormal(.param .u64 a) { ret; }
.visible .entry waves(.param .u64 a) { ret; }
.visible .entry spinner(.param .u64 a) { ret; }
.visible .entry reduce(.param .u64 id, .param .u32 rank, .param .u32 ranks) { ret; }
.visible .entry sluice_saxpy_f32(.param .u64 y, .param .u64 x, .param .f32 a, .param .u64 n) { ret; }
)";

// A program's start: context, module, a stream.
struct Program {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;

  void begin(unsigned flags = 0, CUdevice device = 0) {
    ASSERT_CUDA(sim_cuInit(0));
    ASSERT_CUDA(sim_cuCtxCreate_v2(&context, flags, device));
    ASSERT_CUDA(sim_cuModuleLoadData(&module, kTestImage));
    ASSERT_CUDA(sim_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    // Loading is lazy and synchronises: not what most tests are about.
    for (const char* name : {"short", "long", "narrow", "mixed", "lognormal", "waves", "spinner", "reduce"}) {
      ASSERT_CUDA(sim_cuFuncLoad(function(name)));
    }
  }
  CUfunction function(const char* name) {
    CUfunction f = nullptr;
    EXPECT_CUDA(sim_cuModuleGetFunction(&f, module, name));
    return f;
  }
  CUresult launch(const char* name, CUstream on, unsigned blocks = 4096, uint64_t argument = 0) {
    void* parameters[] = {&argument};
    return sim_cuLaunchKernel(function(name), blocks, 1, 1, 256, 1, 1, 0, on, parameters, nullptr);
  }
};

}  // namespace sluice::sim
