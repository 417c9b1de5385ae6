// Time: what happens next, in which order, and which context has the card.
#include "sim/engine.h"

#include <algorithm>
#include <cmath>

#include "sim/engine_internal.h"

namespace sluice::sim {

void leave_active_list(Card& card, Index index) {
  CardHeader& h = card.edit_header();
  ContextRecord& c = card.edit(card.context(index));
  if (c.prev_active == kNone && h.active_contexts != index) return;
  if (c.prev_active != kNone) {
    card.edit(card.context(c.prev_active)).next_active = c.next_active;
  } else {
    h.active_contexts = c.next_active;
  }
  if (c.next_active != kNone) {
    card.edit(card.context(c.next_active)).prev_active = c.prev_active;
  } else {
    h.active_tail = c.prev_active;
  }
  c.next_active = c.prev_active = kNone;
  c.wants = c.holds = 0;
  c.next_event_ns = kNever;
}

namespace {

constexpr uint64_t kSampleNs = 139000000;  // NVML's ring: 72 samples in 10 s
constexpr uint64_t kMaxMissedSamples = 1000;

uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void take_sample(Card& card) {
  CardHeader& h = card.edit_header();
  const uint64_t executing =
      card.executing_ns(1, h.sample_at_ns > kSampleNs ? h.sample_at_ns - kSampleNs : 0, h.sample_at_ns);
  UtilisationSample& sample = card.file().samples[h.sample_count % kSampleRing];
  card.journal(&sample, sizeof sample);
  sample = {h.sample_at_ns, static_cast<uint32_t>(std::min<uint64_t>(100, executing * 100 / kSampleNs)), kNone};
  if (h.owner != kNone && card.context(h.owner).exec_since_ns != kNever) sample.subject = card.context(h.owner).subject;
  ++h.sample_count;
  h.sample_at_ns += kSampleNs;
}

// The next context in turn after the present one that has something to do; kNone when nobody else has.
Index next_in_turn(Card& card, Index owner) {
  Index after = kNone, first = kNone;
  for (Index i = card.header().active_contexts; i != kNone; i = card.context(i).next_active) {
    if (i == owner || card.context(i).wants == 0) continue;
    if (i > owner && (after == kNone || i < after)) after = i;
    if (first == kNone || i < first) first = i;
  }
  return after != kNone ? after : first;
}

void start_switch(Card& card, Index target, uint64_t now) {
  CardHeader& h = card.edit_header();
  const Index from = h.owner;
  bool costly = card.context(target).running_count > 0;
  if (from != kNone && card.context(from).state == LiveState::kLive) {
    costly = costly || card.context(from).running_count > 0;
    pause_context(card, from, now);
  }
  const uint64_t cost = from == kNone ? 0 : card.knob_ns(costly ? Knob::switch_ns : Knob::switch_idle_ns);
  card.log_switch(from != kNone ? card.context(from).subject : kNone, card.context(target).subject, now, cost);
  h.next_owner = target;
  h.switch_end_ns = now + cost;
  h.slice_end_ns = kNever;
}

void end_switch(Card& card, uint64_t now) {
  CardHeader& h = card.edit_header();
  h.owner = h.next_owner;
  h.next_owner = kNone;
  h.switch_end_ns = kNever;
  h.slice_start_ns = now;
  if (h.owner == kNone || card.context(h.owner).state != LiveState::kLive) {
    h.owner = kNone;
    return;
  }
  resume_context(card, h.owner, now);
  // What was stopped by a condition that came true meanwhile ends now.
  card.edit(card.context(h.owner)).next_event_ns = now;
}

// Who should have the card at this instant. True when a change began.
bool decide_owner(Card& card, uint64_t now) {
  CardHeader& h = card.edit_header();
  if (h.switch_end_ns != kNever) return false;
  const Index next = next_in_turn(card, h.owner);
  if (next == kNone) {
    h.slice_end_ns = kNever;
    return false;
  }
  const bool busy =
      h.owner != kNone && card.context(h.owner).state == LiveState::kLive && card.context(h.owner).holds != 0;
  if (busy) {
    const uint64_t slice = std::max<uint64_t>(1, card.knob_ns(Knob::slice_ns));
    if (h.slice_end_ns == kNever) {
      // Slices go on rolling while nobody waits: whoever comes waits for the end of the present one.
      const uint64_t used = (now - h.slice_start_ns + slice - 1) / slice;
      h.slice_end_ns = h.slice_start_ns + std::max<uint64_t>(1, used) * slice;
    }
    if (now < h.slice_end_ns) return false;
  }
  start_switch(card, next, now);
  return true;
}

uint64_t next_time(Card& card) {
  const CardHeader& h = card.header();
  uint64_t next = std::min({h.switch_end_ns, h.slice_end_ns, h.next_teardown_ns, h.sample_at_ns});
  for (Index i = h.active_contexts; i != kNone; i = card.context(i).next_active) {
    next = std::min(next, card.context(i).next_event_ns);
  }
  return next;
}

void tear_down_due(Card& card, uint64_t now) {
  uint64_t next = kNever;
  for (Index i = 1; i <= card.header().tables.processes.high; ++i) {
    if (card.process(i).state != LiveState::kDying) continue;
    if (card.process(i).teardown_at_ns <= now) {
      card.finish_teardown(i);
    } else {
      next = std::min(next, card.process(i).teardown_at_ns);
    }
  }
  card.edit_header().next_teardown_ns = next;
}

void join_active(Card& card, Index index) {
  CardHeader& h = card.edit_header();
  ContextRecord& c = card.edit(card.context(index));
  if (c.prev_active != kNone || h.active_contexts == index) return;
  c.prev_active = h.active_tail;
  c.next_active = kNone;
  if (h.active_tail != kNone) {
    card.edit(card.context(h.active_tail)).next_active = index;
  } else {
    h.active_contexts = index;
  }
  h.active_tail = index;
}

// Everything that happens at one instant.
void step(Card& card, uint64_t now) {
  card.edit_header().now_ns = now;
  if (card.header().sample_at_ns <= now) take_sample(card);
  if (card.header().next_teardown_ns <= now) tear_down_due(card, now);
  bool changed = true;
  for (int round = 0; changed && round < 64; ++round) {
    changed = false;
    if (card.header().switch_end_ns <= now) {
      end_switch(card, now);
      changed = true;
    }
    Index next = kNone;
    for (Index i = card.header().active_contexts; i != kNone; i = next) {
      next = card.context(i).next_active;
      const ContextRecord& c = card.context(i);
      const bool due = c.next_event_ns <= now;
      if (!due && round == 0 && c.waits_outside == 0) continue;
      if (!due && round > 0 && c.waits_outside == 0 && c.wants == 0) continue;
      const uint64_t done = c.completed;
      const uint32_t running = c.running_count;
      if (c.exec_since_ns != kNever && c.exec_since_ns + kFlushNs <= now) flush_span(card, i, now);
      complete_due(card, i, now);
      dispatch(card, i, now);
      changed = changed || done != c.completed || running != c.running_count;
      if (c.pending == 0) leave_active_list(card, i);
    }
    if (decide_owner(card, now)) changed = true;
  }
}

// Collectives look at other cards, so they end when somebody looks.
void look_at_collectives(Card& card, uint64_t now) {
  for (Index x = card.header().active_contexts; x != kNone; x = card.context(x).next_active) {
    for (Index i = card.context(x).running; i != kNone; i = card.command(i).next) {
      const CommandRecord& c = card.command(i);
      if (c.kind != CommandKind::kCollective || c.end_ns != kNever || card.context(x).paused != 0) continue;
      if (c.remaining_ns != kNever && c.remaining_ns != c.duration_ns) continue;
      if (!collective_complete(card, c.value, c.ranks, c.round)) continue;
      card.edit(card.command(i)).end_ns = now + c.duration_ns;
      card.edit(card.context(x)).next_event_ns = std::min(card.context(x).next_event_ns, now + c.duration_ns);
    }
  }
}

}  // namespace

uint64_t draw_bits(Card& card, uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t seed = static_cast<uint64_t>(card.knob(Knob::seed));
  return mix(mix(mix(mix(seed) ^ a) ^ b) ^ c);
}

double draw_unit(Card& card, uint64_t a, uint64_t b, uint64_t c) {
  return (static_cast<double>(draw_bits(card, a, b, c) >> 11) + 0.5) * 0x1p-53;
}

uint64_t draw_between(Card& card, uint64_t low, uint64_t high, uint64_t a, uint64_t b, uint64_t c) {
  return low >= high ? low : low + draw_bits(card, a, b, c) % (high - low + 1);
}

uint64_t stream_key(Card& card, Index stream) {
  const StreamRecord& s = card.stream(stream);
  const ContextRecord& c = card.context(s.context);
  return uint64_t{card.process(c.process).ordinal} << 40 | uint64_t{c.ordinal} << 24 | s.ordinal;
}

uint64_t device_clock(Card& card, uint64_t card_ns) {
  const auto drift = static_cast<double>(card.knob(Knob::clock_drift_ppb)) * 1e-9;
  const uint64_t grain = std::max<uint64_t>(1, card.knob_ns(Knob::event_grain_ns));
  const uint64_t raw = static_cast<uint64_t>(card.header().clock_offset_ns) + card_ns +
                       static_cast<uint64_t>(static_cast<double>(card_ns) * drift);
  return raw / grain * grain;
}

void advance(Card& card, uint64_t now) {
  CardHeader& h = card.header();
  if (h.sample_at_ns + kMaxMissedSamples * kSampleNs < now && h.active_contexts == kNone) {
    card.edit_header().sample_at_ns += (now - h.sample_at_ns) / kSampleNs * kSampleNs;
  }
  for (uint64_t next = next_time(card); next <= now; next = next_time(card)) {
    step(card, std::max(next, h.now_ns));
    card.commit();
  }
  if (h.now_ns < now) card.edit_header().now_ns = now;
  if (h.active_contexts != kNone) look_at_collectives(card, now);
}

uint64_t next_event(Card& card) {
  const CardHeader& h = card.header();
  uint64_t next = std::min(h.switch_end_ns, h.slice_end_ns);
  for (Index i = h.active_contexts; i != kNone; i = card.context(i).next_active) {
    next = std::min(next, card.context(i).next_event_ns);
  }
  return next;
}

CommandRef submit(Card& card, Index stream, const Submission& what) {
  const Index index = card.new_command();
  if (index == kNone) return {};
  const uint64_t now = card.header().now_ns;
  StreamRecord& s = card.edit(card.stream(stream));
  ContextRecord& c = card.edit(card.context(s.context));
  CommandRecord& command = card.command(index);
  command.kind = what.kind;
  command.context = s.context;
  command.stream = stream;
  command.sms = std::min(what.sms, card.profile().sms);
  command.last_of_unit = what.last_of_unit;
  command.event = what.event;
  command.dependency = what.dependency.index;
  command.dependency_serial = what.dependency.serial;
  command.effect = what.effect;
  command.cell = what.cell;
  if (what.cell != kNone) ++card.edit(card.cell(what.cell)).references;
  command.flags = what.flags;
  command.value = what.value;
  command.ranks = what.ranks;
  command.round = what.round;
  command.duration_ns = what.kind == CommandKind::kMarker ? card.knob_ns(Knob::marker_ns) : what.duration_ns;
  command.executing_ns = what.executing_ns != 0 ? what.executing_ns : what.duration_ns;
  command.remaining_ns = command.duration_ns;
  command.end_ns = kNever;
  command.sequence = ++c.sequence;
  command.submitted_ns = now;
  const uint64_t latency = draw_between(card, card.knob_ns(Knob::visible_min_ns), card.knob_ns(Knob::visible_max_ns),
                                        stream_key(card, stream), s.submitted, 1);
  // Never at once: what happened up to now has happened. A queue is read in order.
  const Index tail = c.queue[s.queue].tail;
  command.visible_ns = now + std::max<uint64_t>(1, latency);
  if (tail != kNone) command.visible_ns = std::max(command.visible_ns, card.command(tail).visible_ns);
  command.visible_ns = std::max(command.visible_ns, s.visible_ns);
  s.visible_ns = command.visible_ns;
  ++s.submitted;
  s.work_submitted_ns += command.duration_ns;
  command.work_before_ns = s.work_submitted_ns;
  if (s.pending_commands == 0) {
    s.first_command = index;
    s.oldest_sequence = command.sequence;
    s.prev_active = kNone;
    s.next_active = c.active_streams;
    if (c.active_streams != kNone) card.edit(card.stream(c.active_streams)).prev_active = stream;
    c.active_streams = stream;
  } else {
    card.edit(card.command(s.last_command)).next_in_stream = index;
  }
  ++s.pending_commands;
  if (what.last_of_unit) ++s.pending;
  s.last_command = index;
  s.last_serial = command.serial;
  CommandQueue& queue = c.queue[s.queue];
  if (queue.tail != kNone) card.edit(card.command(queue.tail)).next = index;
  if (queue.head == kNone) {
    queue.head = index;
    c.next_event_ns = std::min(c.next_event_ns, command.visible_ns);
  }
  queue.tail = index;
  ++c.pending;
  join_active(card, s.context);
  if (what.event != kNone) {
    EventRecord& event = card.edit(card.event(what.event));
    event.recorded = 1;
    event.command = index;
    event.command_serial = command.serial;
  }
  return {index, command.serial};
}

bool is_done(Card& card, CommandRef command) {
  if (command.index == kNone) return true;
  const CommandRecord& record = card.command(command.index);
  return record.serial != command.serial || record.state == CommandState::kDone || record.state == CommandState::kFree;
}

bool is_idle_stream(Card& card, Index stream) {
  return card.stream(stream).pending_commands == 0;
}
bool is_idle_context(Card& card, Index context) {
  return card.context(context).pending == 0;
}
CommandRef last_command(Card& card, Index stream) {
  if (card.stream(stream).pending_commands == 0) return {};
  return {card.stream(stream).last_command, card.stream(stream).last_serial};
}

namespace {

uint64_t lower_bound_of(Card& card, CommandRef ref, int depth) {
  if (is_done(card, ref)) return card.header().now_ns;
  const uint64_t now = card.header().now_ns;
  const CommandRecord& command = card.command(ref.index);
  const StreamRecord& s = card.stream(command.stream);
  uint64_t start = now;
  uint64_t work = command.work_before_ns - s.work_done_ns;
  if (s.busy != kNone) {
    const CommandRecord& busy = card.command(s.busy);
    const uint64_t left = busy.end_ns != kNever         ? busy.end_ns - std::min(busy.end_ns, now)
                          : busy.remaining_ns != kNever ? busy.remaining_ns
                                                        : 0;
    work -= std::min(work, busy.duration_ns - std::min(busy.duration_ns, left));
  } else if (s.first_command != kNone) {
    const CommandRecord& first = card.command(s.first_command);
    start = std::max(start, first.visible_ns);
    if (first.dependency != kNone && depth > 0) {
      start = std::max(start, lower_bound_of(card, {first.dependency, first.dependency_serial}, depth - 1));
    }
  }
  return std::max(start + work, now);
}

}  // namespace

uint64_t earliest_done(Card& card, CommandRef ref) {
  const uint64_t now = card.header().now_ns;
  if (is_done(card, ref)) return now;
  const uint64_t bound = lower_bound_of(card, ref, 4);
  if (bound > now) return bound;
  // The work itself bounds nothing: whatever the card does next may be it.
  return next_event(card);
}

bool next_due(Card& card, Index process, Due* due) {
  const ProcessRecord& p = card.process(process);
  const Index head = p.effects_head;
  if (head != kNone) {
    ProcessRecord& edited = card.edit(card.process(process));
    *due = {card.command(head).effect, {head, card.command(head).serial}, false};
    edited.effects_head = card.command(head).next;
    if (edited.effects_head == kNone) edited.effects_tail = kNone;
    card.free_command(head);
    return true;
  }
  const uint64_t now = card.header().now_ns;
  const uint64_t latency = card.knob_ns(Knob::host_fn_latency_ns);
  for (Index x = p.first_context; x != kNone; x = card.context(x).next_in_process) {
    if (card.context(x).host_functions == 0) continue;
    for (Index i = card.context(x).parked; i != kNone; i = card.command(i).next) {
      const CommandRecord& c = card.command(i);
      if (c.kind != CommandKind::kHostFunction || c.round != 0 || c.started_ns + latency > now) continue;
      card.edit(card.command(i)).round = 1;
      --card.edit(card.context(x)).host_functions;
      *due = {c.effect, {i, c.serial}, true};
      return true;
    }
  }
  return false;
}

uint64_t next_due_time(Card& card, Index process) {
  const ProcessRecord& p = card.process(process);
  if (p.effects_head != kNone) return card.header().now_ns;
  uint64_t next = kNever;
  const uint64_t latency = card.knob_ns(Knob::host_fn_latency_ns);
  for (Index x = p.first_context; x != kNone; x = card.context(x).next_in_process) {
    const ContextRecord& c = card.context(x);
    if (c.pending == 0) continue;
    next = std::min(next, next_event(card));
    for (Index i = c.parked; c.host_functions > 0 && i != kNone; i = card.command(i).next) {
      const CommandRecord& command = card.command(i);
      if (command.kind == CommandKind::kHostFunction && command.round == 0)
        next = std::min(next, command.started_ns + latency);
    }
  }
  return next;
}

void host_function_done(Card& card, CommandRef ref) {
  if (is_done(card, ref)) return;
  CommandRecord& command = card.edit(card.command(ref.index));
  const uint64_t now = card.header().now_ns;
  command.end_ns = now;
  ContextRecord& c = card.edit(card.context(command.context));
  c.next_event_ns = now;
  step(card, now);
}

Index cell_for(Card& card, Index process, uint64_t address, uint64_t present) {
  const Index high = card.header().tables.cells.high;
  for (Index i = 1; i <= high; ++i) {
    const CellRecord& c = card.cell(i);
    if (c.state == LiveState::kLive && c.process == process && c.address == address) return i;
  }
  const Index made = card.new_cell();
  if (made == kNone) return kNone;
  card.cell(made).process = process;
  card.cell(made).address = address;
  card.cell(made).value = present;
  return made;
}

void cell_value(Card& card, Index cell, uint64_t value) {
  if (card.cell(cell).value == value) return;
  card.edit(card.cell(cell)).value = value;
  wake_parked(card, cell, card.header().now_ns);
  step(card, card.header().now_ns);
}

uint64_t draw_duration(Card& card, Index stream, const Cost& cost, uint64_t waves, uint64_t launch) {
  const uint64_t key = stream_key(card, stream);
  double ns = 0;
  switch (cost.kind) {
    case CostKind::kFixed:
      ns = cost.a_ns;
      break;
    case CostKind::kUniform:
      ns = cost.a_ns + (cost.b_ns - cost.a_ns) * draw_unit(card, key, launch, 3);
      break;
    case CostKind::kChoice:
      ns = draw_unit(card, key, launch, 3) < cost.c ? cost.b_ns : cost.a_ns;
      break;
    case CostKind::kLognormal: {
      const double u = draw_unit(card, key, launch, 3), v = draw_unit(card, key, launch, 4);
      const double normal = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
      ns = cost.a_ns * std::exp(cost.c * normal);
      if (cost.b_ns > 0) ns = std::min(ns, cost.b_ns);
      break;
    }
    case CostKind::kUnknown:
      ns = cost.instructions != 0
               ? static_cast<double>(cost.instructions) * static_cast<double>(card.knob(Knob::instruction_ps)) / 1000
               : static_cast<double>(card.knob(Knob::default_kernel_ns));
      break;
  }
  if (cost.per_block != 0 || (cost.kind == CostKind::kUnknown && cost.instructions != 0))
    ns *= static_cast<double>(waves);
  const double jitter = static_cast<double>(card.knob(Knob::duration_jitter_ppm)) * 1e-6;
  ns *= 1 + jitter * (2 * draw_unit(card, key, launch, 5) - 1);
  return static_cast<uint64_t>(std::clamp(ns, 1.0, 1e15));
}

}  // namespace sluice::sim
