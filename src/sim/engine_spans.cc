// What the log is told. A context executes while at least one of its kernels is on the card; it occupies the card
// also in pauses of up to occupied_gap_ns before a kernel, for then the card waits for it and for nobody else. Markers
// are not work: their time inside such a pause is left out.
#include <algorithm>

#include "sim/engine_internal.h"

namespace sluice::sim {

namespace {

// Which part of the span executes: all of it, unless the only thing running is a graph with gaps between its nodes.
uint32_t executing_ppm(Card& card, const ContextRecord& context) {
  if (context.kernels_running != 1) return 1000000;
  for (Index i = context.running; i != kNone; i = card.command(i).next) {
    const CommandRecord& c = card.command(i);
    if (c.kind != CommandKind::kGraph || c.duration_ns == 0) continue;
    return static_cast<uint32_t>(std::min<uint64_t>(1000000, c.executing_ns * 1000000 / c.duration_ns));
  }
  return 1000000;
}

}  // namespace

void flush_span(Card& card, Index index, uint64_t now) {
  ContextRecord& c = card.edit(card.context(index));
  if (c.exec_since_ns == kNever || c.exec_since_ns >= now) return;
  card.log_span(c.subject, c.exec_since_ns, now, c.exec_ppm, false);
  c.exec_since_ns = now;
}

void begin_kernel(Card& card, Index index, Index command, uint64_t now) {
  ContextRecord& c = card.edit(card.context(index));
  if (c.kernels_running == 0) {
    // The pause counts from the end of the last kernel, or else of the marker or copy directly before in this stream.
    const uint64_t longest = card.knob_ns(Knob::occupied_gap_ns);
    const uint64_t before = card.stream(card.command(command).stream).last_end_ns;
    uint64_t pause = 0;
    if (c.exec_end_ns != 0 && c.exec_end_ns >= c.held_since_ns && now - c.exec_end_ns <= longest + c.marker_in_gap_ns) {
      pause = now - c.exec_end_ns - std::min(now - c.exec_end_ns, c.marker_in_gap_ns);
    } else if (before != 0 && before >= c.held_since_ns && now - before <= longest) {
      pause = now - before;
    }
    card.log_span(c.subject, now - pause, now, 0, true);
  } else {
    flush_span(card, index, now);
  }
  ++c.kernels_running;
  c.exec_since_ns = now;
  c.exec_ppm = executing_ppm(card, c);
}

void end_kernel(Card& card, Index index, Index, uint64_t now) {
  ContextRecord& c = card.edit(card.context(index));
  flush_span(card, index, now);
  --c.kernels_running;
  if (c.kernels_running == 0) {
    c.exec_since_ns = kNever;
    c.exec_end_ns = now;
    c.marker_in_gap_ns = 0;
  }
  c.exec_ppm = executing_ppm(card, c);
}

void note_marker(Card& card, Index index, uint64_t started, uint64_t ended) {
  ContextRecord& c = card.edit(card.context(index));
  if (c.kernels_running != 0) return;
  const uint64_t from = std::max(started, c.exec_end_ns);
  if (from < ended) c.marker_in_gap_ns += ended - from;
}

void pause_context(Card& card, Index index, uint64_t now) {
  ContextRecord& c = card.edit(card.context(index));
  flush_span(card, index, now);
  c.exec_since_ns = kNever;
  c.paused = 1;
  for (Index i = c.running; i != kNone; i = card.command(i).next) {
    CommandRecord& command = card.edit(card.command(i));
    command.remaining_ns = command.end_ns == kNever ? kNever : command.end_ns - std::min(command.end_ns, now);
    command.end_ns = kNever;
  }
}

void resume_context(Card& card, Index index, uint64_t now) {
  ContextRecord& c = card.edit(card.context(index));
  c.paused = 0;
  c.held_since_ns = now;
  for (Index i = c.running; i != kNone; i = card.command(i).next) {
    CommandRecord& command = card.edit(card.command(i));
    command.end_ns = command.remaining_ns == kNever ? kNever : now + command.remaining_ns;
  }
  if (c.kernels_running > 0) c.exec_since_ns = now;
}

}  // namespace sluice::sim
