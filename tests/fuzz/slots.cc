// A tenant's usage page as the agent judges it, beside what the kernel and the card say: sequences of looks and
// readings. Bytes of the input are taken as they come; none left = zeros.
#include <algorithm>
#include <cstring>
#include <memory>

#include "agent/slot_watch.h"
#include "check.h"

using namespace sluice;
using namespace sluice::agent;

namespace {

struct Input {
  const uint8_t* data;
  size_t left;
  template <typename T>
  T take() {
    T value = {};
    const size_t bytes = std::min(left, sizeof value);
    if (bytes != 0) std::memcpy(&value, data, bytes);
    data += bytes;
    left -= bytes;
    return value;
  }
};

bool owned(const std::vector<SlotOwner>& owners, uint32_t slot) {
  return std::any_of(owners.begin(), owners.end(), [&](const SlotOwner& owner) { return owner.slot == slot; });
}

void judge(const SlotWatch& watch, const SlotWatch::Found& found, const std::vector<SlotOwner>& owners) {
  for (const uint32_t slot : found.clear) {
    promise(slot < page::kMaxProcesses, "a slot to clear exists");
    promise(!owned(owners, slot), "a live process's slot is never cleared");
  }
  watch.charged_bytes();
  const std::optional<std::string> words = watch.difference(int64_t{1} << 30);
  promise(!words || !words->empty(), "a difference is explained");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input{data, size};
  auto watch = std::make_unique<SlotWatch>();
  auto images = std::make_unique<SlotImages>();
  uint64_t now_ns = 1'000'000'000;
  for (int round = 0; round < 64 && input.left != 0; ++round) {
    const uint8_t what = input.take<uint8_t>();
    const uint8_t count = input.take<uint8_t>() % 8;
    std::vector<SlotOwner> owners;
    CardReading reading;
    for (uint8_t i = 0; i < count; ++i) {
      const uint32_t slot = input.take<uint8_t>();
      const int64_t pid = input.take<uint8_t>();
      SlotImage& image = (*images)[slot];
      image.live = input.take<uint8_t>() % 2 != 0;
      image.reserved_bytes = input.take<uint64_t>();
      image.tally_bytes = input.take<uint64_t>();
      image.busy_ns = input.take<uint64_t>();
      if (what % 4 != 3 && !owned(owners, slot)) owners.push_back({slot, pid});
      reading.processes.push_back({});
      reading.processes.back().pid = pid;
      reading.processes.back().used_bytes = static_cast<int64_t>(input.take<uint64_t>() % (uint64_t{1} << 50));
    }
    now_ns += input.take<uint32_t>();
    judge(*watch, watch->look(now_ns, owners, *images), owners);
    if (what % 2 != 0) judge(*watch, watch->card_read(now_ns, now_ns - 1000, reading, *images), owners);
  }
  return 0;
}
