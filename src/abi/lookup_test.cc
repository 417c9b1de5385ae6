#include "abi/lookup.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"
#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"

namespace sluice::abi {
namespace {

struct Case {
  const char* base;
  int version;
  bool per_thread;
  const char* expected;  // exported symbol, "?" unknown, "<" too new
};

std::string resolve(const Case& c) {
  const Lookup found = find_for_version(c.base, c.version, c.per_thread);
  if (found.status == LookupStatus::kUnknownName) return "?";
  if (found.status == LookupStatus::kTooNew) return "<";
  return kCudaNames[found.index].name;
}

TEST(Lookup, GivesTheNewestFormThatTheProgramKnows) {
  const Case cases[] = {
      {"cuMemAlloc", 2000, false, "cuMemAlloc"},
      {"cuMemAlloc", 3020, false, "cuMemAlloc_v2"},
      {"cuMemAlloc", 13000, true, "cuMemAlloc_v2"},
      {"cuMemcpyHtoD", 12000, false, "cuMemcpyHtoD_v2"},
      {"cuMemcpyHtoD", 12000, true, "cuMemcpyHtoD_v2_ptds"},
      {"cuMemcpyHtoD", 6050, true, "cuMemcpyHtoD_v2"},
      {"cuStreamBeginCapture", 10000, false, "cuStreamBeginCapture"},
      {"cuStreamBeginCapture", 10010, true, "cuStreamBeginCapture_v2_ptsz"},
      {"cuGetProcAddress", 11030, false, "cuGetProcAddress"},
      {"cuGetProcAddress", 12000, false, "cuGetProcAddress_v2"},
      {"cuGraphAddKernelNode", 11080, false, "cuGraphAddKernelNode"},
      {"cuGraphAddKernelNode", 12000, false, "cuGraphAddKernelNode_v2"},
      {"cuCtxCreate", 13000, false, "cuCtxCreate_v4"},
      {"cuCtxCreate", 12040, false, "cuCtxCreate_v3"},
      {"cuLibraryLoadData", 11080, false, "<"},
      {"cuMemcpy", 4000, false, "cuMemcpy"},
      {"cuMemcpy", 7000, true, "cuMemcpy_ptds"},
      {"cuInit", 13050, true, "cuInit"},
      {"cuMemAlloc_v2", 13050, false, "?"},
      {"cuMem", 13050, false, "?"},
      {"", 13050, false, "?"},
      {"cuZzz", 13050, false, "?"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(resolve(c), c.expected) << c.base << " version " << c.version << " per_thread " << c.per_thread;
  }
}

TEST(Lookup, EveryNameIsFoundBySymbolAndInItsOwnVersion) {
  ASSERT_EQ(kCudaNameCount, 725U);
  ASSERT_EQ(kNvmlNameCount, 439U);
  for (size_t i = 0; i < kCudaNameCount; ++i) {
    const CudaName& row = kCudaNames[i];
    EXPECT_EQ(find_cuda_symbol(row.name), i);
    const Lookup found = find_for_version(row.base, row.since, row.stream != Stream::kAny);
    ASSERT_EQ(found.status, LookupStatus::kFound) << row.name;
    EXPECT_STREQ(kCudaNames[found.index].base, row.base);
  }
  for (size_t i = 0; i < kNvmlNameCount; ++i) EXPECT_EQ(find_nvml_symbol(kNvmlNames[i].name), i);
  EXPECT_EQ(find_cuda_symbol("cuNothing"), kCudaNameCount);
  EXPECT_EQ(find_nvml_symbol(""), kNvmlNameCount);
}

TEST(Lookup, EveryFormIsReachable) {
  std::set<std::string> reached;
  for (size_t i = 0; i < kCudaNameCount; ++i) {
    for (const bool per_thread : {false, true}) {
      const Lookup found = find_for_version(kCudaNames[i].base, kCudaNames[i].since, per_thread);
      if (found.status == LookupStatus::kFound) reached.insert(kCudaNames[found.index].name);
    }
  }
  for (size_t i = 0; i < kCudaNameCount; ++i) EXPECT_TRUE(reached.count(kCudaNames[i].name)) << kCudaNames[i].name;
}

}  // namespace
}  // namespace sluice::abi
