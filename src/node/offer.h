// Which device ids the node offers, and in which health. Pure.
//
// Ids are numbers with a letter per resource (m17, c4), tied to no card: which card a container gets is the pod's
// allocation, not the kubelet's choice. An id that was ever listed is never withdrawn while the plugin is registered: a
// kubelet that allocates an id which has vanished meanwhile ends itself (devicemanager's
// allDevices[resource][id].Topology without a nil check, up to 1.37). What is not offered is Unhealthy instead. An id
// that a container holds stays Healthy whatever befalls its card: an unhealthy one makes the kubelet refuse the pod's
// next container start.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "node/plugin_server.h"

namespace sluice::node {

inline constexpr char kMemoryLetter = 'm';
inline constexpr char kCoreLetter = 'c';
inline constexpr int64_t kCorePerCard = 100;         // ids of one card's compute: one per percent
inline constexpr int64_t kMaxUnitsPerCard = 512;     // ids land in every pod's status from 1.36 on
inline constexpr int64_t kMaxIdsPerResource = 8192;  // a list message of a few hundred KiB

// What of one resource is on the node.
struct Supply {
  int64_t capacity = 0;  // over all cards that are there, healthy or not
  int64_t blocked = 0;   // of `capacity`: free on cards that cannot be given now
  bool closed = false;   // nothing new at all (a mode is being left, the node cannot enforce)
};

// Health by id number. `listed` is how many ids were listed before; the answer has at least as many and one for each
// held id. held: numbers that containers hold or are about to.
std::vector<bool> plan_health(const Supply& supply, size_t listed, const std::set<int64_t>& held);

std::vector<OfferedDevice> to_devices(char letter, const std::vector<bool>& healthy);

// The number of "m17" for its letter; an error names what was expected.
Result<int64_t> id_number(char letter, const std::string& id);

// Whether this many units per card can be offered; the error says why not and how to mend it.
Result<void> check_unit_count(int64_t units_per_card, int64_t cards, int64_t unit_mib);

}  // namespace sluice::node
