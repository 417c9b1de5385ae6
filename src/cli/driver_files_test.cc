#include "cli/driver_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "cli/scratch_test.h"

namespace sluice::cli {
namespace {

std::vector<std::string> targets(const std::vector<DriverFile>& files) {
  std::vector<std::string> out;
  for (const DriverFile& file : files) out.push_back(file.target);
  return out;
}

TEST(DriverFiles, NamesOfTheDriverAndNoOthers) {
  for (const char* name : {"libcuda.so", "libcuda.so.1", "libcuda.so.580.95.05"}) {
    EXPECT_TRUE(is_driver_name(DriverLibrary::kCuda, name)) << name;
  }
  for (const char* name : {"libcudart.so.12", "libcuda.so.1.bak", "libcuda.so.", "libcuda.soon", "libcuda",
                           "xlibcuda.so", "libnvidia-ml.so.1"}) {
    EXPECT_FALSE(is_driver_name(DriverLibrary::kCuda, name)) << name;
  }
  EXPECT_TRUE(is_driver_name(DriverLibrary::kNvml, "libnvidia-ml.so.1"));
}

TEST(DriverFiles, LinksLeadToTheFileThatIsCovered) {
  Scratch scratch;
  const std::string cuda = scratch.file("lib/libcuda.so.580.95.05", "cuda");
  scratch.link("lib/libcuda.so.1", "libcuda.so.580.95.05");
  scratch.link("lib/libcuda.so", "libcuda.so.1");
  const std::string nvml = scratch.file("lib/libnvidia-ml.so.1", "nvml");
  const DriverFiles files = find_driver_files({"", scratch.path("none"), {scratch.path("lib")}, {}});
  EXPECT_EQ(files.cuda, cuda);
  EXPECT_EQ(files.nvml, nvml);
  EXPECT_EQ(targets(files.all_cuda), (std::vector<std::string>{cuda, cuda, cuda}));
}

TEST(DriverFiles, TheLoadersOrderDecidesWhichIsReal) {
  Scratch scratch;
  const std::string first = scratch.file("first/libcuda.so.1", "a");
  const std::string second = scratch.file("second/libcuda.so.1", "b");
  const std::string hwcaps = scratch.file("second/glibc-hwcaps/x86-64-v3/libcuda.so.1", "c");
  const std::string path = scratch.path("first") + ":" + scratch.path("missing") + ":" + scratch.path("second");
  const DriverFiles files = find_driver_files({path, scratch.path("none"), {}, {}});
  EXPECT_EQ(files.cuda, first);
  EXPECT_EQ(targets(files.all_cuda), (std::vector<std::string>{first, second, hwcaps}));
  EXPECT_EQ(files.all_cuda[0].source, "LD_LIBRARY_PATH");
}

TEST(DriverFiles, OurOwnLibraryIsNoDriver) {
  Scratch scratch;
  const std::string ours = scratch.file("guest/libcuda.so.1", "ours");
  scratch.link("lib/libcuda.so.1", ours);
  const DriverFiles files = find_driver_files({"", scratch.path("none"), {scratch.path("lib")}, {ours}});
  EXPECT_EQ(files.cuda, "");
  EXPECT_TRUE(files.all_cuda.empty());
}

TEST(DriverFiles, DanglingLinksAndFoldersAreSkipped) {
  Scratch scratch;
  scratch.link("lib/libcuda.so.1", "gone");
  std::filesystem::create_directories(scratch.path("lib/libcuda.so"));
  EXPECT_TRUE(find_driver_files({scratch.path("lib"), scratch.path("none"), {}, {}}).all_cuda.empty());
}

TEST(DriverFiles, AMissingHalfIsNamed) {
  Scratch scratch;
  scratch.file("lib/libcuda.so.1", "cuda");
  const DriverSearch search{scratch.path("lib"), scratch.path("none"), {}, {}};
  const auto pair = check_driver_pair(find_driver_files(search), search);
  ASSERT_FALSE(pair);
  EXPECT_EQ(pair.error().code, ErrorCode::kNotFound);
  EXPECT_NE(pair.error().message.find("libnvidia-ml.so.1 not found in LD_LIBRARY_PATH ('" + scratch.path("lib") + "')"),
            std::string::npos)
      << pair.error().message;
  EXPECT_EQ(pair.error().message.find("libcuda.so.1 not"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cli
