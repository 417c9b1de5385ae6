// The compute side of a guest: which work is in flight on which stream, what it cost, and the gate.
//
// Busy time is measured by markers (event records). A segment is the work between two markers of a stream. It opens
// with a marker of its own when the stream was idle or did something else, or else where the segment before it ended;
// it is closed after half a millisecond of estimated work (a whole one in turns), before anything that is not work of
// the card, and at the tail. On a stream that runs dry between launches every unit is a segment of its own, and
// segments double while the stream stays fed: so idle time never hides inside a segment, and a saturated stream pays
// one marker per half to whole millisecond.
//
//   launch -> compute.cc (segments) -> compute_gate.cc (ask the governor, wait)
//   settler thread and launchers -> compute_settle.cc (markers that were passed -> intervals -> account)
//   events, time bases -> compute_markers.cc        thread that settles, marks tails -> compute_settler.cc
//   time slices of others -> compute_presence.cc
//
// Locks: CardCompute::lock guards lists and is never held across a call of the driver. A stream's `owner` word is held
// across marker calls; whoever holds it may take the card's lock, never the other way round. `settling` lets one thread
// at a time settle a card, others go on without.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/cuda.h"
#include "governor/governor.h"
#include "guest/estimates.h"
#include "guest/map.h"
#include "guest/spin.h"
#include "page/usage.h"

namespace sluice::guest {

struct Guest;
struct ContextState;
struct StreamState;

inline constexpr uint32_t kIntervalsKept = 256;  // settled pieces of this process that wait for older ones

// Work between two markers of a stream.
struct Segment {
  Segment* next;
  StreamState* stream;
  CUevent start;         // nullptr: begins where the segment before it ended
  CUevent end;           // nullptr: still open
  uint64_t base;         // number of the context's time base at the end marker
  uint64_t launched_ns;  // host time before its first command
  uint64_t end_recorded_ns;
  uint64_t marked_ns;    // host time after the record of a start marker on an idle stream; 0: none, or it was at work
  uint64_t ahead_ns;     // estimated work that stood before it in the stream
  uint64_t arrival_ns;   // from there until the first launch had returned: the card waited for it, behind the marker
  uint64_t reserved_ns;  // counted in flight
  uint32_t reserved_units;
  uint32_t unknown;     // 1: a unit never measured before
  uint32_t after_free;  // 1: the stream may hold work from when nothing was measured, before the start marker
  Estimate* first;      // of its first unit
  uint64_t longest_ns;  // longest time measured for any of its functions
  // Filled by launches without a lock: lost counts in a race of two threads on one stream only blur an estimate.
  std::atomic<uint64_t> used_ns;
  std::atomic<uint32_t> units;
  std::atomic<uint32_t> mixed;    // units of several keys
  std::atomic<uint32_t> records;  // events of the program's own in between
};

struct StreamState {
  StreamState* next;  // all streams of the card
  CUstream handle;    // as the program names it; per-thread streams: CU_STREAM_PER_THREAD
  ContextState* context;
  uint64_t thread;  // of a per-thread stream, else 0
  uint32_t card;
  std::atomic<uint32_t> owner;      // held across marker calls
  std::atomic<uint32_t> dead;       // destroyed
  std::atomic<uint32_t> launching;  // launches that passed the gate and are inside the driver: the tail is not yet
  uint64_t segment_ns;              // and this much estimated work
  uint32_t depth;                   // segments take up to 2^depth units
  std::atomic<uint32_t> wary;       // for so many segments it is foreseen that launches cease without notice
  uint32_t free_seen;               // GrantCard::free_count when a segment was last opened
  uint32_t closed_units;            // of the last segment
  uint64_t opened_ns;               // when it was opened
  uint64_t interval_ns;             // between launches, of late
  std::atomic<bool> announced;      // the program has waited for it since its last work
  bool contiguous;                  // the last command was work: the next segment may begin at its end
  bool dirty;                       // counted in the slot's activity
  uint64_t last_end_ns;             // host time of the last settled end marker
  uint64_t head_since_ns;           // when the oldest pending segment got to the head
  std::atomic<uint32_t> opened;     // segments, ever
  uint32_t polled_opened;           // what the settler saw at its last look
  uint32_t polled_units;
  Segment* pending;  // closed or open, oldest first
  Segment* pending_tail;
  // What a launch looks at without a lock.
  std::atomic<Segment*> open;
  std::atomic<uint64_t> limit_ns;  // of open->used_ns
  std::atomic<uint32_t> limit_units;
  std::atomic<uint32_t> gate_seen;  // gate word under which the limit was given
};

// Time base: device stamps to host time. Two are kept, so that segments may straddle a renewal.
struct TimeBase {
  CUevent event;
  uint64_t host_ns;  // host time of its stamp
  uint64_t number;   // 0: none
};

// A stretch in which a context did not have the card.
struct Away {
  uint64_t since_ns;    // it had the card then
  uint64_t noticed_ns;  // and not any more then
  uint64_t until_ns;
};
inline constexpr uint32_t kAwaysKept = 32;

struct ContextState {
  ContextState* next;
  CUcontext context;
  uint32_t card;
  std::atomic<uint32_t> dead;
  CUstream own_stream;  // for bases
  TimeBase bases[2];    // [0] the newest
  CUevent next_event;   // base under way
  uint64_t next_before_ns;
  uint64_t base_due_ns;
  uint64_t base_wanted_ns;   // since when a renewal is tried
  uint64_t bracket_ns;       // the narrowest time between a base's record and the look that saw it passed; 0: none yet
  double rate;               // host ns per device ns
  uint64_t marker_cost_ns;   // of an empty pair
  CUevent tick;              // on own_stream, while work of others may run beside ours; nullptr: none under way
  uint64_t tick_ns;          // host time before its record
  bool tick_sure;            // the record took no longer than it should: the thread was not held up in it
  int64_t tick_late_ns;      // how late a tick's stamp is while the card serves the context
  uint64_t tick_base;        // number of the time base for which that holds
  uint64_t present_ns;       // the last time at which the context is known to have had the card
  uint64_t away_left_ns;     // time away that is still believed
  uint64_t away_granted_ns;  // up to when that was counted
  Away aways[kAwaysKept];    // a ring, the newest at away_count - 1
  uint64_t away_count;
  CUevent free_events[256];
  uint32_t free_count;
  std::atomic<uint32_t> ready;  // 0 new, 1 under way, 2 ready
};

struct BusyPiece {
  uint64_t start_ns;
  uint64_t end_ns;
};

struct CardCompute {
  SpinLock lock;
  std::atomic<uint32_t> settling;
  std::atomic<uint32_t> active;  // compute slot set up
  StreamState* streams;
  ContextState* contexts;
  uint64_t covered_ns;               // own union is published up to here
  BusyPiece pieces[kIntervalsKept];  // sorted by start
  uint32_t piece_count;
  uint64_t longest_ns[2];  // longest unit in this and the last two seconds
  uint64_t longest_epoch_ns;
  uint64_t lag_since_ns;  // another process holds up the account since
  uint64_t probe_at_ns;
  std::atomic<uint32_t> armed_spinners;
  std::atomic<uint32_t> settled;  // counts rounds that settled something
  uint32_t settled_seen;          // by the settler's last round
  uint32_t woken_again;           // count of `settled` after which waiters were woken a second time
  std::atomic<uint32_t> room_spinners;
  std::atomic<uint64_t> woken_ns;      // when the settler last woke the gate; 0 = seen
  std::atomic<uint64_t> wake_late_ns;  // from there to a waiter's return, the worst of late
  std::atomic<uint32_t> waiting;       // threads of this process at the gate
  std::atomic<uint32_t> limits_version;
};

inline constexpr uint32_t kStreamCache = 512;

struct Compute {
  CardCompute cards[page::kMaxCards];
  Estimates estimates;
  std::atomic<StreamState*> stream_cache[kStreamCache];  // by handle
  SpinLock lock;                                         // stream and context maps, pools
  HashMap<StreamState*> streams;                         // by handle, context and thread
  HashMap<ContextState*> contexts;                       // by handle
  Pool<StreamState> stream_pool;
  Pool<ContextState> context_pool;
  Pool<Segment> segment_pool;
  ContextState* only_context;  // the process has one context
  std::atomic<uint32_t> context_count;
  std::atomic<uint32_t> captures;        // captures under way in the process
  std::atomic<uint32_t> settler;         // 0 none, 1 starting, 2 running
  std::atomic<uint32_t> settler_word;    // futex: settler sleeps on it while nothing is under way
  std::atomic<uint64_t> settle_late_ns;  // by how much the settler's short sleeps end late, the worst of late
  std::atomic<uint32_t> settler_asleep;
  std::atomic<uint32_t> stop;  // harness: let the settler end
  // Tests put a wrong measure here to see the bars fail: parts per thousand of measured time, 0 = 1000.
  uint32_t measure_permille;
  uint32_t mutations;  // Mutation bits
};

// Rules that a mutation test takes out, to see that a bar notices. Always 0 in the shipped library.
enum Mutation : uint32_t {
  kMutateMarkerCost = 1u << 0,  // markers are not subtracted
  kMutateBound = 1u << 1,       // no bound on what is in flight
  kMutateDrain = 1u << 2,       // drained is reported at once
  kMutateSettler = 1u << 3,     // the settler looks every 100 us
  kMutateIntervals = 1u << 4,   // an interval goes on over the time in which a launcher waited
  kMutateHeldUp = 1u << 5,      // a stop before an end marker counts as work
  kMutateBases = 1u << 6,       // time bases are never renewed
  kMutateLimits = 1u << 7,      // changes of the share are not followed
  kMutateBoundary = 1u << 8,    // copies and waits of a stream count as work
  kMutateArming = 1u << 10,     // the next holder does not spin
  kMutateUnion = 1u << 9,       // processes are summed, not united
  kMutatePresence = 1u << 11,   // nobody looks for others' time slices
  kMutateWary = 1u << 12,       // nobody expects programs that pause without synchronising
};

// One launch, from the hook's point of view.
struct Launch {
  StreamState* stream = nullptr;  // nullptr: passes through (no card of ours, capturing)
  Segment* segment = nullptr;
  Estimate* estimate = nullptr;
  uint64_t cost_ns = 0;
  bool slow = false;  // counted in the stream's `launching`
};

// What a null handle or a special one means in the call being made.
enum StreamForm : uint32_t { kLegacyForm = 0, kPerThreadForm = 1 };

// True: this process may launch without any bookkeeping (no cap, nobody beside it). One load and a branch.
bool compute_free(const Guest* guest);

// Called around every unit of work. Before may wait at the gate. `key` from unit_key.
Launch compute_before(Guest* guest, CUstream stream, StreamForm form, uint64_t key);
void compute_after(Guest* guest, const Launch& launch, CUresult result);
// The stream is about to do something that is not work of the card.
void compute_boundary(Guest* guest, CUstream stream, StreamForm form);
// The program is about to wait: for a stream, or for everything of the current context.
void compute_sync_stream(Guest* guest, CUstream stream, StreamForm form);
void compute_sync_all(Guest* guest);
void compute_stream_destroyed(Guest* guest, CUstream stream);
// A capture has begun or ended.
void compute_capture(Guest* guest, bool begins);
// The program records an event of its own.
void compute_event_recorded(Guest* guest, CUstream stream, StreamForm form);
void compute_graph_destroyed(Guest* guest, uint64_t key);

// Lets the settler thread end (harness, tests); the shipped library's ends with the process.
void compute_stop(Guest* guest);

// Which thread calls: any value that no two live threads share. Defined by whoever links guest_core.
uint64_t current_thread_key();

}  // namespace sluice::guest
