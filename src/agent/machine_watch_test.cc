#include "agent/machine_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::agent {
namespace {

constexpr int64_t kThreeHoursMs = 3 * 3600 * 1000;

MachineReading clocks(int64_t wall_ms, int64_t boot_ms) {
  MachineReading reading;
  reading.wall_ms = wall_ms;
  reading.boot_ms = boot_ms;
  return reading;
}

TEST(MachineWatch, EachJumpOfTheClockIsSaidOnce) {
  MachineWatch watch;
  int64_t boot_ms = 5'000, offset_ms = 1'700'000'000'000;
  auto look = [&] {
    boot_ms += 1000;
    return watch.look(clocks(offset_ms + boot_ms, boot_ms));
  };
  EXPECT_TRUE(look().empty());
  for (const int64_t jump_ms : {kThreeHoursMs, -kThreeHoursMs, int64_t{-1500}, int64_t{86'400'000'000}}) {
    offset_ms += jump_ms;
    const std::vector<MachineSentence> said = look();
    ASSERT_EQ(said.size(), 1u) << jump_ms;
    EXPECT_EQ(said[0].event, "clock-set");
    EXPECT_NE(said[0].text.find(jump_ms > 0 ? "forward by" : "back by"), std::string::npos) << said[0].text;
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(look().empty());
  }
}

TEST(MachineWatch, SlewingSleepAndUnsureReadingsAreNoJumps) {
  MachineWatch watch;
  std::mt19937 random(7);
  int64_t boot_ms = 0, offset_ms = 1'700'000'000'000;
  EXPECT_TRUE(watch.look({}).empty());
  for (int i = 0; i < 2000; ++i) {
    boot_ms += i % 100 == 99 ? 3'600'000 : 1000;        // the machine slept
    offset_ms += static_cast<int64_t>(random() % 101);  // slewed by a tenth
    EXPECT_TRUE(watch.look(clocks(boot_ms + offset_ms, boot_ms)).empty()) << i;
    if (i % 7 == 0) {
      EXPECT_TRUE(watch.look({}).empty());
    }
  }
}

TEST(MachineWatch, AFullFileSystemIsSaidOnceAndSoIsItsEnd) {
  MachineWatch watch;
  auto look = [&](uint64_t free_kib, bool names_left = true) {
    MachineReading reading;
    reading.rooms = {{"/run/a", free_kib << 10, names_left}, {"/var/b", 1 << 30, true}};
    return watch.look(reading);
  };
  EXPECT_TRUE(look(40).empty());
  const auto full = look(0);
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].event, "no-room");
  EXPECT_EQ(full[0].level, log::Level::kWarning);
  EXPECT_NE(full[0].text.find("/run/a is full (0 KiB are left)"), std::string::npos) << full[0].text;
  for (const uint64_t kib : {0, 31, 40, 127, 3}) EXPECT_TRUE(look(kib).empty()) << kib;
  const auto again = look(128);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].event, "room-again");
  const auto names = look(1000, false);
  ASSERT_EQ(names.size(), 1u);
  EXPECT_NE(names[0].text.find("no inode is free"), std::string::npos) << names[0].text;
  // A reading that could not be had changes nothing.
  EXPECT_TRUE(watch.look({}).empty());
  EXPECT_EQ(look(1000).size(), 1u);
}

TEST(MachineWatch, ThisMachineCanBeRead) {
  const MachineReading reading = read_machine({"/", "/proc", "/nowhere/at/all"});
  EXPECT_LE(reading.rooms.size(), 1u) << "what has no size or is not there is left out";
  MachineWatch watch;
  watch.look(reading);
  for (const MachineSentence& sentence : watch.look(read_machine({"/"}))) EXPECT_EQ(sentence.event, "no-room");
}

}  // namespace
}  // namespace sluice::agent
