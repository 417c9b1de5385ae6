#include "agent/slot_watch.h"

#include <gtest/gtest.h>

namespace sluice::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kMib = 1 << 20;

SlotImages page_with(std::initializer_list<std::pair<uint32_t, uint64_t>> reserved) {
  SlotImages images{};
  for (const auto& [slot, bytes] : reserved) images[slot] = {true, bytes, 0, 0, 0, 0};
  return images;
}

CardReading reading_of(std::initializer_list<ProcessUse> processes) {
  CardReading reading;
  reading.processes = processes;
  return reading;
}

TEST(SlotWatch, ALiveProcessIsChargedWhatTheCardSpends) {
  SlotWatch watch;
  const SlotImages page = page_with({{3, 100 * kMib}});
  watch.look(1 * kMs, {{3, 500}}, page);
  watch.card_read(2 * kMs, 1 * kMs, reading_of({{500, 160 * kMib}}), page);
  EXPECT_EQ(watch.correction_bytes(3), 60 * kMib);
  EXPECT_EQ(watch.charged_bytes(), 160 * kMib);
  EXPECT_EQ(watch.used_bytes(), static_cast<int64_t>(160 * kMib));
  // Less on the card than charged (managed memory, a reservation under way): never lowered.
  watch.card_read(3 * kMs, 2 * kMs, reading_of({{500, 50 * kMib}}), page);
  EXPECT_EQ(watch.correction_bytes(3), 0u);
  EXPECT_EQ(watch.charged_bytes(), 100 * kMib);
}

TEST(SlotWatch, MemoryFreedWhileTheCardIsReadIsNotChargedTwice) {
  SlotWatch watch;
  const SlotImages before = page_with({{0, 300 * kMib}});
  watch.look(1 * kMs, {{0, 9}}, page_with({{0, 100 * kMib}}));  // freed between the two looks
  watch.card_read(2 * kMs, 1 * kMs, reading_of({{9, 300 * kMib}}), before);
  EXPECT_EQ(watch.correction_bytes(0), 0u);
}

TEST(SlotWatch, ADeadProcessStaysChargedUntilTheCardNoLongerListsIt) {
  SlotWatch watch;
  const SlotImages page = page_with({{0, 100 * kMib}});
  watch.look(10 * kMs, {{0, 42}}, page);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{42, 130 * kMib}}), page);
  SlotWatch::Found found = watch.look(100 * kMs, {}, page);
  EXPECT_TRUE(found.died);
  EXPECT_TRUE(found.clear.empty());
  EXPECT_TRUE(watch.any_waiting());
  EXPECT_FALSE(watch.any_alive());
  EXPECT_EQ(watch.charged_bytes(), 130 * kMib);
  // A reading that was begun before the death proves nothing.
  EXPECT_TRUE(watch.card_read(110 * kMs, 90 * kMs, reading_of({}), page).clear.empty());
  EXPECT_EQ(watch.correction_bytes(0), 30 * kMib);
  // From here on its charge is the agent's: what the page says may be changed by whoever is left, and is cleared.
  found = watch.card_read(130 * kMs, 120 * kMs, reading_of({{42, 130 * kMib}}), page);
  EXPECT_EQ(found.clear, std::vector<uint32_t>{0});
  EXPECT_EQ(watch.correction_bytes(0), 130 * kMib);
  EXPECT_EQ(watch.charged_bytes(), 130 * kMib);
  EXPECT_EQ(watch.look(135 * kMs, {}, page).clear, std::vector<uint32_t>{0}) << "written again";
  EXPECT_EQ(watch.correction_bytes(0), 130 * kMib);
  EXPECT_TRUE(watch.look(140 * kMs, {}, SlotImages{}).clear.empty());
  watch.card_read(150 * kMs, 145 * kMs, reading_of({}), SlotImages{});
  watch.look(160 * kMs, {}, SlotImages{});
  EXPECT_EQ(watch.charged_bytes(), 0u);
  EXPECT_FALSE(watch.any_waiting());
}

// A tenant that empties its page: the guests count the tally, so it is no reason for a correction on top, and what a
// process leaves on the card at its death stays charged though neither page nor card reading has told of it.
TEST(SlotWatch, TheTallyCountsWhereThePageWasEmptied) {
  SlotWatch watch;
  SlotImages emptied{};
  emptied[2].tally_bytes = 96 * kMib;
  watch.look(10 * kMs, {{2, 42}}, emptied);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{42, 130 * kMib}}), emptied);
  EXPECT_EQ(watch.correction_bytes(2), 34 * kMib);
  EXPECT_EQ(watch.charged_bytes(), 130 * kMib);
  emptied[2].tally_bytes = 512 * kMib;
  watch.look(30 * kMs, {{2, 42}}, emptied);
  watch.look(40 * kMs, {}, SlotImages{});
  EXPECT_EQ(watch.charged_bytes(), 512 * kMib);
  EXPECT_TRUE(watch.any_waiting());
  watch.card_read(60 * kMs, 50 * kMs, reading_of({{42, 512 * kMib}}), SlotImages{});
  EXPECT_EQ(watch.charged_bytes(), 512 * kMib);
  watch.card_read(90 * kMs, 80 * kMs, reading_of({}), SlotImages{});
  EXPECT_EQ(watch.charged_bytes(), 0u);
  EXPECT_FALSE(watch.any_waiting());
}

TEST(SlotWatch, WhatAProcessLeftIsChargedThoughAnotherHasItsSlot) {
  SlotWatch watch;
  SlotImages emptied{};
  emptied[0].tally_bytes = 512 * kMib;
  watch.look(10 * kMs, {{0, 42}}, emptied);
  emptied[0].tally_bytes = 64 * kMib;
  EXPECT_TRUE(watch.look(20 * kMs, {{0, 43}}, emptied).died);
  EXPECT_EQ(watch.charged_bytes(), (512 + 64) * kMib);
  EXPECT_TRUE(watch.any_waiting());
  EXPECT_TRUE(watch.holds(42));
  watch.card_read(40 * kMs, 30 * kMs, reading_of({{42, 530 * kMib}, {43, 64 * kMib}}), emptied);
  watch.look(45 * kMs, {{0, 43}}, emptied);
  EXPECT_EQ(watch.charged_bytes(), (530 + 64) * kMib);
  watch.card_read(60 * kMs, 50 * kMs, reading_of({{43, 64 * kMib}}), emptied);
  EXPECT_EQ(watch.charged_bytes(), 64 * kMib);
  EXPECT_FALSE(watch.any_waiting());
}

// What a process that ended has on the card is not known before the card has been asked; the guests wait for that.
TEST(SlotWatch, ADeathIsOpenUntilAReadingTellsOfIt) {
  SlotWatch watch;
  const SlotImages emptied{};
  watch.look(10 * kMs, {{0, 42}}, emptied);
  EXPECT_TRUE(watch.held(0));
  EXPECT_EQ(watch.deaths_open(), 0u);
  watch.look(20 * kMs, {}, emptied);  // it has taken 4 GiB since, of which neither page nor tally has told
  EXPECT_FALSE(watch.held(0));
  EXPECT_EQ(watch.deaths_open(), 1u);
  EXPECT_TRUE(watch.any_waiting());
  watch.card_read(30 * kMs, 15 * kMs, reading_of({{42, 100 * kMib}}), emptied);
  EXPECT_EQ(watch.deaths_open(), 1u) << "that reading began before it ended";
  watch.card_read(50 * kMs, 40 * kMs, reading_of({{42, 4096 * kMib}}), emptied);
  EXPECT_EQ(watch.deaths_open(), 0u);
  EXPECT_EQ(watch.charged_bytes(), 4096 * kMib);
  watch.card_read(90 * kMs, 80 * kMs, reading_of({}), emptied);
  EXPECT_EQ(watch.charged_bytes(), 0u);
  EXPECT_FALSE(watch.any_waiting());
  // The same when another has taken its slot before anybody looked.
  watch.look(100 * kMs, {{0, 50}}, emptied);
  watch.look(110 * kMs, {{0, 51}}, emptied);
  EXPECT_TRUE(watch.held(0));
  EXPECT_EQ(watch.deaths_open(), 1u);
  watch.card_read(130 * kMs, 120 * kMs, reading_of({}), emptied);
  EXPECT_EQ(watch.deaths_open(), 0u);
}

TEST(SlotWatch, TheHoldEndsAfterTwoSecondsWhateverTheCardSays) {
  SlotWatch watch;
  const SlotImages page = page_with({{7, 10 * kMib}});
  watch.look(10 * kMs, {{7, 42}}, page);
  watch.look(20 * kMs, {}, page);
  EXPECT_TRUE(watch.look(2019 * kMs, {}, page).clear.empty());
  EXPECT_EQ(watch.look(2020 * kMs, {}, page).clear, std::vector<uint32_t>{7});
}

TEST(SlotWatch, ASlotThatSaysNothingButLeftMemoryOnTheCardIsCharged) {
  SlotWatch watch;
  const SlotImages page = page_with({{0, 100 * kMib}});
  watch.look(10 * kMs, {{0, 42}}, page);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{42, 100 * kMib}}), page);
  watch.look(30 * kMs, {}, SlotImages{});  // left in good order, its context is still being torn down
  EXPECT_EQ(watch.charged_bytes(), 100 * kMib);
  watch.card_read(50 * kMs, 40 * kMs, reading_of({}), SlotImages{});
  EXPECT_EQ(watch.charged_bytes(), 0u);
}

TEST(SlotWatch, AProcessSeenDeadOnlyIsHeldTwoSeconds) {
  SlotWatch watch;
  const SlotImages page = page_with({{1, 5 * kMib}});
  EXPECT_TRUE(watch.look(10 * kMs, {}, page).died);
  EXPECT_TRUE(watch.card_read(30 * kMs, 20 * kMs, reading_of({}), page).clear.empty());
  EXPECT_EQ(watch.look(2010 * kMs, {}, page).clear, std::vector<uint32_t>{1});
}

TEST(SlotWatch, ASlotTakenOverBetweenTwoLooksStartsAnew) {
  SlotWatch watch;
  const SlotImages page = page_with({{0, 50 * kMib}});
  watch.look(10 * kMs, {{0, 42}}, page);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{42, 90 * kMib}}), page);
  EXPECT_EQ(watch.correction_bytes(0), 40 * kMib);
  EXPECT_TRUE(watch.look(30 * kMs, {{0, 43}}, page).died);
  EXPECT_EQ(watch.correction_bytes(0), 0u);
  EXPECT_TRUE(watch.holds(43));
  EXPECT_TRUE(watch.holds(42)) << "the card may not have freed it yet";
  watch.card_read(50 * kMs, 40 * kMs, reading_of({{43, 50 * kMib}}), page);
  EXPECT_FALSE(watch.holds(42));
}

TEST(SlotWatch, DifferencesAreNamed) {
  SlotWatch watch;
  const SlotImages silent = page_with({{0, 0}});
  watch.look(10 * kMs, {{0, 42}}, silent);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{42, 3072 * kMib}}), silent);
  EXPECT_FALSE(watch.difference(4096 * kMib).has_value()) << "one reading is no proof";
  watch.card_read(30 * kMs, 25 * kMs, reading_of({{42, 3072 * kMib}}), silent);
  ASSERT_TRUE(watch.difference(4096 * kMib).has_value());
  EXPECT_NE(watch.difference(4096 * kMib)->find("its page says 0 MiB"), std::string::npos);
  EXPECT_NE(watch.difference(2048 * kMib)->find("its limit is 2048 MiB"), std::string::npos);
  // Charged nevertheless.
  EXPECT_EQ(watch.charged_bytes(), 3072 * kMib);
}

TEST(SlotWatch, ADeadProcessIsNoDifference) {
  SlotWatch watch;
  const SlotImages page = page_with({{0, 9000 * kMib}});
  watch.look(10 * kMs, {{0, 42}}, page);
  watch.look(20 * kMs, {}, page);
  for (uint64_t i = 3; i < 6; ++i) {
    watch.card_read(i * 10 * kMs, i * 10 * kMs - kMs, reading_of({{42, 9000 * kMib}}), page);
    EXPECT_FALSE(watch.difference(10000 * kMib).has_value());
  }
}

TEST(SlotWatch, NonsenseInThePageOverflowsNothing) {
  SlotWatch watch;
  SlotImages page{};
  std::vector<SlotOwner> owners;
  for (uint32_t i = 0; i < page::kMaxProcesses; ++i) {
    page[i] = {true, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};
    owners.push_back({i, 1000 + i});
  }
  owners.push_back({9999, 5});
  watch.look(10 * kMs, owners, page);
  watch.card_read(20 * kMs, 15 * kMs, reading_of({{1000, kUnknownBytes}}), page);
  EXPECT_FALSE(watch.used_bytes().has_value());
  EXPECT_GT(watch.charged_bytes(), 0u);
  EXPECT_LT(watch.charged_bytes(), uint64_t{1} << 60);
  watch.look(30 * kMs, {}, page);
  EXPECT_EQ(watch.look(3000 * kMs, {}, page).clear.size(), page::kMaxProcesses);
}

}  // namespace
}  // namespace sluice::agent
