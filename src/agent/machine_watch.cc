#include "agent/machine_watch.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <ctime>

namespace sluice::agent {
namespace {

constexpr int64_t kLongestLookMs = 100;  // a thread that was away for longer has read two moments

int64_t clock_ms(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace

std::vector<MachineSentence> MachineWatch::look(const MachineReading& reading) {
  std::vector<MachineSentence> out;
  if (reading.wall_ms && reading.boot_ms) {
    const int64_t offset_ms = *reading.wall_ms - *reading.boot_ms;
    const int64_t jump_ms = offset_ms_ ? offset_ms - *offset_ms_ : 0;
    if (std::llabs(jump_ms) >= kLeastJumpMs) {
      out.push_back({log::Level::kWarning, "clock-set",
                     fmt::format("the machine's clock was set {} by {:.1f} s; limits and turns do not go by it, the "
                                 "times in this log and ages in `sluice ps` do",
                                 jump_ms > 0 ? "forward" : "back", static_cast<double>(std::llabs(jump_ms)) / 1000)});
    }
    offset_ms_ = offset_ms;
  }
  for (const Room& room : reading.rooms) {
    bool& full = full_[room.directory];
    if (!full && (room.free_bytes < kFullBytes || !room.names_left)) {
      full = true;
      out.push_back({log::Level::kWarning, "no-room",
                     fmt::format("the file system of {} is full ({}); what runs goes on within its limits, new grants "
                                 "and changes are refused until there is room again",
                                 room.directory,
                                 room.names_left ? fmt::format("{} KiB are left", room.free_bytes >> 10)
                                                 : std::string("no inode is free"))});
    } else if (full && room.free_bytes >= kRoomyBytes && room.names_left) {
      full = false;
      out.push_back({log::Level::kInfo, "room-again", fmt::format("there is room again in {}", room.directory)});
    }
  }
  return out;
}

MachineReading read_machine(const std::vector<std::string>& directories) {
  MachineReading reading;
  const int64_t before_ms = clock_ms(CLOCK_BOOTTIME);
  const int64_t wall_ms = clock_ms(CLOCK_REALTIME);
  if (clock_ms(CLOCK_BOOTTIME) - before_ms <= kLongestLookMs) {
    reading.wall_ms = wall_ms;
    reading.boot_ms = before_ms;
  }
  for (const std::string& directory : directories) {
    struct statvfs status{};
    if (::statvfs(directory.c_str(), &status) != 0 || status.f_blocks == 0) continue;
    // Space that is kept for root is the agent's where it is root; where it is not, f_bavail is smaller.
    reading.rooms.push_back({directory, static_cast<uint64_t>(status.f_bavail) * status.f_frsize,
                             status.f_files == 0 || status.f_ffree > 0});
  }
  return reading;
}

}  // namespace sluice::agent
