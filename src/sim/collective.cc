// Kernels that wait for each other across cards. Each rank's kernel writes the number of its round into a file next to
// the cards when it starts; the collective runs on once all ranks have. Arrivals are stores of what is true anyway, so
// doing one twice (after a rolled back transaction) changes nothing.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "sim/engine_internal.h"

namespace sluice::sim {

namespace {

constexpr uint32_t kGroups = 1024;
constexpr uint32_t kRanks = 64;

struct Group {
  uint64_t id;
  uint32_t round[kRanks];  // rounds begun by each rank
};

Group* groups(Card& card) {
  Group*& mapped = card.collective_groups<Group>();
  if (mapped != nullptr) return mapped;
  const std::string path = card.path().substr(0, card.path().rfind('/') + 1) + "collectives";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, sizeof(Group) * kGroups) == 0) {
    void* at = mmap(nullptr, sizeof(Group) * kGroups, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) mapped = static_cast<Group*>(at);
  }
  close(fd);
  return mapped;
}

Group* group_of(Card& card, uint64_t id) {
  Group* all = groups(card);
  for (uint32_t n = 0; all != nullptr && n < kGroups; ++n) {
    Group& group = all[(id + n) % kGroups];
    std::atomic_ref<uint64_t> word(group.id);
    uint64_t expected = 0;
    if (word.compare_exchange_strong(expected, id + 1) || expected == id + 1) return &group;
  }
  return nullptr;
}

}  // namespace

bool collective_arrive(Card& card, uint64_t id, uint32_t rank, uint64_t round) {
  Group* group = group_of(card, id);
  if (group == nullptr || rank >= kRanks) return false;
  std::atomic_ref<uint32_t>(group->round[rank]).store(static_cast<uint32_t>(round) + 1);
  return true;
}

bool collective_complete(Card& card, uint64_t id, uint32_t ranks, uint64_t round) {
  Group* group = group_of(card, id);
  if (group == nullptr || ranks > kRanks) return true;
  for (uint32_t r = 0; r < ranks; ++r) {
    if (std::atomic_ref<uint32_t>(group->round[r]).load() < round + 1) return false;
  }
  return true;
}

}  // namespace sluice::sim
