#include "cli/card_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "cli/scratch_test.h"

namespace sluice::cli {
namespace {

TEST(CardDescriptors, AreToldByDeviceAndPath) {
  const struct {
    const char* path;
    unsigned major;
    bool card;
  } cases[] = {
      {"/dev/nvidia0", 195, true},
      {"/dev/nvidiactl", 195, true},
      {"/host/dev/card", 195, true},
      {"/dev/nvidia-uvm", 511, true},
      {"/dev/nvidia-caps/nvidia-cap1", 236, true},
      {"/dev/null", 1, false},
      {"/dev/pts/0", 136, false},
      {"/home/me/nvidia/log", 0, false},
      {"/tmp/cards/card0", 0, true},
      {"/tmp/cards-of-mine/card0", 0, false},
      {"socket:[1]", 0, false},
  };
  for (const auto& one : cases) EXPECT_EQ(leads_to_a_card(one.path, one.major, "/tmp/cards"), one.card) << one.path;
  EXPECT_FALSE(leads_to_a_card("/tmp/cards/card0", 0, ""));
}

TEST(CardDescriptors, TheCommandInheritsTheOthersAlone) {
  Scratch scratch;
  std::filesystem::create_directory(scratch.path("cards"));
  std::filesystem::create_directory_symlink(scratch.path("cards"), scratch.path("link"));
  const Fd card(open(scratch.file("cards/card0", "x").c_str(), O_RDONLY));
  const Fd other(open(scratch.file("other", "x").c_str(), O_RDONLY));
  const std::vector<int> found = leave_cards_to_the_caller(scratch.path("link"));
  EXPECT_NE(std::find(found.begin(), found.end(), card.get()), found.end());
  EXPECT_EQ(fcntl(card.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(other.get(), F_GETFD), 0);
}

}  // namespace
}  // namespace sluice::cli
