// The two pages as a program's guest finds them: files of any length with any bytes. It must refuse with a reason or
// serve; over a page that it accepted, the ledger keeps its promises whatever the slots hold.
//
// Input: two bytes give the grant file's part of the input in units of 16 bytes, one byte the usage file's length.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "check.h"
#include "guest/attach.h"

using namespace sluice;
using namespace sluice::guest;

namespace sluice::guest {
Guest* current_guest() {
  return nullptr;
}
}  // namespace sluice::guest

namespace {

constexpr const char* kName = "sluice-fuzz-page";

struct File {
  int descriptor = ::memfd_create(kName, MFD_CLOEXEC);
  std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  void set(const uint8_t* data, size_t bytes, size_t length) {
    promise(::ftruncate(descriptor, 0) == 0 && ::ftruncate(descriptor, static_cast<off_t>(length)) == 0, "a file");
    if (bytes != 0) promise(::pwrite(descriptor, data, std::min(bytes, length), 0) >= 0, "its contents");
  }
};

// The guest maps a page for good, so the target takes old mappings away itself.
void unmap_pages() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find(kName) == std::string::npos) continue;
    const uintptr_t from = std::stoull(line, nullptr, 16);
    const uintptr_t to = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    ::munmap(reinterpret_cast<void*>(from), to - from);
  }
}

void use_ledger(Guest& guest, OsClock& clock, OsWaiter& waiter, RecordLocks& locks) {
  guest.seams.clock = &clock;
  guest.seams.waiter = &waiter;
  guest.seams.identity = &locks;
  for (uint32_t card = 0; card < std::min(guest.card_count, 2u); ++card) {
    Ledger ledger = ledger_of(&guest, card);
    const uint32_t slot = ledger.claim();
    if (slot != kNoLedgerSlot) {
      const uint64_t before = ledger.charged_bytes();
      const Reserve answer = ledger.reserve(slot, 1 << 20);
      const uint64_t limit = guest.cards[card].grant->memory_limit_bytes.load();
      promise(answer != Reserve::kGranted || limit == 0 || before + (1 << 20) <= limit, "never over the limit");
      if (answer == Reserve::kGranted) ledger.give_back(slot, 1 << 20);
    }
    const Ledger::View view = ledger.view();
    promise(view.used_bytes <= view.total_bytes && view.free_bytes <= view.total_bytes, "figures that fit together");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static File grant_file, usage_file;
  static uint32_t rounds = 0;
  if (size < 3) return 0;
  const size_t grant_bytes = std::min<size_t>(size - 3, static_cast<size_t>(data[0] | data[1] << 8) * 16);
  const size_t usage_bytes = size - 3 - grant_bytes;
  const size_t lengths[] = {page::usage_bytes(1), page::usage_bytes(2), sizeof(page::UsageHeader), usage_bytes};
  grant_file.set(data + 3, grant_bytes, grant_bytes);
  usage_file.set(data + 3 + grant_bytes, usage_bytes, lengths[data[2] % 4]);
  auto guest = std::make_unique<Guest>();
  OsClock clock;
  OsWaiter waiter;
  auto locks = std::make_unique<RecordLocks>();
  const uint32_t refusal = attach_pages(guest.get(), grant_file.path.c_str(), usage_file.path.c_str(), locks.get());
  promise(refusal <= page::kRefusalLast, "a refusal is one that doctor knows");
  promise(refusal != page::kRefusalNone || guest->card_count > 0, "a grant has cards");
  if (refusal == page::kRefusalNone) use_ledger(*guest, clock, waiter, *locks);
  if (locks->descriptor() >= 0) ::close(locks->descriptor());
  if (++rounds % 500 == 0) unmap_pages();
  return 0;
}
