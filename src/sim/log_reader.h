// Reading a card's ground truth: for tests, the accuracy harness and `sluice-sim log`.
//
// A reader copies the log while it holds the card's lock for a moment; what is under way counts up to that moment.
// Times are card time in ns (bins of 1 ms; a window that cuts a bin takes its part of it).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/card.h"

namespace sluice::sim {

struct LogSubject {
  Index index = kNone;  // 1: the card as a whole
  int32_t pid = 0, host_pid = 0;
  uint32_t process_serial = 0, context_ordinal = 0;
  uint64_t born_ns = 0, died_ns = 0;  // died 0: lives
  std::string name;
};

struct LogSwitch {
  uint64_t time_ns = 0, duration_ns = 0;
  Index from = kNone, to = kNone;
};

class LogReader {
 public:
  // Borrows the card; `advance_to_ns` (card time) lets it come to the present first, 0 reads it as it is.
  explicit LogReader(Card& card, uint64_t advance_to_ns = 0);

  uint64_t now_ns() const { return now_ns_; }
  const std::vector<LogSubject>& subjects() const { return subjects_; }
  // Subjects of a process, by the pid it registered with.
  std::vector<Index> of_pid(int32_t pid) const;

  uint64_t executing_ns(Index subject, uint64_t from_ns, uint64_t to_ns) const;
  uint64_t occupied_ns(Index subject, uint64_t from_ns, uint64_t to_ns) const;
  // Occupied time of the contexts of one container, switches between them included.
  uint64_t occupied_ns(const std::vector<Index>& group, uint64_t from_ns, uint64_t to_ns) const;
  uint64_t executing_ns(const std::vector<Index>& group, uint64_t from_ns, uint64_t to_ns) const;

  // Memory: bytes at a time, and the most in [from, to].
  uint64_t resident_bytes(Index subject, uint64_t at_ns) const;
  uint64_t most_resident_bytes(Index subject, uint64_t from_ns, uint64_t to_ns) const;
  // The most that a group of contexts held together.
  uint64_t most_resident_bytes(const std::vector<Index>& group, uint64_t from_ns, uint64_t to_ns) const;

  const std::vector<LogSwitch>& switches() const { return switches_; }
  const std::vector<CommandPoint>& commands() const { return commands_; }  // with knob command_log

  // Everything as text; equal runs give equal texts. Times of birth and death, bins, memory, switches, commands.
  std::string dump() const;

 private:
  struct Series {
    uint64_t first_ms = 0;
    std::vector<Bin> bins;
  };
  void read_series(Card& card, Index subject);
  void add_running(Card& card);
  uint64_t sum(Index subject, uint64_t from_ns, uint64_t to_ns, bool executing) const;

  uint64_t now_ns_ = 0;
  std::vector<LogSubject> subjects_;  // subjects_[i].index == i + 1
  std::vector<Series> series_;
  std::vector<MemoryPoint> memory_;
  std::vector<LogSwitch> switches_;
  std::vector<CommandPoint> commands_;
};

}  // namespace sluice::sim
