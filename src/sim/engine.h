// The card's scheduler: a discrete-event model that is advanced lazily to "now" by whoever calls. Every event's time
// follows from the card's state, never from when it was looked at, so the log does not depend on polling.
//
// How a kernel gets to run: a call makes the command visible to the card 2 to 5 us later, in the hardware queue that
// its stream shares with others. The head of a queue is dispatched when its stream's previous command is done and the
// gap after it over, when barriers of the legacy default stream allow, when its context has the card, and when enough
// multiprocessors are free. Contexts have the card in turn, one slice each while others wait. Copies to and from the
// host have engines of their own and do not need the card.
#pragma once

#include "sim/card.h"

namespace sluice::sim {

// A command by index and serial: records are reused, so a serial that does not match means "done long ago".
struct CommandRef {
  Index index = kNone;
  uint32_t serial = 0;
};

struct Submission {
  CommandKind kind = CommandKind::kKernel;
  uint64_t duration_ns = 0;
  uint64_t executing_ns = 0;  // kGraph: part of duration_ns with a kernel running; others: taken from duration_ns
  uint32_t sms = 0;
  bool last_of_unit = true;
  Index event = kNone;    // kMarker
  CommandRef dependency;  // kWaitEvent; also the previous launch of a graph exec
  uint64_t effect = 0;    // token of what the process does when the command is done; 0: nothing
  Index cell = kNone;     // kWaitValue, kWriteValue, kSpin
  uint32_t flags = 0;
  uint64_t value = 0;
  uint32_t ranks = 0;  // kCollective: value is its id, flags the rank, round the n-th of this rank
  uint32_t round = 0;
};

// All with the card's lock held.

// Lets everything happen up to card time `now_ns`; commits after each event.
void advance(Card& card, uint64_t now_ns);
// Appends to a stream; the card sees it after the visibility latency. Index kNone when a table is full.
CommandRef submit(Card& card, Index stream, const Submission& what);
bool is_done(Card& card, CommandRef command);
// All commands of the stream, or of the context, that were submitted so far are done.
bool is_idle_stream(Card& card, Index stream);
bool is_idle_context(Card& card, Index context);
CommandRef last_command(Card& card, Index stream);
// A lower bound of when it can be done (card time); kNever if it waits for something outside the card's own time, such
// as a host function: then look again after poll_ns.
uint64_t earliest_done(Card& card, CommandRef command);
// The next time at which anything changes by itself; kNever when nothing will.
uint64_t next_event(Card& card);

// Commands that are due on the process's own side: effects of finished commands, in order of completion, and host
// functions that wait to be run. Returns kNone when there is none.
struct Due {
  uint64_t effect = 0;
  CommandRef command;
  bool host_function = false;
};
bool next_due(Card& card, Index process, Due* due);
// The process ran the host function: the stream goes on.
void host_function_done(Card& card, CommandRef command);
// The word at an address of a process, for commands that look at it; made with its present value. kNone: table full.
Index cell_for(Card& card, Index process, uint64_t address, uint64_t present);
// When the next thing is due in this process (card time): host functions; kNever when nothing is under way.
uint64_t next_due_time(Card& card, Index process);
// A word that commands look at changed, or was read by the host to be `value`.
void cell_value(Card& card, Index cell, uint64_t value);

// Draws for a launch: duration of a kernel of `waves` waves with this cost (jitter included).
uint64_t draw_duration(Card& card, Index stream, const Cost& cost, uint64_t waves, uint64_t launch_ordinal);

// Makes and destroys what the tables hold.
Index make_context(Card& card, Index process, uint32_t flags);
void destroy_context(Card& card, Index context);
// Forgets all commands of a context, those on the card too (its process died, or it failed).
void drop_work(Card& card, Index context);
Index make_stream(Card& card, Index context, bool nonblocking, bool legacy, int32_t priority);
void destroy_stream(Card& card, Index stream);

// Device clock of a card time, in steps of event_grain_ns.
uint64_t device_clock(Card& card, uint64_t card_ns);

// A fault inside a context: its commands are dropped, every later call gets `result`.
void fail_context(Card& card, Index context, int32_t result);

}  // namespace sluice::sim
