// Contexts and streams coming and going.
#include <algorithm>

#include "sim/engine_internal.h"

namespace sluice::sim {

Index make_context(Card& card, Index process, uint32_t flags) {
  const Index index = card.new_context();
  if (index == kNone) return kNone;
  ContextRecord& c = card.context(index);
  ProcessRecord& p = card.edit(card.process(process));
  c.process = process;
  c.flags = flags;
  c.ordinal = ++p.contexts_made;
  c.next_in_process = p.first_context;
  p.first_context = index;
  c.exec_since_ns = c.next_event_ns = kNever;
  c.exec_ppm = 1000000;
  c.subject = card.new_subject(process, index);
  return index;
}

void drop_work(Card& card, Index index) {
  // One list after the other: queues, on the card, parked. Effects that wait for the process stay its own.
  for (uint32_t q = 0; q < kHardwareQueues + 2; ++q) {
    for (;;) {
      ContextRecord& c = card.edit(card.context(index));
      Index& list = q < kHardwareQueues ? c.queue[q].head : q == kHardwareQueues ? c.running : c.parked;
      const Index i = list;
      if (i == kNone) break;
      CommandRecord& command = card.edit(card.command(i));
      list = command.next;
      if (q < kHardwareQueues && list == kNone) c.queue[q].tail = kNone;
      if (q == kHardwareQueues) {
        --c.running_count;
        c.sms_used -= command.sms;
        if (occupies_card(command.kind) && c.kernels_running > 0) end_kernel(card, index, i, card.header().now_ns);
      }
      if (command.kind == CommandKind::kHostFunction && command.state == CommandState::kParked && command.round == 0) {
        --c.host_functions;
      }
      if (command.cell != kNone) {
        CellRecord& cell = card.edit(card.cell(command.cell));
        if (--cell.references == 0) card.free_cell(command.cell);
      }
      const Index stream = command.stream;
      StreamRecord& s = card.edit(card.stream(stream));
      s.busy = kNone;
      s.work_done_ns = s.work_submitted_ns;
      s.pending_commands = s.pending = 0;
      s.first_command = kNone;
      s.oldest_sequence = kNever;
      s.next_active = s.prev_active = kNone;
      card.free_command(i);
      --c.pending;
      card.commit();
    }
  }
  ContextRecord& c = card.edit(card.context(index));
  c.active_streams = kNone;
  c.paused = 0;
  c.wants = c.holds = c.waits_outside = 0;
  c.next_event_ns = card.header().now_ns;  // the next step takes it from the active list
}

void destroy_context(Card& card, Index index) {
  drop_work(card, index);
  leave_active_list(card, index);
  for (Index i = 1; i <= card.header().tables.streams.high; ++i) {
    if (card.stream(i).state == LiveState::kLive && card.stream(i).context == index) card.free_stream(i);
    if (i % 256 == 0) card.commit();
  }
  CardHeader& h = card.edit_header();
  if (h.owner == index) h.owner = kNone;
  if (h.next_owner == index) h.next_owner = kNone;
  ContextRecord& c = card.edit(card.context(index));
  ProcessRecord& p = card.edit(card.process(c.process));
  Index* link = &p.first_context;
  while (*link != index && *link != kNone) link = &card.edit(card.context(*link)).next_in_process;
  if (*link == index) *link = c.next_in_process;
  card.edit(card.subject(c.subject)).died_ns = std::max<uint64_t>(1, h.now_ns);
  card.free_context(index);
}

Index make_stream(Card& card, Index context, bool nonblocking, bool legacy, int32_t priority) {
  const Index index = card.new_stream();
  if (index == kNone) return kNone;
  ContextRecord& c = card.edit(card.context(context));
  StreamRecord& s = card.stream(index);
  s.context = context;
  s.nonblocking = nonblocking;
  s.legacy = legacy;
  s.priority = priority;
  s.ordinal = ++c.streams_made;
  const auto queues = std::clamp<int64_t>(card.knob(Knob::hardware_queues), 1, kHardwareQueues);
  s.queue = static_cast<uint32_t>((s.ordinal - 1) % static_cast<uint64_t>(queues));
  s.oldest_sequence = kNever;
  if (legacy) c.legacy_stream = index;
  return index;
}

void destroy_stream(Card& card, Index index) {
  StreamRecord& s = card.edit(card.stream(index));
  if (s.pending_commands == 0) {
    card.free_stream(index);
  } else {
    s.destroyed = 1;
  }
}

void fail_context(Card& card, Index context, int32_t result) {
  drop_work(card, context);
  card.edit(card.context(context)).sticky_error = result;
}

}  // namespace sluice::sim
