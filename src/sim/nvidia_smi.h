// nvidia-smi for machines with simulated cards: the vendor's own tool is not free software and takes its process box
// from a private table. This one prints the same familiar shapes, and knows nothing but the public NVML of whatever
// libnvidia-ml.so.1 the loader gives it; so inside a container it shows what the guest library tells, as every other
// monitoring program does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"
#include "base/result.h"

namespace sluice::sim::smi {

// The functions that the tool calls, bound at run time.
struct Nvml {
#define SLUICE_SMI_CALL(name) decltype(&::name) name = nullptr;
#include "sim/nvidia_smi_calls.inc"
#undef SLUICE_SMI_CALL
};

// Loads the library and starts it. Errors: library missing, a name missing, no driver (one sentence each).
Result<Nvml> load_nvml();

// A card's figures; what the card does not have is absent.
struct Gpu {
  unsigned index = 0;
  nvmlDevice_t handle = nullptr;
};

struct Process {
  unsigned gpu = 0, pid = 0;
  std::optional<unsigned long long> bytes;
  std::string name;
};

// Calls fn(handle, ..., &value); nothing when the card does not answer.
template <typename T>
std::optional<T> ask(nvmlReturn_t (*fn)(nvmlDevice_t, T*), nvmlDevice_t device) {
  T value{};
  return fn(device, &value) == NVML_SUCCESS ? std::optional<T>(value) : std::nullopt;
}
template <typename T, typename A>
std::optional<T> ask(nvmlReturn_t (*fn)(nvmlDevice_t, A, T*), nvmlDevice_t device, std::type_identity_t<A> a) {
  T value{};
  return fn(device, a, &value) == NVML_SUCCESS ? std::optional<T>(value) : std::nullopt;
}
template <typename T, typename A, typename B>
std::optional<T> ask(nvmlReturn_t (*fn)(nvmlDevice_t, A, B, T*), nvmlDevice_t device, std::type_identity_t<A> a,
                     std::type_identity_t<B> b) {
  T value{};
  return fn(device, a, b, &value) == NVML_SUCCESS ? std::optional<T>(value) : std::nullopt;
}

std::string text_of(nvmlReturn_t (*fn)(nvmlDevice_t, char*, unsigned), nvmlDevice_t device);
std::optional<nvmlMemory_v2_t> memory_of(const Nvml& nvml, nvmlDevice_t device);
std::string driver_version(const Nvml& nvml);
std::string cuda_version(const Nvml& nvml);
std::string compute_mode(const Nvml& nvml, nvmlDevice_t device, bool table);
std::string local_time(const char* format);

// Processes that compute on these cards, in order of card and pid.
Result<std::vector<Process>> processes_of(const Nvml& nvml, const std::vector<Gpu>& gpus);

// The table of all cards and their processes.
Result<void> print_table(const Nvml& nvml, const std::vector<Gpu>& gpus);
// -L
Result<void> print_list(const Nvml& nvml, const std::vector<Gpu>& gpus);
// -q
Result<void> print_details(const Nvml& nvml, const std::vector<Gpu>& gpus, unsigned attached);

struct CsvOptions {
  bool header = true;
  bool units = true;
};
// --query-gpu=a,b,... and --query-compute-apps=...; an unknown field is an error that names it.
Result<void> check_fields(const std::string& fields, bool apps);
Result<void> print_gpu_fields(const Nvml& nvml, const std::vector<Gpu>& gpus, const std::string& fields,
                              const CsvOptions& options, bool header);
Result<void> print_app_fields(const Nvml& nvml, const std::vector<Gpu>& gpus, const std::string& fields,
                              const CsvOptions& options, bool header);
// --help-query-gpu, --help-query-compute-apps
void print_field_help(bool apps);

}  // namespace sluice::sim::smi
