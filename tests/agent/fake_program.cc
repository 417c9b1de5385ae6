// A stand-in for a program under a grant, as the agent sees one: it claims a slot of the usage file by its record lock,
// says how much it has reserved, and stays until it is killed. No library of ours, so that the agent is tested against
// the page's layout and not against our own guest. Commands on standard input: "reserve MIB", "busy MS", "truncate",
// "lie", "exit".
//   fake_program USAGE_FILE CARD SLOT RESERVED_MIB
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "page/usage.h"

namespace {

struct SlotBytes {
  uint32_t state = sluice::page::kSlotLive;
  uint32_t contexts = 1;
  uint64_t exec_token = 77;
  uint64_t reserved_bytes = 0;
  uint64_t rest[5] = {};
};
static_assert(sizeof(SlotBytes) == sizeof(sluice::page::Slot));

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: fake_program USAGE_FILE CARD SLOT RESERVED_MIB\n";
    return 2;
  }
  const uint32_t card = static_cast<uint32_t>(std::atoi(argv[2]));
  const uint32_t slot = static_cast<uint32_t>(std::atoi(argv[3]));
  int fd = ::open(argv[1], O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    std::perror(argv[1]);
    return 1;
  }
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_start = static_cast<off_t>(sluice::page::slot_lock_byte(card, slot));
  lock.l_len = 1;
  if (::fcntl(fd, F_SETLK, &lock) != 0) {
    std::perror("F_SETLK");
    return 1;
  }
  const off_t base = static_cast<off_t>(sizeof(sluice::page::UsageHeader) + card * sizeof(sluice::page::UsageCard));
  const off_t slot_at = base + static_cast<off_t>(offsetof(sluice::page::UsageCard, slots) + slot * sizeof(SlotBytes));
  const off_t busy_at = base + static_cast<off_t>(offsetof(sluice::page::Account, busy_total_ns));
  SlotBytes bytes;
  uint64_t busy_ns = 0;
  auto write_slot = [&](long long mib) {
    bytes.reserved_bytes = static_cast<uint64_t>(mib) << 20;
    return ::pwrite(fd, &bytes, sizeof(bytes), slot_at) == sizeof(bytes);
  };
  if (!write_slot(std::atoll(argv[4]))) return 1;
  std::cout << "ready " << ::getpid() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.rfind("reserve ", 0) == 0) write_slot(std::atoll(line.c_str() + 8));
    if (line.rfind("busy ", 0) == 0) {
      busy_ns += static_cast<uint64_t>(std::atoll(line.c_str() + 5)) * 1000000;
      if (::pwrite(fd, &busy_ns, sizeof(busy_ns), busy_at) != sizeof(busy_ns)) return 1;
    }
    if (line == "truncate" && ::ftruncate(fd, 100) != 0) return 1;
    if (line == "lie") {
      const std::string noise(sizeof(sluice::page::UsageCard), '\xff');
      if (::pwrite(fd, noise.data(), noise.size(), base) < 0) return 1;
    }
    if (line == "exit") break;
    std::cout << "done" << std::endl;
  }
  return 0;
}
