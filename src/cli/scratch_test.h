// A folder of a test's own under /tmp, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::cli {

class Scratch {
 public:
  Scratch() {
    std::string name = std::filesystem::temp_directory_path() / "sluice-cli-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot create " << name;
    std::filesystem::permissions(name, std::filesystem::perms::owner_all | std::filesystem::perms::group_read |
                                           std::filesystem::perms::group_exec | std::filesystem::perms::others_read |
                                           std::filesystem::perms::others_exec);
    root_ = std::filesystem::canonical(name);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
    return path(name);
  }
  std::string link(const std::string& name, const std::string& to) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::filesystem::create_symlink(to, root_ / name);
    return path(name);
  }

 private:
  std::filesystem::path root_;
};

}  // namespace sluice::cli
