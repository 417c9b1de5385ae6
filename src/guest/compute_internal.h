// What the compute part's files share with each other.
#pragma once

#include "guest/compute.h"
#include "guest/guest.h"

namespace sluice::guest {

// The worst lateness of late, forgotten with time: what is rare (a neighbour's whole time slice) costs most.
inline void note_late(std::atomic<uint64_t>& worst, uint64_t late_ns, uint32_t memory) {
  const uint64_t before = worst.load(std::memory_order_relaxed);
  const uint64_t faded = before - before / memory;
  worst.store(late_ns > faded ? late_ns : faded, std::memory_order_relaxed);
}

// A stream's owner word, held across marker calls.
class StreamOwner {
 public:
  StreamOwner(StreamState* stream, Waiter* waiter) : stream_(stream) {
    while (stream_->owner.exchange(1, std::memory_order_acquire) != 0) waiter->spin_pause();
  }
  ~StreamOwner() { stream_->owner.store(0, std::memory_order_release); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;

 private:
  StreamState* stream_;
};

inline CardCompute& card_compute(Guest* guest, uint32_t card) {
  return guest->compute.cards[card];
}
inline page::UsageCard& card_usage(Guest* guest, uint32_t card) {
  return *guest->cards[card].usage;
}
// The compute slot of this process; only after attach_compute().
inline page::ComputeSlot& own_slot(Guest* guest, uint32_t card) {
  return guest->cards[card].usage->compute[card_slot(guest, card)];
}
inline uint64_t now_of(Guest* guest) {
  return guest->seams.clock->now_ns();
}

// compute.cc: streams, contexts, slots
bool attach_compute(Guest* guest, uint32_t card);
ContextState* find_context(Guest* guest, CUcontext context);
StreamState* find_stream(Guest* guest, CUstream stream, StreamForm form);

// compute_segments.cc: all with the stream's owner held
bool open_segment(Guest* guest, StreamState* stream, Estimate* estimate, uint64_t cost_ns, uint64_t reserved_ns,
                  uint32_t reserved_units, bool waited);
void close_segment(Guest* guest, StreamState* stream);
// May the open segment take more work?
bool segment_has_room(const StreamState* stream, const Segment* segment, uint64_t cost_ns);
// Estimated work that the stream still has before it, up to some hundred us. With the card's lock held.
uint64_t left_in_stream(const StreamState* stream, uint64_t now_ns);
inline constexpr uint64_t kDeepNs = 300'000;
// The stream has gone silent with a segment open.
void be_wary(const Guest* guest, StreamState* stream);
// Counts work in flight / gives it back.
void add_in_flight(Guest* guest, uint32_t card, uint64_t ns, uint32_t units);
void drop_in_flight(Guest* guest, uint32_t card, uint64_t ns, uint32_t units);
void make_dirty(Guest* guest, StreamState* stream, uint64_t now_ns);

// compute_gate.cc
// Waits until the unit may go; false when the guest serves no gate on this card. Reserves and opens or extends a
// segment.
bool pass_gate(Guest* guest, StreamState* stream, Launch& launch);
void ring_doorbell(Guest* guest, uint32_t card);

// compute_markers.cc
CUevent take_event(Guest* guest, ContextState* context);
void give_event(ContextState* context, CUevent event);
bool record_marker(Guest* guest, CUevent event, const StreamState* stream);
void set_up_context(Guest* guest, ContextState* context);
void renew_base(Guest* guest, ContextState* context, uint64_t now_ns);
// Host time of a passed marker; false when the driver gives none.
bool marker_time(Guest* guest, ContextState* context, CUevent event, uint64_t* host_ns);
// Makes a context current for a few calls of ours.
class Pushed {
 public:
  Pushed(Guest* guest, CUcontext context);
  ~Pushed();
  Pushed(const Pushed&) = delete;
  Pushed& operator=(const Pushed&) = delete;

 private:
  Guest* guest_;
  bool pushed_ = false;
};
// Lets our own calls through while the program captures (a capture in global mode forbids them otherwise).
class QuietCapture {
 public:
  explicit QuietCapture(Guest* guest);
  ~QuietCapture();
  QuietCapture(const QuietCapture&) = delete;
  QuietCapture& operator=(const QuietCapture&) = delete;

 private:
  Guest* guest_;
  CUstreamCaptureMode before_;
  bool changed_;
};

// compute_settle.cc
// Settles what has passed; false when another thread is at it.
bool settle_card(Guest* guest, uint32_t card);
void wake_gate(Guest* guest, uint32_t card);
void wake_waiters(Guest* guest, uint32_t card);

// compute_presence.cc: all by whoever settles the card
// Looks whether the context has the card, while others may run beside it.
void look_for_card(Guest* guest, ContextState* context, uint64_t now_ns);
// The next part of a segment's time in which its context had the card, [*begin_ns, result), from `begin_ns` on; moves
// `begin_ns` to where the one after it begins. False at the end.
bool next_present(const ContextState* context, uint64_t* from_ns, uint64_t end_ns, BusyPiece* part);

// compute_settler.cc
void wake_settler(Guest* guest);

}  // namespace sluice::guest
