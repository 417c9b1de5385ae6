// What is read from and laid down on the node's disk: the driver's files and the guest libraries.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "node/driver.h"
#include "node/libraries.h"

namespace sluice::node {
namespace {

namespace fs = std::filesystem;

class NodeFiles : public testing::Test {
 protected:
  NodeFiles() {
    std::string pattern = (fs::temp_directory_path() / "sluice-node-files-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : "";
  }
  ~NodeFiles() override { fs::remove_all(root_); }
  void file(const std::string& path, const std::string& text = "x") {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void link(const std::string& path, const std::string& to) { fs::create_symlink(to, root_ + path); }
  std::string root_;
};

std::string host_of(const Driver& driver, const std::string& path) {
  for (const DriverMount& mount : driver.others) {
    if (mount.container_path == path) return mount.host_path;
  }
  return "";
}

TEST_F(NodeFiles, ADriverUnderItsRoot) {
  const std::string folder = "/usr/lib/x86_64-linux-gnu/";
  file(folder + "libcuda.so.550.54.15");
  file(folder + "libnvidia-ml.so.550.54.15");
  file(folder + "libnvidia-nvvm.so.550.54.15");
  file(folder + "libnvidia-gpucomp.so.550.54.15");
  file(folder + "libnvidia-glcore.so.550.54.15");        // for screens
  file(folder + "libnvidia-ptxjitcompiler.so.535.1.1");  // of a driver that went
  link(folder + "libcuda.so.1", "libcuda.so.550.54.15");
  // A link to an absolute path means the node's own root.
  link(folder + "libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15");
  link(folder + "libnvidia-nvvm.so.4", "libnvidia-nvvm.so.550.54.15");
  link(folder + "libnvidia-cfg.so.1", "nowhere");
  file("/usr/bin/nvidia-smi");
  file("/dev/nvidiactl");
  Result<Driver> driver = find_driver({root_, ""});
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  EXPECT_FALSE(driver->simulated);
  EXPECT_EQ(driver->cuda, folder + "libcuda.so.550.54.15");
  EXPECT_EQ(driver->nvml, folder + "libnvidia-ml.so.550.54.15");
  EXPECT_EQ(driver->library_folder + "/", root_ + folder);
  EXPECT_EQ(host_of(*driver, folder + "libnvidia-nvvm.so.4"), folder + "libnvidia-nvvm.so.550.54.15");
  EXPECT_EQ(host_of(*driver, "/usr/lib64/libnvidia-gpucomp.so.550.54.15"), folder + "libnvidia-gpucomp.so.550.54.15");
  EXPECT_EQ(host_of(*driver, "/usr/bin/nvidia-smi"), "/usr/bin/nvidia-smi");
  for (const DriverMount& mount : driver->others) {
    EXPECT_EQ(mount.container_path.find("glcore"), std::string::npos);
    EXPECT_EQ(mount.container_path.find("535"), std::string::npos);
    EXPECT_EQ(mount.container_path.find("libnvidia-cfg"), std::string::npos);
  }
  EXPECT_NE(std::find(driver->controls.begin(), driver->controls.end(), "/dev/nvidiactl"), driver->controls.end());
}

TEST_F(NodeFiles, ASimulatedCard) {
  for (const char* name : {"/simulated", "/libcuda.so.1", "/libnvidia-ml.so.1", "/nvidia-smi"}) file(name);
  Result<Driver> driver = find_driver({root_, "/opt/sluice-sim"});
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  EXPECT_TRUE(driver->simulated);
  EXPECT_EQ(driver->cuda, "/opt/sluice-sim/libcuda.so.1");
  EXPECT_EQ(driver->state_folder, root_ + "/state");
  EXPECT_EQ(driver->state_on_node, "/opt/sluice-sim/state");
  EXPECT_EQ(host_of(*driver, "/usr/bin/nvidia-smi"), "/opt/sluice-sim/nvidia-smi");
}

TEST_F(NodeFiles, NoDriverIsSaidWithTheOption) {
  file("/libcuda.so.1");  // half of it
  link("/libnvidia-ml.so.1", "libnvidia-ml.so.1");
  Result<Driver> driver = find_driver({root_, root_});
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kNotFound);
  EXPECT_NE(driver.error().message.find("--driver-root"), std::string::npos);
}

TEST_F(NodeFiles, LibrariesOfABuildStayWhileTheyAreNamed) {
  for (const char* name : {"/image/libcuda.so.1", "/image/libnvidia-ml.so.1", "/image/libsluice-preload.so"})
    file(name, "first");
  Result<std::string> first = install_libraries(root_ + "/image", root_ + "/state");
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(*install_libraries(root_ + "/image", root_ + "/state"), *first);
  file("/image/libcuda.so.1", "second");
  Result<std::string> second = install_libraries(root_ + "/image", root_ + "/state");
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*read_file(*first + "/libcuda.so.1"), "first");
  EXPECT_EQ(*read_file(*second + "/libcuda.so.1"), "second");
  remove_old_libraries(root_ + "/state", {*first, *second});
  EXPECT_TRUE(fs::exists(*first));
  remove_old_libraries(root_ + "/state", {*second});
  EXPECT_FALSE(fs::exists(*first));
  EXPECT_TRUE(fs::exists(*second));
  fs::remove(root_ + "/image/libcuda.so.1");
  EXPECT_NE(install_libraries(root_ + "/image", root_ + "/state").error().message.find("--library-dir"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::node
