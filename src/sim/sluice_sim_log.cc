// `sluice-sim log`: percentages per process and window, and memory.
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/json.h"
#include "sim/log_reader.h"
#include "sim/sluice_sim.h"

namespace sluice::sim {

namespace {

struct Row {
  int32_t pid;
  std::string name;
  std::vector<Index> subjects;
};

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// One row per process, the card as a whole first.
std::vector<Row> rows_of(const LogReader& log, std::optional<int64_t> pid) {
  std::map<uint32_t, Row> by_process;
  for (const LogSubject& s : log.subjects()) {
    if (s.index == 1 || (pid && s.pid != *pid)) continue;
    Row& row = by_process[s.process_serial];
    row.pid = s.pid;
    row.name = s.name;
    row.subjects.push_back(s.index);
  }
  std::vector<Row> rows = {{0, "card", {1}}};
  for (auto& [serial, row] : by_process) rows.push_back(std::move(row));
  return rows;
}

}  // namespace

int print_log(const Arguments& a, Card& card) {
  const auto window_ms = parse_number(a.option("window", "1000"));
  const auto from_ms = parse_number(a.option("from", "0")), to_ms = parse_number(a.option("to", "-1"));
  const auto pid = parse_number(a.option("pid", ""));
  if (!window_ms || *window_ms <= 0 || !from_ms || *from_ms < 0 || !to_ms || (a.has("pid") && !pid)) {
    std::fprintf(stderr, "sluice-sim: --window, --from, --to are milliseconds of card time, --pid a process\n");
    return 2;
  }
  const uint64_t host_now_ns = monotonic_ns();
  const LogReader log(card, card.card_time(host_now_ns));
  const uint64_t window = static_cast<uint64_t>(*window_ms) * 1000000;
  const uint64_t to = *to_ms < 0 ? log.now_ns() : std::min(log.now_ns(), static_cast<uint64_t>(*to_ms) * 1000000);
  json::Array windows;
  const std::vector<Row> rows = rows_of(log, pid);
  if (!a.has("json"))
    std::printf("%12s %8s %-16s %10s %10s %12s\n", "FROM MS", "PID", "PROGRAM", "OCCUPIED%", "EXECUTING%",
                "MEMORY MIB");
  for (uint64_t start = static_cast<uint64_t>(*from_ms) * 1000000; start < to; start += window) {
    const uint64_t end = std::min(start + window, to);
    json::Array processes;
    for (const Row& row : rows) {
      const uint64_t occupied = log.occupied_ns(row.subjects, start, end),
                     executing = log.executing_ns(row.subjects, start, end);
      const uint64_t memory = log.most_resident_bytes(row.subjects, start, end);
      if (row.pid != 0 && occupied == 0 && memory == 0) continue;
      if (a.has("json")) {
        processes.push_back(json::Object{{"pid", row.pid},
                                         {"program", row.name},
                                         {"occupied_percent", percent(occupied, end - start)},
                                         {"executing_percent", percent(executing, end - start)},
                                         {"most_resident_bytes", memory}});
      } else {
        std::printf("%12llu %8d %-16.16s %10.2f %10.2f %12llu\n", static_cast<unsigned long long>(start / 1000000),
                    row.pid, row.name.c_str(), percent(occupied, end - start), percent(executing, end - start),
                    static_cast<unsigned long long>(memory >> 20));
      }
    }
    windows.push_back(json::Object{{"from_ns", start}, {"to_ns", end}, {"processes", processes}});
  }
  if (a.has("json")) {
    std::fputs(json::to_pretty_string(json::Object{{"now_ns", log.now_ns()},
                                                   {"epoch_ns", host_now_ns - card.card_time(host_now_ns)},
                                                   {"windows", windows}})
                   .c_str(),
               stdout);
  }
  return 0;
}

}  // namespace sluice::sim
