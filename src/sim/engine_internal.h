// Shared by the engine's three files: draws, the log of executing spans, dispatch, and who has the card.
#pragma once

#include "sim/engine.h"

namespace sluice::sim {

inline constexpr uint64_t kFlushNs = 1000000000;  // a span that lasts is logged every second
inline constexpr uint32_t kMaxResident = 128;     // kernels on the card at once

// A number from the seed and what is drawn for: the same whatever else goes on (splitmix64's mixing function).
uint64_t draw_bits(Card& card, uint64_t a, uint64_t b, uint64_t c);
double draw_unit(Card& card, uint64_t a, uint64_t b, uint64_t c);
uint64_t draw_between(Card& card, uint64_t low, uint64_t high, uint64_t a, uint64_t b, uint64_t c);
// Identifies a stream's draws: process, context and stream ordinals.
uint64_t stream_key(Card& card, Index stream);

// engine_spans.cc: kernels starting, stopping, being paused and resumed.
void begin_kernel(Card& card, Index context, Index command, uint64_t now_ns);
void end_kernel(Card& card, Index context, Index command, uint64_t now_ns);
void pause_context(Card& card, Index context, uint64_t now_ns);
void resume_context(Card& card, Index context, uint64_t now_ns);
void flush_span(Card& card, Index context, uint64_t now_ns);
void note_marker(Card& card, Index context, uint64_t started_ns, uint64_t ended_ns);

// engine_dispatch.cc
bool occupies_card(CommandKind kind);  // kernel, graph, memset, device copy, spin, collective
void finish_command(Card& card, Index command, uint64_t now_ns);
// Starts what can start; leaves the context's wants, holds, waits_outside and next_event_ns up to date.
void dispatch(Card& card, Index context, uint64_t now_ns);
// Ends what is due.
bool complete_due(Card& card, Index context, uint64_t now_ns);
void leave_active_list(Card& card, Index context);
void wake_parked(Card& card, Index cell, uint64_t now_ns);

// collective.cc: ranks on several cards, found through a file next to the cards.
bool collective_arrive(Card& card, uint64_t id, uint32_t rank, uint64_t round);
bool collective_complete(Card& card, uint64_t id, uint32_t ranks, uint64_t round);

}  // namespace sluice::sim
