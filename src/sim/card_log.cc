// The ground truth: which context had the card when, and what it held. Bins of 1 ms lie in chunks, one chain per
// subject from newest to oldest; a span of at most a few bins is added where it belongs, also a little in the past.
#include <algorithm>
#include <cstring>

#include "sim/card.h"

namespace sluice::sim {

namespace {
constexpr uint64_t kBinNs = 1000000;
}

Index Card::new_subject(Index process_index, Index context_index) {
  TableHead& head = edit_header().tables.subjects;
  if (head.high >= kMaxSubjects) return kNone;
  const Index index = ++head.high;
  SubjectRecord& s = edit(subject(index));
  s.born_ns = file_->header.now_ns;
  if (process_index != kNone) {
    const ProcessRecord& p = process(process_index);
    s.pid = p.pid;
    s.host_pid = p.host_pid;
    s.process_serial = p.serial;
    s.pid_namespace = p.pid_namespace;
    const std::string_view path(p.name);
    const std::string_view base = path.substr(path.rfind('/') + 1);
    std::memcpy(s.name, base.data(), std::min(base.size(), sizeof s.name - 1));
  }
  if (context_index != kNone) {
    s.context_serial = context(context_index).serial;
    s.context_ordinal = context(context_index).ordinal;
  }
  return index;
}

// The bin of a millisecond, made if need be. Chains are short to walk: a span lies at the newest end.
Bin* Card::bin_at(Index subject_index, uint64_t ms) {
  const uint64_t first = ms / kBinsPerChunk * kBinsPerChunk;
  Index c = subject(subject_index).newest_chunk;
  while (c != kNone && chunk(c).first_ms > first) c = chunk(c).previous;
  if (c != kNone && chunk(c).first_ms == first) return &chunk(c).bins[ms - first];
  TableHead& head = edit_header().tables.chunks;
  if (head.high >= kMaxBinChunks) return nullptr;  // the log is full: 18 hours of one context; the card works on
  const Index made = ++head.high;
  // A new chunk lies in untouched zero bytes: no need to journal it, only what links it.
  chunk(made).first_ms = first;
  chunk(made).subject = subject_index;
  if (c == subject(subject_index).newest_chunk) {
    chunk(made).previous = c;
    edit(subject(subject_index)).newest_chunk = made;
  } else {
    Index newer = subject(subject_index).newest_chunk;
    while (chunk(newer).previous != c) newer = chunk(newer).previous;
    journal(&chunk(newer).previous, sizeof(Index));
    chunk(made).previous = c;
    chunk(newer).previous = made;
  }
  return &chunk(made).bins[ms - first];
}

void Card::add_to_bins(Index subject_index, uint64_t from_ns, uint64_t to_ns, uint64_t executing_ppm,
                       bool occupied_only) {
  uint64_t executing = 0;
  for (uint64_t at = from_ns; at < to_ns;) {
    const uint64_t ms = at / kBinNs;
    const uint64_t end = std::min(to_ns, (ms + 1) * kBinNs);
    if (Bin* bin = bin_at(subject_index, ms)) {
      journal(bin, sizeof *bin);
      const uint32_t part = static_cast<uint32_t>(occupied_only ? 0 : (end - at) * executing_ppm / 1000000);
      bin->occupied_ns += static_cast<uint32_t>(end - at);
      bin->executing_ns += part;
      executing += part;
    }
    at = end;
  }
  SubjectRecord& s = edit(subject(subject_index));
  s.occupied_ns += to_ns - from_ns;
  s.executing_ns += executing;
}

void Card::log_span(Index subject_index, uint64_t from_ns, uint64_t to_ns, uint64_t executing_ppm, bool occupied_only) {
  if (from_ns >= to_ns || subject_index == kNone) return;
  add_to_bins(subject_index, from_ns, to_ns, executing_ppm, occupied_only);
  add_to_bins(1, from_ns, to_ns, executing_ppm, occupied_only);
}

void Card::log_memory(Index subject_index) {
  CardHeader& h = edit_header();
  MemoryPoint& point = memory_point(h.memory_points);
  journal(&point, sizeof point);
  point = {h.now_ns, subject(subject_index).resident_bytes, subject_index, 0};
  ++h.memory_points;
}

void Card::log_switch(Index from, Index to, uint64_t time_ns, uint64_t duration_ns) {
  CardHeader& h = edit_header();
  SwitchPoint& point = switch_point(h.switch_points);
  journal(&point, sizeof point);
  point = {time_ns, static_cast<uint32_t>(duration_ns), from, to, 0};
  ++h.switch_points;
  if (to != kNone) edit(subject(to)).switch_ns += duration_ns;
}

uint64_t Card::executing_ns(Index subject_index, uint64_t from_ns, uint64_t to_ns) {
  uint64_t sum = 0;
  if (from_ns >= to_ns) return 0;
  for (Index c = subject(subject_index).newest_chunk; c != kNone; c = chunk(c).previous) {
    const BinChunk& k = chunk(c);
    const uint64_t start = k.first_ms * kBinNs;
    if (start >= to_ns) continue;
    if (start + kBinsPerChunk * kBinNs <= from_ns) break;
    const uint64_t first = from_ns > start ? (from_ns - start) / kBinNs : 0;
    const uint64_t last = std::min<uint64_t>((to_ns - 1 - start) / kBinNs, kBinsPerChunk - 1);
    for (uint64_t b = first; b <= last; ++b) {
      const uint64_t bin_start = start + b * kBinNs;
      const uint64_t overlap = std::min(to_ns, bin_start + kBinNs) - std::max(from_ns, bin_start);
      sum += k.bins[b].executing_ns * overlap / kBinNs;
    }
  }
  // What is under way is logged when it ends.
  const CardHeader& h = file_->header;
  if (h.owner != kNone && context(h.owner).state == LiveState::kLive) {
    const ContextRecord& c = context(h.owner);
    if (c.exec_since_ns != kNever && (subject_index == 1 || c.subject == subject_index)) {
      const uint64_t start = std::max(c.exec_since_ns, from_ns);
      const uint64_t end = std::min(to_ns, h.now_ns);
      if (start < end) sum += (end - start) * c.exec_ppm / 1000000;
    }
  }
  return sum;
}

uint32_t Card::utilisation_percent(uint64_t now, uint64_t window_ns, Index subject_index) {
  const uint64_t from = now > window_ns ? now - window_ns : 0;
  if (now <= from) return 0;
  const uint64_t busy = executing_ns(subject_index, from, now);
  return static_cast<uint32_t>(std::min<uint64_t>(100, (busy * 100 + (now - from) / 2) / (now - from)));
}

}  // namespace sluice::sim
