#include "node/offer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace sluice::node {

std::vector<bool> plan_health(const Supply& supply, size_t listed, const std::set<int64_t>& held) {
  const int64_t highest_held = held.empty() ? -1 : *held.rbegin();
  const int64_t count = std::min(
      kMaxIdsPerResource, std::max({static_cast<int64_t>(listed), supply.capacity, highest_held + 1, int64_t{0}}));
  std::vector<bool> healthy(static_cast<size_t>(count), false);
  for (int64_t id : held) {
    if (id >= 0 && id < count) healthy[static_cast<size_t>(id)] = true;
  }
  if (supply.closed) return healthy;
  int64_t free = supply.capacity - supply.blocked - static_cast<int64_t>(held.size());
  for (size_t id = 0; id < healthy.size() && free > 0; ++id) {
    if (healthy[id]) continue;
    healthy[id] = true;
    --free;
  }
  return healthy;
}

std::vector<OfferedDevice> to_devices(char letter, const std::vector<bool>& healthy) {
  std::vector<OfferedDevice> devices;
  devices.reserve(healthy.size());
  for (size_t id = 0; id < healthy.size(); ++id) devices.push_back({fmt::format("{}{}", letter, id), healthy[id]});
  return devices;
}

Result<int64_t> id_number(char letter, const std::string& id) {
  int64_t number = -1;
  const char* end = id.data() + id.size();
  if (id.size() >= 2 && id.size() <= 10 && id[0] == letter) {
    auto [rest, code] = std::from_chars(id.data() + 1, end, number);
    if (code == std::errc() && rest == end && number >= 0 && number < kMaxIdsPerResource) return number;
  }
  return invalid(
      fmt::format("device id '{}': expected {} and a number under {}", id.substr(0, 64), letter, kMaxIdsPerResource));
}

Result<void> check_unit_count(int64_t units_per_card, int64_t cards, int64_t unit_mib) {
  if (units_per_card <= kMaxUnitsPerCard && units_per_card * cards <= kMaxIdsPerResource) return {};
  return invalid(
      fmt::format("memory unit of {} MiB: makes {} units of a card and {} of this node, at most {} and {} are offered "
                  "(each unit a pod holds stands in its status); set a coarser unit with --memory-unit-mib",
                  unit_mib, units_per_card, units_per_card * cards, kMaxUnitsPerCard, kMaxIdsPerResource));
}

}  // namespace sluice::node
