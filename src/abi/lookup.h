// What cuGetProcAddress has to know: which of the forms of a name a program built for some driver version gets.
//
// A program asks for a base name ("cuMemAlloc"), says for which version of the interface it was compiled, and may ask
// for the per-thread default stream. The answer is the newest form that is not newer than the program. The table behind
// it is cuda_names.tsv, in the same order as the lists of addresses that the generator writes.

#ifndef SLUICE_ABI_LOOKUP_H_
#define SLUICE_ABI_LOOKUP_H_

#include <cstddef>
#include <string_view>

namespace sluice::abi {

enum class Stream { kAny = 0, kPtds = 1, kPtsz = 2 };

struct CudaName {
  const char* name;   // exported symbol, e.g. "cuMemcpyHtoD_v2_ptds"
  const char* base;   // what programs ask for, e.g. "cuMemcpyHtoD"
  int since;          // first interface version that gets this form, 1000 x major + 10 x minor
  Stream stream;      // kAny: the plain form
  const char* group;  // see cuda_names.tsv
};

struct NvmlName {
  const char* name;
  const char* group;
};

// All names, sorted by name (byte order); the storage lives as long as the program.
extern const CudaName kCudaNames[];
extern const size_t kCudaNameCount;
extern const NvmlName kNvmlNames[];
extern const size_t kNvmlNameCount;

enum class LookupStatus { kFound, kUnknownName, kTooNew };

struct Lookup {
  LookupStatus status;
  size_t index;  // into kCudaNames; meaningful with kFound only
};

// The form of `base` for a program of interface version `version` (e.g. 12040). With `per_thread` the _ptds or _ptsz
// form where one exists, else the plain one. kTooNew: the name exists, but only for newer programs.
Lookup find_for_version(std::string_view base, int version, bool per_thread);

// Index of an exported symbol by its exact name, or kCudaNameCount / kNvmlNameCount.
size_t find_cuda_symbol(std::string_view name);
size_t find_nvml_symbol(std::string_view name);

}  // namespace sluice::abi

#endif  // SLUICE_ABI_LOOKUP_H_
