// What happens around the agent and does not stop it, but whoever reads its log afterwards needs to know: the wall
// clock was set, a file system that it writes to is full. Each is said once when it begins (and a full file system once
// more when there is room again), not with every request that meets it. Pure: it is given readings and gives sentences;
// read_machine() does the looking.
//
// Nothing of the agent goes by the wall clock but the times in its log, in events and in `sluice ps` (AGE).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace sluice::agent {

// Room on the file system of a directory.
struct Room {
  std::string directory;
  uint64_t free_bytes = 0;
  bool names_left = true;  // false: no inode is free
};

struct MachineReading {
  // Wall clock and CLOCK_BOOTTIME (nobody sets it, and sleep counts) of the same moment; none when the two could not be
  // read close enough to each other.
  std::optional<int64_t> wall_ms, boot_ms;
  std::vector<Room> rooms;  // without those that cannot be asked or have no limit
};

struct MachineSentence {
  log::Level level = log::Level::kInfo;
  std::string event;  // "clock-set", "no-room", "room-again"
  std::string text;
};

class MachineWatch {
 public:
  static constexpr int64_t kLeastJumpMs = 1000;       // less is what clocks are slewed by, and a busy machine
  static constexpr uint64_t kFullBytes = 32 << 10;    // a grant's record and page do not fit any more
  static constexpr uint64_t kRoomyBytes = 128 << 10;  // and room again only well above that

  std::vector<MachineSentence> look(const MachineReading& reading);

 private:
  std::optional<int64_t> offset_ms_;  // of the wall clock from the other one
  std::map<std::string, bool> full_;
};

MachineReading read_machine(const std::vector<std::string>& directories);

}  // namespace sluice::agent
