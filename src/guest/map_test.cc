#include "guest/map.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <unordered_map>

#include "guest/text.h"

namespace sluice::guest {
namespace {

TEST(HashMap, FollowsTheStandardMapThroughRandomOperations) {
  std::mt19937_64 random(7);
  HashMap<uint64_t> map;
  std::unordered_map<uint64_t, uint64_t> truth;
  for (int step = 0; step < 300000; ++step) {
    const uint64_t key = random() % 3000;  // dense, so that deletions meet clusters
    switch (random() % 4) {
      case 0:
      case 1: {
        uint64_t* value = map.insert(key, key * 3);
        ASSERT_NE(value, nullptr);
        truth.emplace(key, key * 3);
        break;
      }
      case 2: {
        uint64_t gone = 0;
        const bool had = truth.erase(key) != 0;
        ASSERT_EQ(map.erase(key, &gone), had);
        if (had) {
          ASSERT_EQ(gone, key * 3);
        }
        break;
      }
      default: {
        uint64_t* value = map.find(key);
        ASSERT_EQ(value != nullptr, truth.count(key) != 0);
        if (value != nullptr) {
          ASSERT_EQ(*value, truth[key]);
        }
      }
    }
    ASSERT_EQ(map.size(), truth.size());
  }
  uint64_t seen = 0;
  map.for_each([&](uint64_t key, uint64_t value) {
    ++seen;
    ASSERT_EQ(truth.at(key), value);
  });
  EXPECT_EQ(seen, truth.size());
  map.release();
}

TEST(HashMap, EraseIfRemovesExactlyTheMatches) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    HashMap<uint32_t> map;
    std::set<uint64_t> kept;
    for (int i = 0; i < 500; ++i) {
      const uint64_t key = random() % 700;
      map.insert(key, static_cast<uint32_t>(key % 3));
      if (key % 3 != 1) kept.insert(key);
    }
    map.erase_if([](uint64_t, uint32_t value) { return value == 1; });
    ASSERT_EQ(map.size(), kept.size());
    for (uint64_t key : kept) ASSERT_NE(map.find(key), nullptr) << key;
    map.release();
  }
}

TEST(HashMap, HoldsAMillionLiveAllocations) {
  HashMap<uint64_t> map;
  for (uint64_t i = 0; i < 1000000; ++i) ASSERT_NE(map.insert(0x7f0000000000ull + i * 512, i), nullptr);
  EXPECT_EQ(map.size(), 1000000u);
  for (uint64_t i = 0; i < 1000000; ++i) ASSERT_EQ(*map.find(0x7f0000000000ull + i * 512), i);
  for (uint64_t i = 0; i < 1000000; ++i) ASSERT_TRUE(map.erase(0x7f0000000000ull + i * 512));
  EXPECT_EQ(map.size(), 0u);
  map.release();
}

TEST(Pool, ObjectsAreZeroedApartAndUsedAgain) {
  struct Object {
    uint64_t words[5];
  };
  static Pool<Object> pool;
  std::set<Object*> taken;
  for (int i = 0; i < 20000; ++i) {
    Object* object = pool.take();
    ASSERT_NE(object, nullptr);
    for (uint64_t word : object->words) ASSERT_EQ(word, 0u);
    object->words[4] = 1;
    ASSERT_TRUE(taken.insert(object).second);
  }
  Object* back = *taken.begin();
  pool.give(back);
  EXPECT_EQ(pool.take(), back);
  EXPECT_EQ(back->words[4], 0u);
}

TEST(Text, BaseOfExportedNames) {
  const auto base = [](const char* name) { return std::string(name, base_length(name)); };
  EXPECT_EQ(base("cuMemFree_v2"), "cuMemFree");
  EXPECT_EQ(base("cuMemcpyHtoD_v2_ptds"), "cuMemcpyHtoD");
  EXPECT_EQ(base("cuLaunchKernel_ptsz"), "cuLaunchKernel");
  EXPECT_EQ(base("cuMemsetD16"), "cuMemsetD16");
  EXPECT_EQ(base("cuStreamWriteValue64_v2"), "cuStreamWriteValue64");
  EXPECT_EQ(base("cuInit"), "cuInit");
}

TEST(Text, UuidAsNvmlWritesIt) {
  const uint8_t uuid[16] = {0xfe, 0xd0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  char text[64];
  format_uuid(uuid, text);
  EXPECT_STREQ(text, "GPU-fed00102-0304-0506-0708-090a0b0c0d0e");
}

}  // namespace
}  // namespace sluice::guest
