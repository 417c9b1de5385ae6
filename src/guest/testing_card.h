// A card's memory for the guest's own tests: the driver calls that allocate, over a model that knows nothing of the
// guest. Its state can lie in memory shared by several processes, so that races and kills are judged by what the card
// holds, not by what the ledger says. Blocks of 2 MiB, requests up to 1 MiB share one, contexts cost `context_bytes`.
//
// One instance per test process at a time: driver functions are plain C functions and find it through
// TestCard::current.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/cuda.h"
#include "guest/seams.h"

namespace sluice::guest {

// What all processes of a test share; zeroed memory is a valid empty card.
struct TestCardShared {
  std::atomic<uint64_t> resident;
  std::atomic<uint64_t> peak;
  std::atomic<uint64_t> capacity;        // 0 = endless
  std::atomic<uint64_t> by_process[64];  // resident bytes, index chosen by the test
};

class TestCard : public Driver {
 public:
  TestCard();
  ~TestCard();
  void* symbol(const char* name) override;
  static TestCard* current;

  // False when the card is full.
  bool take(uint64_t bytes);
  void give(uint64_t bytes);

  TestCardShared own_state{};
  TestCardShared* shared = &own_state;
  uint32_t process_index = 0;
  uint64_t context_bytes = 100ull << 20;  // what a context really costs
  uint64_t code_bytes = 0;                // what a module load adds
  uint64_t pool_granule = 32ull << 20;
  bool nvml_lists_us = true;
  int devices = 1;
  uint8_t uuid[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  std::vector<std::string> missing;  // names that the driver lacks

  struct Range {
    uint64_t bytes;
    int pool;  // -1: own blocks
    void* context;
  };
  struct TestPool {
    uint64_t reserved = 0, used = 0, threshold = 0;
  };
  struct TestPhysical {
    uint64_t bytes;
    int references;
  };
  std::mutex mutex;
  std::map<uint64_t, Range> ranges;
  std::map<uint64_t, uint32_t> small_blocks;
  std::map<uint64_t, TestPool> pools;
  std::map<uint64_t, uint64_t> pool_of_address;
  std::map<uint64_t, TestPhysical*> handles, mapped;
  std::map<uint64_t, uint64_t> mapped_bytes;
  std::map<uint64_t, uint64_t> arrays;
  std::map<void*, uint64_t> contexts;
  uint64_t next_address = 0x7f0000000000ull;
  uint64_t small_cursor = 0, small_end = 0;
  uint64_t next_handle = 0x1000;
  int primary_retains = 0;
  bool initialised = false;
  bool capturing = false;
  uint64_t limits[3] = {1024, 1 << 20, 8 << 20};
  uint64_t graph_nodes_bytes = 0, graph_reserved = 0, graph_used = 0;
};

}  // namespace sluice::guest
