#include "guest/testing_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace sluice::guest {

namespace {

TestGuest* current_test_guest = nullptr;

void* make_file(const std::string& path, size_t bytes) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error("cannot make " + path);
  }
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  return address;
}

uint32_t attach_test(Guest* guest) {
  TestGuest* test = static_cast<TestGuest*>(guest->attach_context);
  guest->seams = Seams{test->driver, &test->clock, &test->waiter, &test->locks};
  return attach_pages(guest, test->grant_path.c_str(), test->usage_path.c_str(), &test->locks);
}

void resolve_test(Guest* guest) {
  resolve_real_cuda(guest);
  resolve_real_nvml(guest);
}

}  // namespace

TestPages::TestPages(uint64_t limit_bytes, uint64_t context_estimate_bytes, uint32_t cards) {
  char name[] = "/tmp/sluice-guest-test-XXXXXX";
  if (::mkdtemp(name) == nullptr) throw std::runtime_error("no temporary folder");
  folder = name;
  grant_path = folder + "/page";
  usage_path = folder + "/usage";
  grant_bytes_ = page::grant_bytes(cards);
  usage_bytes_ = page::usage_bytes(cards);
  grant_ = static_cast<page::Grant*>(make_file(grant_path, grant_bytes_));
  usage_ = static_cast<page::Usage*>(make_file(usage_path, usage_bytes_));
  page::GrantHeader& header = grant_->header;
  header.magic = page::kGrantMagic;
  header.major = page::kMajor;
  header.bytes = static_cast<uint32_t>(grant_bytes_);
  header.card_count = cards;
  header.grant_id = 42;
  for (uint32_t card = 0; card < cards; ++card) {
    for (uint8_t i = 0; i < 16; ++i) grant_->cards[card].uuid[i] = static_cast<uint8_t>(i + 1);
    grant_->cards[card].uuid[0] = static_cast<uint8_t>(1 + card);
    grant_->cards[card].card_memory_bytes = 32 * kGiB;
    grant_->cards[card].context_estimate_bytes = context_estimate_bytes;
    grant_->cards[card].memory_limit_bytes.store(limit_bytes);
  }
  usage_->header.magic = page::kUsageMagic;
  usage_->header.major = page::kMajor;
  usage_->header.bytes = static_cast<uint32_t>(usage_bytes_);
  usage_->header.card_count = cards;
  usage_->header.grant_id = 42;
}

TestPages::~TestPages() {
  ::munmap(grant_, grant_bytes_);
  ::munmap(usage_, usage_bytes_);
  ::unlink(grant_path.c_str());
  ::unlink(usage_path.c_str());
  ::rmdir(folder.c_str());
}

uint64_t TestPages::charged_bytes(uint32_t card) const {
  return Ledger{&grant_->cards[card], &usage_->cards[card], card, Seams{}, Points{}}.charged_bytes();
}

TestGuest::TestGuest(TestPages& pages, Driver* driver_seam)
    : guest(std::make_unique<Guest>(attach_test, resolve_test)),
      nvml(std::make_unique<NvmlView>()),
      grant_path(pages.grant_path),
      usage_path(pages.usage_path),
      driver(driver_seam) {
  guest->attach_context = this;
  current_test_guest = this;
}

TestGuest::~TestGuest() {
  if (current_test_guest == this) current_test_guest = nullptr;
  if (!locks.forked()) locks.stop();
}

Guest* current_guest() {
  return current_test_guest->guest.get();
}
NvmlView* current_nvml() {
  return current_test_guest->nvml.get();
}

}  // namespace sluice::guest
