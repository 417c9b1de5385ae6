// Pages of a grant for the guest's own tests, as files in a folder of their own, and a Guest attached to them through
// the same code that the shipped library runs.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "guest/attach.h"
#include "guest/guest.h"
#include "guest/nvml_view.h"
#include "guest/os_seams.h"
#include "guest/record_locks.h"
#include "guest/testing_card.h"

namespace sluice::guest {

inline constexpr uint64_t kMiB = 1ull << 20;
inline constexpr uint64_t kGiB = 1ull << 30;

// Grant and usage page of one card (or several of the same kind), written once.
class TestPages {
 public:
  explicit TestPages(uint64_t limit_bytes, uint64_t context_estimate_bytes = 128 * kMiB, uint32_t cards = 1);
  ~TestPages();
  TestPages(const TestPages&) = delete;
  TestPages& operator=(const TestPages&) = delete;

  page::Grant* grant() { return grant_; }
  page::Usage* usage() { return usage_; }
  uint64_t charged_bytes(uint32_t card = 0) const;
  std::string grant_path, usage_path, folder;

 private:
  page::Grant* grant_ = nullptr;
  page::Usage* usage_ = nullptr;
  size_t grant_bytes_ = 0, usage_bytes_ = 0;
};

// One process's guest over the pages; becomes current_guest() of the test program.
struct TestGuest {
  explicit TestGuest(TestPages& pages, Driver* driver);
  ~TestGuest();

  OsClock clock;
  OsWaiter waiter;
  RecordLocks locks;
  std::unique_ptr<Guest> guest;
  std::unique_ptr<NvmlView> nvml;
  std::string grant_path, usage_path;
  Driver* driver;
};

}  // namespace sluice::guest
