#include "sim/log_reader.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>

#include "sim/engine.h"

namespace sluice::sim {

namespace {

constexpr uint64_t kBinNs = 1000000;

bool contains(const std::vector<Index>& group, Index subject) {
  return std::find(group.begin(), group.end(), subject) != group.end();
}

}  // namespace

LogReader::LogReader(Card& card, uint64_t advance_to_ns) {
  Card::Guard guard(card);
  if (advance_to_ns > 0) advance(card, std::max(advance_to_ns, card.header().now_ns));
  const CardHeader& h = card.header();
  now_ns_ = h.now_ns;
  for (Index i = 1; i <= h.tables.subjects.high; ++i) {
    const SubjectRecord& s = card.subject(i);
    subjects_.push_back(
        {i, s.pid, s.host_pid, s.process_serial, s.context_ordinal, s.born_ns, s.died_ns, i == 1 ? "card" : s.name});
    series_.emplace_back();
    read_series(card, i);
  }
  add_running(card);
  const uint64_t memory_from = h.memory_points > kMaxMemoryPoints ? h.memory_points - kMaxMemoryPoints : 0;
  for (uint64_t n = memory_from; n < h.memory_points; ++n) memory_.push_back(card.memory_point(n));
  const uint64_t switches_from = h.switch_points > kMaxSwitches ? h.switch_points - kMaxSwitches : 0;
  for (uint64_t n = switches_from; n < h.switch_points; ++n) {
    const SwitchPoint& p = card.switch_point(n);
    switches_.push_back({p.time_ns, p.duration_ns, p.from, p.to});
  }
  const uint64_t commands_from = h.command_points > kMaxCommandPoints ? h.command_points - kMaxCommandPoints : 0;
  for (uint64_t n = commands_from; n < h.command_points; ++n) commands_.push_back(card.command_point(n));
}

void LogReader::read_series(Card& card, Index subject) {
  std::vector<Index> chain;
  for (Index c = card.subject(subject).newest_chunk; c != kNone; c = card.chunk(c).previous) chain.push_back(c);
  Series& s = series_[subject - 1];
  if (chain.empty()) return;
  s.first_ms = card.chunk(chain.back()).first_ms;
  s.bins.resize(card.chunk(chain.front()).first_ms + kBinsPerChunk - s.first_ms);
  for (const Index c : chain) {
    const BinChunk& chunk = card.chunk(c);
    std::copy(std::begin(chunk.bins), std::end(chunk.bins),
              s.bins.begin() + static_cast<std::ptrdiff_t>(chunk.first_ms - s.first_ms));
  }
}

// Spans that have begun and are logged when they end.
void LogReader::add_running(Card& card) {
  const CardHeader& h = card.header();
  if (h.owner == kNone || card.context(h.owner).state != LiveState::kLive) return;
  const ContextRecord& c = card.context(h.owner);
  if (c.exec_since_ns == kNever) return;
  for (const Index subject : {c.subject, Index{1}}) {
    Series& s = series_[subject - 1];
    if (s.bins.empty()) s.first_ms = c.exec_since_ns / kBinNs;
    for (uint64_t at = c.exec_since_ns; at < now_ns_;) {
      const uint64_t ms = at / kBinNs, end = std::min(now_ns_, (ms + 1) * kBinNs);
      if (ms - s.first_ms >= s.bins.size()) s.bins.resize(ms - s.first_ms + 1);
      Bin& bin = s.bins[ms - s.first_ms];
      bin.occupied_ns += static_cast<uint32_t>(end - at);
      bin.executing_ns += static_cast<uint32_t>((end - at) * c.exec_ppm / 1000000);
      at = end;
    }
  }
}

std::vector<Index> LogReader::of_pid(int32_t pid) const {
  std::vector<Index> found;
  for (const LogSubject& s : subjects_) {
    if (s.index != 1 && s.pid == pid) found.push_back(s.index);
  }
  return found;
}

uint64_t LogReader::sum(Index subject, uint64_t from, uint64_t to, bool executing) const {
  if (subject == kNone || subject > series_.size() || from >= to) return 0;
  const Series& s = series_[subject - 1];
  if (to >= now_ns_) to = (now_ns_ / kBinNs + 1) * kBinNs;  // nothing of the last bin lies behind the present
  uint64_t total = 0;
  for (uint64_t ms = std::max(from / kBinNs, s.first_ms); ms <= (to - 1) / kBinNs && ms - s.first_ms < s.bins.size();
       ++ms) {
    const Bin& bin = s.bins[ms - s.first_ms];
    const uint64_t value = executing ? bin.executing_ns : bin.occupied_ns;
    const uint64_t overlap = std::min(to, (ms + 1) * kBinNs) - std::max(from, ms * kBinNs);
    total += overlap == kBinNs ? value : value * overlap / kBinNs;
  }
  return total;
}

uint64_t LogReader::executing_ns(Index subject, uint64_t from, uint64_t to) const {
  return sum(subject, from, to, true);
}
uint64_t LogReader::occupied_ns(Index subject, uint64_t from, uint64_t to) const {
  return sum(subject, from, to, false);
}

uint64_t LogReader::executing_ns(const std::vector<Index>& group, uint64_t from, uint64_t to) const {
  uint64_t total = 0;
  for (const Index subject : group) total += sum(subject, from, to, true);
  return total;
}

uint64_t LogReader::occupied_ns(const std::vector<Index>& group, uint64_t from, uint64_t to) const {
  uint64_t total = 0;
  for (const Index subject : group) total += sum(subject, from, to, false);
  if (group.size() < 2) return total;
  auto at = std::lower_bound(switches_.begin(), switches_.end(), from > 1000000 ? from - 1000000 : 0,
                             [](const LogSwitch& s, uint64_t t) { return s.time_ns < t; });
  for (; at != switches_.end() && at->time_ns < to; ++at) {
    if (!contains(group, at->from) || !contains(group, at->to)) continue;
    const uint64_t start = std::max(at->time_ns, from), end = std::min(at->time_ns + at->duration_ns, to);
    if (start < end) total += end - start;
  }
  return total;
}

uint64_t LogReader::resident_bytes(Index subject, uint64_t at_ns) const {
  uint64_t bytes = 0;
  for (const MemoryPoint& p : memory_) {
    if (p.time_ns > at_ns) break;
    if (p.subject == subject) bytes = p.bytes;
  }
  return bytes;
}

uint64_t LogReader::most_resident_bytes(Index subject, uint64_t from, uint64_t to) const {
  return most_resident_bytes(std::vector<Index>{subject}, from, to);
}

uint64_t LogReader::most_resident_bytes(const std::vector<Index>& group, uint64_t from, uint64_t to) const {
  std::map<Index, uint64_t> now;
  uint64_t total = 0, most = 0;
  for (const MemoryPoint& p : memory_) {
    if (p.time_ns > to) break;
    if (!contains(group, p.subject)) continue;
    if (p.time_ns >= from) most = std::max(most, total);
    uint64_t& bytes = now[p.subject];
    total += p.bytes - bytes;
    bytes = p.bytes;
    if (p.time_ns >= from) most = std::max(most, total);
  }
  return std::max(most, total);
}

std::string LogReader::dump() const {
  std::string text;
  char line[256];
  const auto add = [&text, &line](int length) { text.append(line, static_cast<size_t>(length)); };
  for (const LogSubject& s : subjects_) {
    add(std::snprintf(line, sizeof line, "subject %u pid %d context %u born %" PRIu64 " died %" PRIu64 "\n", s.index,
                      s.pid, s.context_ordinal, s.born_ns, s.died_ns));
    const Series& series = series_[s.index - 1];
    for (size_t i = 0; i < series.bins.size(); ++i) {
      const Bin& b = series.bins[i];
      if (b.occupied_ns == 0 && b.executing_ns == 0) continue;
      add(std::snprintf(line, sizeof line, "  ms %" PRIu64 " executing %u occupied %u\n", series.first_ms + i,
                        b.executing_ns, b.occupied_ns));
    }
  }
  for (const MemoryPoint& p : memory_) {
    add(std::snprintf(line, sizeof line, "memory %" PRIu64 " subject %u bytes %" PRIu64 "\n", p.time_ns, p.subject,
                      p.bytes));
  }
  for (const LogSwitch& s : switches_) {
    add(std::snprintf(line, sizeof line, "switch %" PRIu64 " from %u to %u took %" PRIu64 "\n", s.time_ns, s.from, s.to,
                      s.duration_ns));
  }
  for (const CommandPoint& c : commands_) {
    add(std::snprintf(line, sizeof line, "command %" PRIu64 " %" PRIu64 " %" PRIu64 " subject %u stream %u kind %u\n",
                      c.submitted_ns, c.started_ns, c.ended_ns, c.subject, c.stream_ordinal,
                      static_cast<unsigned>(c.kind)));
  }
  return text;
}

}  // namespace sluice::sim
