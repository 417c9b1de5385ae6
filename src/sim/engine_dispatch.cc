// One context at one instant: which commands end, which start, and when to look again.
#include <algorithm>
#include <array>

#include "sim/engine_internal.h"

namespace sluice::sim {

namespace {

// Takes a command out of a list linked by `next`.
void unlink_command(Card& card, Index& head, Index command) {
  if (head == command) {
    head = card.command(command).next;
    return;
  }
  for (Index i = head; i != kNone; i = card.command(i).next) {
    if (card.command(i).next != command) continue;
    card.edit(card.command(i)).next = card.command(command).next;
    return;
  }
}

void unlink_active_stream(Card& card, ContextRecord& c, Index index) {
  StreamRecord& s = card.edit(card.stream(index));
  if (s.prev_active != kNone) {
    card.edit(card.stream(s.prev_active)).next_active = s.next_active;
  } else {
    c.active_streams = s.next_active;
  }
  if (s.next_active != kNone) card.edit(card.stream(s.next_active)).prev_active = s.prev_active;
  s.next_active = s.prev_active = kNone;
}

void log_command(Card& card, const CommandRecord& command, uint64_t now) {
  CardHeader& h = card.edit_header();
  CommandPoint& point = card.command_point(h.command_points);
  card.journal(&point, sizeof point);
  point = {command.submitted_ns,
           command.started_ns,
           now,
           command.duration_ns,
           card.context(command.context).subject,
           command.kind,
           card.stream(command.stream).ordinal,
           0};
  ++h.command_points;
}

void queue_effect(Card& card, Index index) {
  CommandRecord& command = card.edit(card.command(index));
  ProcessRecord& p = card.edit(card.process(card.context(command.context).process));
  command.next = kNone;
  if (p.effects_tail != kNone && p.effects_head != kNone) {
    card.edit(card.command(p.effects_tail)).next = index;
  } else {
    p.effects_head = index;
  }
  p.effects_tail = index;
}

// Work in other streams that the legacy default stream's barrier puts before this command.
bool barrier_holds(Card& card, const ContextRecord& c, const StreamRecord& s, const CommandRecord& head) {
  if (s.nonblocking != 0) return false;
  if (s.legacy == 0) return c.legacy_stream != kNone && card.stream(c.legacy_stream).oldest_sequence < head.sequence;
  for (Index i = c.active_streams; i != kNone; i = card.stream(i).next_active) {
    const StreamRecord& other = card.stream(i);
    if (&other != &s && other.nonblocking == 0 && other.oldest_sequence < head.sequence) return true;
  }
  return false;
}

bool cell_satisfied(Card& card, const CommandRecord& command) {
  const CellRecord& cell = card.cell(command.cell);
  const bool wide = (command.flags & 0x100) != 0;
  const uint64_t have = wide ? cell.value : cell.value & 0xffffffff;
  const uint64_t want = wide ? command.value : command.value & 0xffffffff;
  switch (command.flags & 3) {
    case 0:  // greater or equal, cyclically
      return wide ? static_cast<int64_t>(have - want) >= 0
                  : static_cast<int32_t>(static_cast<uint32_t>(have) - static_cast<uint32_t>(want)) >= 0;
    case 1:
      return have == want;
    case 2:
      return (have & want) != 0;
    default:
      return ~(have | want) != 0;
  }
}

struct Head {
  uint32_t queue;
  int32_t priority;
  uint64_t sequence;
};

bool before(const Head& a, const Head& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.sequence < b.sequence;
}

// One pass over the heads of the hardware queues, by priority and age.
struct Pass {
  Card& card;
  Index index;
  uint64_t now;
  bool has_card;
  uint64_t look_again = kNever;
  bool sms_blocked = false;
  bool wants = false, holds = false, outside = false;

  bool try_start(uint32_t queue);
  bool place_on_card(Index command, StreamRecord& s);
  void start(Index command, bool on_card, uint64_t end_ns);
  void pop(uint32_t queue);
};

void Pass::pop(uint32_t queue) {
  ContextRecord& c = card.edit(card.context(index));
  CommandQueue& q = c.queue[queue];
  q.head = card.command(q.head).next;
  if (q.head == kNone) q.tail = kNone;
}

void Pass::start(Index command, bool on_card, uint64_t end_ns) {
  ContextRecord& c = card.edit(card.context(index));
  CommandRecord& command_record = card.edit(card.command(command));
  StreamRecord& s = card.edit(card.stream(command_record.stream));
  command_record.state = on_card ? CommandState::kRunning : CommandState::kParked;
  command_record.started_ns = now;
  command_record.end_ns = end_ns;
  s.busy = command;
  Index& list = on_card ? c.running : c.parked;
  command_record.next = list;
  list = command;
  if (on_card) {
    ++c.running_count;
    c.sms_used += command_record.sms;
  }
}

// Kernels and their like, with all but the card's own condition fulfilled.
bool Pass::place_on_card(Index command, StreamRecord& s) {
  const CommandRecord& head = card.command(command);
  const ContextRecord& c = card.context(index);
  wants = true;
  if (!has_card) return false;
  const bool needs_sms = head.kind != CommandKind::kMarker;
  if (needs_sms && (sms_blocked || c.running_count >= kMaxResident || c.sms_used + head.sms > card.profile().sms)) {
    // The block scheduler gives what is free to the oldest; nothing younger gets past it.
    sms_blocked = true;
    return false;
  }
  pop(s.queue);
  uint64_t end = head.duration_ns == kNever ? kNever : now + head.duration_ns;
  if (head.kind == CommandKind::kSpin) end = cell_satisfied(card, head) ? now : kNever;
  if (head.kind == CommandKind::kCollective) {
    collective_arrive(card, head.value, head.flags, head.round);
    end = collective_complete(card, head.value, head.ranks, head.round) ? now + head.duration_ns : kNever;
  }
  start(command, true, end);
  if (occupies_card(head.kind)) begin_kernel(card, index, command, now);
  return true;
}

// True if the head was taken from its queue.
bool Pass::try_start(uint32_t queue) {
  const Index command = card.context(index).queue[queue].head;
  const CommandRecord& head = card.command(command);
  if (head.visible_ns > now) {
    look_again = std::min(look_again, head.visible_ns);
    return false;
  }
  StreamRecord& s = card.stream(head.stream);
  if (s.busy != kNone) return false;
  if (barrier_holds(card, card.context(index), s, head)) return false;
  if (head.dependency != kNone && !is_done(card, {head.dependency, head.dependency_serial})) {
    outside = true;
    return false;
  }
  const bool marker_on_card = head.kind == CommandKind::kMarker && s.last_was_copy == 0;
  if (occupies_card(head.kind) && s.ready_ns > now) {
    look_again = std::min(look_again, s.ready_ns);
    holds = true;
    return false;
  }
  if (occupies_card(head.kind) || marker_on_card) return place_on_card(command, s);
  pop(queue);
  switch (head.kind) {
    case CommandKind::kMarker:
      start(command, false, now + head.duration_ns);
      break;
    case CommandKind::kCopyToDevice:
    case CommandKind::kCopyToHost: {
      uint64_t& busy = card.edit_header().copy_busy_until_ns[head.kind == CommandKind::kCopyToHost];
      busy = std::max(busy, now) + head.duration_ns;
      start(command, false, busy);
      break;
    }
    case CommandKind::kHostFunction:
      // The process's own thread is told a little later; the stream goes on when it has run.
      start(command, false, kNever);
      ++card.edit(card.context(index)).host_functions;
      break;
    case CommandKind::kWaitValue:
      if (!cell_satisfied(card, head)) {
        start(command, false, kNever);
      } else {
        card.edit(card.command(command)).started_ns = now;
        finish_command(card, command, now);
      }
      break;
    case CommandKind::kWriteValue:
      card.edit(card.command(command)).started_ns = now;
      if (head.cell != kNone) {
        CellRecord& cell = card.edit(card.cell(head.cell));
        cell.value =
            (head.flags & 0x100) != 0 ? head.value : (cell.value & ~uint64_t{0xffffffff}) | (head.value & 0xffffffff);
        const Index which = head.cell;
        finish_command(card, command, now);
        wake_parked(card, which, now);
      } else {
        finish_command(card, command, now);
      }
      break;
    default:
      card.edit(card.command(command)).started_ns = now;
      finish_command(card, command, now);
  }
  return true;
}

uint64_t next_end(Card& card, const ContextRecord& c) {
  uint64_t next = kNever;
  for (Index i = c.running; i != kNone; i = card.command(i).next) next = std::min(next, card.command(i).end_ns);
  for (Index i = c.parked; i != kNone; i = card.command(i).next) next = std::min(next, card.command(i).end_ns);
  return next;
}

}  // namespace

bool occupies_card(CommandKind kind) {
  return kind == CommandKind::kKernel || kind == CommandKind::kGraph || kind == CommandKind::kMemset ||
         kind == CommandKind::kCopyDevice || kind == CommandKind::kSpin || kind == CommandKind::kCollective;
}

void finish_command(Card& card, Index index, uint64_t now) {
  CommandRecord& command = card.edit(card.command(index));
  StreamRecord& s = card.edit(card.stream(command.stream));
  ContextRecord& c = card.edit(card.context(command.context));
  if (card.knob(Knob::command_log) != 0) log_command(card, command, now);
  s.busy = kNone;
  ++s.finished;
  s.work_done_ns += command.duration_ns == kNever || command.kind == CommandKind::kSpin ? 0 : command.duration_ns;
  --s.pending_commands;
  if (command.last_of_unit != 0) --s.pending;
  s.first_command = command.next_in_stream;
  s.oldest_sequence = s.first_command != kNone ? card.command(s.first_command).sequence : kNever;
  if (command.kind != CommandKind::kWaitEvent) s.last_end_ns = now;
  const uint64_t key = stream_key(card, command.stream);
  if (occupies_card(command.kind) || command.kind == CommandKind::kMarker) {
    s.ready_ns =
        now + draw_between(card, card.knob_ns(Knob::gap_min_ns), card.knob_ns(Knob::gap_max_ns), key, s.finished, 2);
    if (command.kind != CommandKind::kMarker) s.last_was_copy = 0;
  } else if (command.kind == CommandKind::kCopyToDevice || command.kind == CommandKind::kCopyToHost) {
    s.last_was_copy = 1;
  }
  if (command.kind == CommandKind::kMarker && command.event != kNone) {
    EventRecord& event = card.edit(card.event(command.event));
    if (event.command == index && event.command_serial == command.serial) {
      event.stamp_ns = device_clock(card, now);
      event.command = kNone;
    }
  }
  if (command.cell != kNone) {
    CellRecord& cell = card.edit(card.cell(command.cell));
    if (--cell.references == 0) card.free_cell(command.cell);
  }
  --c.pending;
  ++c.completed;
  ++card.edit_header().commands_done;
  if (s.pending_commands == 0) {
    unlink_active_stream(card, c, command.stream);
    if (s.destroyed != 0) card.free_stream(command.stream);
  }
  command.state = CommandState::kDone;
  if (command.effect != 0 && command.kind != CommandKind::kHostFunction) {
    queue_effect(card, index);
  } else {
    card.free_command(index);
  }
}

bool complete_due(Card& card, Index index, uint64_t now) {
  bool any = false;
  for (;;) {
    // The earliest first, running ones before parked ones at the same instant.
    const ContextRecord& c = card.context(index);
    Index due = kNone;
    bool on_card = false;
    uint64_t earliest = now;
    for (int list = 0; list < 2; ++list) {
      for (Index i = list == 0 ? c.running : c.parked; i != kNone; i = card.command(i).next) {
        const uint64_t end = card.command(i).end_ns;
        if (end > now || (due != kNone && end >= earliest)) continue;
        due = i;
        earliest = end;
        on_card = list == 0;
      }
    }
    if (due == kNone) return any;
    any = true;
    ContextRecord& edited = card.edit(card.context(index));
    CommandRecord& command = card.edit(card.command(due));
    unlink_command(card, on_card ? edited.running : edited.parked, due);
    if (on_card) {
      --edited.running_count;
      edited.sms_used -= command.sms;
      if (occupies_card(command.kind)) {
        end_kernel(card, index, due, now);
      } else {
        note_marker(card, index, command.started_ns, now);
      }
    }
    finish_command(card, due, now);
  }
}

void wake_parked(Card& card, Index cell, uint64_t now) {
  const Index process = card.cell(cell).process;
  for (Index x = card.process(process).first_context; x != kNone; x = card.context(x).next_in_process) {
    for (Index i = card.context(x).parked; i != kNone; i = card.command(i).next) {
      if (card.command(i).cell != cell || card.command(i).kind != CommandKind::kWaitValue) continue;
      if (cell_satisfied(card, card.command(i))) card.edit(card.command(i)).end_ns = now;
    }
    for (Index i = card.context(x).running; i != kNone; i = card.command(i).next) {
      if (card.command(i).cell != cell || card.command(i).kind != CommandKind::kSpin) continue;
      if (!cell_satisfied(card, card.command(i))) continue;
      CommandRecord& spin = card.edit(card.command(i));
      (card.context(x).paused != 0 ? spin.remaining_ns : spin.end_ns) = card.context(x).paused != 0 ? 0 : now;
    }
    card.edit(card.context(x)).next_event_ns = now;
  }
}

void dispatch(Card& card, Index index, uint64_t now) {
  const CardHeader& h = card.header();
  Pass pass{.card = card, .index = index, .now = now, .has_card = h.owner == index && h.switch_end_ns == kNever};
  bool progress = true;
  while (progress) {
    progress = false;
    pass.look_again = kNever;
    pass.wants = pass.holds = pass.outside = pass.sms_blocked = false;
    std::array<Head, kHardwareQueues> heads;
    size_t count = 0;
    for (uint32_t q = 0; q < kHardwareQueues; ++q) {
      const Index i = card.context(index).queue[q].head;
      if (i == kNone) continue;
      const Head head = {q, card.stream(card.command(i).stream).priority, card.command(i).sequence};
      // Eight at most: put in its place by hand (std::sort's code for longer ranges trips gcc 12's bounds warning).
      size_t at = count++;
      for (; at > 0 && before(head, heads[at - 1]); --at) heads[at] = heads[at - 1];
      heads[at] = head;
    }
    for (size_t i = 0; i < count; ++i) progress = pass.try_start(heads[i].queue) || progress;
    if (complete_due(card, index, now)) progress = true;
  }
  ContextRecord& c = card.edit(card.context(index));
  const bool running = c.running_count > 0;
  c.wants = pass.wants || running;
  c.holds = pass.holds || pass.wants || running;
  c.waits_outside = pass.outside;
  c.next_event_ns = std::min(pass.look_again, next_end(card, c));
  if (c.exec_since_ns != kNever) c.next_event_ns = std::min(c.next_event_ns, c.exec_since_ns + kFlushNs);
}

}  // namespace sluice::sim
