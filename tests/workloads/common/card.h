// What every workload does with a card: open it, hold memory on it, load kernels that take a stated time, and end with
// one clear sentence when a call fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/options.h"
#include "runtime/driver.h"

namespace workloads {

// The program's name in error sentences; set by open_card.
void set_program(const char* name);

// Ends the process with kExitCudaError and "program: call: CUDA_ERROR_X (code)" on stderr unless result is success.
void check(CUresult result, const char* call);
// "CUDA_ERROR_OUT_OF_MEMORY (2)"; works without a card.
std::string result_name(CUresult result);

// How long one kernel takes. Written into the image twice: as instructions that spin so long on hardware, and as the
// cost line that the simulated card reads.
struct KernelSpec {
  std::string name;
  double us = 10;         // fixed cost, or the median when log_sigma > 0
  double log_sigma = 0;   // > 0: log-normal; the simulated card draws per launch, hardware takes the median
  double log_max_us = 0;  // where drawn costs are clipped
};

// PTX text with one entry per kernel. Each takes one 64-bit parameter, an address it may write to or 0.
std::string kernel_image(const std::vector<KernelSpec>& kernels, uint64_t global_bytes = 0);

// PTX text with the one entry "arrive_and_spin", see Card::load_arrival.
std::string arrival_image();

class Card {
 public:
  // Retains the primary context of common.device and makes it current on this thread; allocates common.mem_mib.
  Card(const char* program, const Common& common);
  ~Card();
  Card(const Card&) = delete;

  CUdevice device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  CUcontext context() const { return context_; }
  // Makes the card's context current on the calling thread.
  void use();
  // The first chunk of the memory held (0 when none) and its bytes.
  CUdeviceptr memory() const { return chunks_.empty() ? 0 : chunks_.front(); }
  uint64_t memory_bytes() const { return chunk_bytes_; }

  // Loads the image and returns one function per kernel, in order.
  std::vector<CUfunction> load(const std::vector<KernelSpec>& kernels);
  // Launches a kernel that fills the card: one block of 256 threads per multiprocessor.
  void launch(CUfunction function, CUstream stream);

  // The kernel of a collective: writes `step` to its rank's word, then spins until the words of all ranks hold at least
  // that. `words` is rank 0's; they lie 128 bytes apart. `id` is the same for all ranks and unlike any other
  // collective's.
  CUfunction load_arrival();
  void launch_arrival(CUfunction arrival, CUstream stream, uint64_t id, CUdeviceptr words, uint64_t rank,
                      uint64_t ranks, uint32_t step);

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  int multiprocessors_ = 1;
  std::vector<CUdeviceptr> chunks_;
  uint64_t chunk_bytes_ = 0;
  std::vector<CUmodule> modules_;
};

}  // namespace workloads
