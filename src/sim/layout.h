// What lies in a card's file. One file is one card: every process that uses the card maps it, so it holds no pointer,
// only fixed-size tables whose records refer to each other by index. Index 0 is "none" everywhere, so that a table
// of zero bytes is an empty table and the file can stay sparse: untouched records cost nothing.
//
// Changes are made under the card's lock and journalled (card.h): each record starts with the number of the
// transaction that changed it last, so a record is copied into the journal once per transaction. A process that is
// killed at any instant leaves either the state before its transaction, restored from the journal, or the one after.
//
// Times are nanoseconds of the card's clock ("card time"): the host's monotonic clock, or the injected one, minus the
// epoch in the header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::sim {

using Index = uint32_t;
inline constexpr Index kNone = 0;
inline constexpr uint64_t kNever = UINT64_MAX;

inline constexpr uint32_t kMagic = 0x534c5543;
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr Index kMaxProcesses = 1024;
inline constexpr Index kMaxContexts = 4096;
inline constexpr Index kMaxStreams = 1u << 16;
inline constexpr Index kMaxEvents = 1u << 18;
inline constexpr Index kMaxCommands = 1u << 20;
inline constexpr Index kMaxBlocks = 1u << 20;    // physical allocations
inline constexpr Index kMaxCells = 1u << 12;     // values that wait-value commands look at
inline constexpr Index kMaxSubjects = 1u << 16;  // contexts that ever lived, for the log
inline constexpr Index kMaxBinChunks = 1u << 16;
inline constexpr Index kMaxMemoryPoints = 1u << 22;
inline constexpr Index kMaxSwitches = 1u << 22;
inline constexpr Index kMaxCommandPoints = 1u << 22;
inline constexpr uint32_t kHardwareQueues = 8;
inline constexpr uint32_t kBinsPerChunk = 1024;  // of 1 ms
inline constexpr uint32_t kMaxFaults = 64;
inline constexpr uint32_t kMaxCosts = 256;
inline constexpr uint32_t kMaxLockers = 4096;
inline constexpr uint32_t kSampleRing = 128;
inline constexpr size_t kJournalBytes = 4u << 20;

enum class Knob : uint32_t {
#define KNOB(name, value, unit, meaning) name,
#include "sim/knobs.def"
#undef KNOB
  kCount
};
inline constexpr size_t kKnobs = static_cast<size_t>(Knob::kCount);

// How long a kernel runs. The card draws once per launch.
enum class CostKind : uint32_t { kUnknown, kFixed, kUniform, kLognormal, kChoice };
struct Cost {
  CostKind kind = CostKind::kUnknown;
  uint32_t per_block = 0;      // 1: the cost of one block; the kernel takes it once per wave
  double a_ns = 0;             // fixed: cost; uniform: least; lognormal: median; choice: first
  double b_ns = 0;             // uniform: most; lognormal: largest (drawn values are clipped); choice: second
  double c = 0;                // lognormal: sigma; choice: probability of the second
  uint32_t blocks_per_sm = 0;  // 0: from threads, registers and shared memory
  uint32_t instructions = 0;   // for kUnknown: instructions of the kernel's body, 0 if unknown
};

// A line of the card's own cost table: overrides what the image says for kernels of this name ("*": every kernel).
struct CostEntry {
  char name[64];
  Cost cost;
};

enum class FaultKind : uint32_t { kOff, kMissingSymbol, kSlowCall, kErrorReturn };
struct Fault {
  FaultKind kind;
  int32_t result;     // error return: the CUresult or nvmlReturn_t
  uint64_t delay_ns;  // slow call
  int64_t remaining;  // calls that it still hits; -1: all
  int32_t pid;        // 0: every process
  uint32_t reserved;
  char symbol[88];  // exact name, or "*"
};

// What a card is; fixed when it is created, from a profile (profiles/*.json).
struct ProfileData {
  char name[64];              // "Tesla V100-SXM2-32GB": what NVML and CUDA call it
  char profile[32];           // "V100-SXM2-32GB": what `sluice-sim create --card` calls it
  uint64_t nvml_total_bytes;  // total of nvmlDeviceGetMemoryInfo
  uint64_t cuda_total_bytes;  // total of cuDeviceTotalMem, a little less
  uint64_t reserved_bytes;    // nvmlMemory_v2.reserved
  uint32_t sms;
  uint32_t compute_major, compute_minor;
  uint32_t threads_per_sm, blocks_per_sm, registers_per_sm;
  uint32_t shared_per_sm_bytes, shared_per_block_bytes, shared_optin_bytes;
  uint32_t clock_khz, memory_clock_khz, bus_width_bits, l2_bytes;
  uint32_t copy_engines;
  uint32_t pci_device_id, pci_subsystem_id;
  uint32_t power_limit_mw, temperature_idle_c;
  int64_t context_bytes;
  int64_t h2d_bytes_per_us, d2h_bytes_per_us, d2d_bytes_per_us;
  uint32_t has_fan, has_ecc, nvlinks, architecture;  // architecture: NVML's number
  char brand[32];
};

struct TableHead {
  Index high;       // records [1, high] were used at some time
  Index free_head;  // list of free ones, last freed first, so that handles are reused at once
  Index live;
  Index reserved;
};

enum class LiveState : uint32_t { kFree, kLive, kDying };

struct ProcessRecord {
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;         // grows with every process, never reused
  int32_t pid;             // in the process's own PID namespace
  uint64_t pid_namespace;  // inode of /proc/self/ns/pid, 0 for a simulated one
  int32_t host_pid;        // outermost known pid, 0 when unknown
  uint32_t simulated;      // 1: lives in a harness, no kernel lock tells of its death
  uint64_t born_ns, teardown_at_ns;
  Index first_context, first_block;
  uint32_t ordinal;  // n-th process of this card: seeds its draws
  uint32_t contexts_made;
  uint32_t effects_head, effects_tail;  // finished commands whose contents this process still has to apply
  uint64_t resident_bytes;
  uint32_t locker, locker_nonce;  // which kernel lock tells of its death
  uint32_t uid;
  uint32_t
      started_ticks;  // when it started, by the kernel: with the pid and its namespace, which are used again, unique
  uint64_t contents_bytes;  // kept contents of its memory
  char name[152];           // path of its program
  Index memory_subject;     // memory that belongs to no context (pools, handles, managed); kNone until there is some
  uint32_t reserved;
};

struct CommandQueue {
  Index head, tail;
};

struct ContextRecord {
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;
  Index process, next_in_process, subject;
  uint32_t flags, ordinal;  // n-th context of its process
  uint32_t streams_made;
  int32_t sticky_error;  // CUresult of a fault; every later call of the context returns it
  CommandQueue queue[kHardwareQueues];
  Index running;  // kernels, memsets and device copies under way (list by `next`)
  Index parked;   // commands that wait for a host function, a value or a copy engine
  uint32_t running_count;
  uint32_t sms_used;
  uint32_t paused;                 // 1: running commands are stopped, another context has the card
  uint32_t pending;                // commands not finished
  Index active_streams;            // list of streams with pending commands
  Index legacy_stream;             // kNone until it is used
  Index next_active, prev_active;  // list of contexts with pending commands
  uint32_t kernels_running;
  uint64_t sequence;          // of submissions
  uint64_t exec_since_ns;     // kNever: no kernel executing
  uint64_t exec_end_ns;       // when the last kernel stopped, for gaps
  uint64_t marker_in_gap_ns;  // marker time since then
  uint64_t held_since_ns;     // when it got the card
  uint64_t next_event_ns;     // cached: nothing of this context happens earlier
  uint32_t wants;             // has work that needs the card and could start or go on
  uint32_t holds;             // has work that keeps the card, pauses included
  uint32_t waits_outside;     // a head waits for another context or a copy engine
  uint32_t host_functions;    // parked ones that the process has not taken yet
  uint32_t exec_ppm;          // part of the span that counts as executing (gaps inside a graph)
  uint64_t completed;         // commands finished, ever
};

struct StreamRecord {
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;
  Index context;
  uint32_t queue;  // hardware queue
  int32_t priority;
  uint32_t nonblocking, legacy;
  uint32_t ordinal;  // n-th stream of its context
  uint32_t pending;  // units not finished, for queue_depth
  uint32_t pending_commands;
  Index next_active, prev_active;
  Index busy;  // command under way, kNone when idle
  uint32_t last_was_copy;
  uint64_t submitted;                        // commands ever: seeds their draws
  uint64_t finished;                         // commands done: seeds the gaps
  uint64_t last_end_ns;                      // end of the last command
  Index first_command;                       // oldest pending one
  uint64_t ready_ns;                         // the gap after the last command ends here
  uint64_t oldest_sequence;                  // of pending commands; kNever when none
  uint64_t visible_ns;                       // of the last submitted command
  uint64_t work_submitted_ns, work_done_ns;  // sums of durations, for bounds on completion
  Index last_command;
  uint32_t last_serial;
  uint32_t destroyed;  // freed once its last command is done
  uint32_t reserved;
};

struct EventRecord {
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;
  Index process;
  uint32_t flags;
  uint32_t recorded;  // 1: was recorded at least once
  Index command;      // record under way, valid while serials agree
  uint32_t command_serial;
  uint64_t stamp_ns;    // device clock, in steps of event_grain_ns; of the last finished record
  uint32_t references;  // process handle, IPC openers
  uint32_t reserved;
};

enum class CommandKind : uint32_t {
  kKernel,
  kGraph,
  kMemset,
  kCopyDevice,
  kCopyToDevice,
  kCopyToHost,
  kMarker,
  kWaitEvent,
  kHostFunction,
  kWaitValue,
  kWriteValue,
  kEffect,
  kSpin,
  kCollective
};

enum class CommandState : uint32_t { kFree, kQueued, kRunning, kParked, kDone };

struct CommandRecord {
  uint64_t txn;
  union {
    Index next_free;
    Index next;
  };  // free list, hardware queue, running list, effects list
  CommandState state;
  uint32_t serial;
  CommandKind kind;
  Index context, stream;
  uint32_t sms;           // multiprocessors that it needs
  uint32_t last_of_unit;  // a graph launch may be several commands: its last one ends the unit
  Index next_in_stream;   // submission order
  Index event;            // marker: event to stamp
  Index dependency;       // wait event, graph exec: command that must be done first
  uint32_t dependency_serial;
  uint64_t sequence;  // in its context
  uint64_t submitted_ns, visible_ns, started_ns;
  uint64_t duration_ns;     // of the whole command
  uint64_t executing_ns;    // of it with a kernel on the card (graphs have gaps)
  uint64_t remaining_ns;    // when paused or not started
  uint64_t end_ns;          // when running
  uint64_t work_before_ns;  // the stream's work_submitted_ns up to and including this
  uint64_t effect;          // process's token, 0: none
  Index cell;               // value looked at or written
  uint32_t flags;           // wait value: comparison
  uint64_t value;           // wait and write value; collective: id
  uint32_t ranks;           // collective
  uint32_t round;           // collective: n-th of its rank; host function: 1 once the process has it
};

struct BlockRecord {  // physical memory
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;
  Index process, context;  // who is charged; process kNone: its owner died, importers hold it
  Index subject;           // the same, for the log
  Index next_in_process, prev_in_process;
  uint32_t references;       // of its owner: handle, mappings
  uint32_t aliases;          // records of other processes that share it (IPC)
  Index target;              // such a record: what it shares
  uint32_t kind;             // BlockKind
  uint64_t bytes;            // multiple of block_bytes
  uint64_t contents_offset;  // in the owner's contents file
  uint32_t owner_serial;     // names that file
};

enum class BlockKind : uint32_t {
  kDevice,
  kContext,
  kCode,
  kLocalMemory,
  kHeap,
  kPool,
  kVmm,
  kArray,
  kGraph,
  kManaged
};

struct CellRecord {  // a word that wait-value commands look at
  uint64_t txn;
  Index next_free;
  LiveState state;
  uint32_t serial;
  Index process;
  uint64_t address;
  uint64_t value;
  uint32_t references;
  uint32_t reserved;
};

struct Bin {  // 1 ms of one subject
  uint32_t executing_ns, occupied_ns;
};

struct BinChunk {
  uint64_t txn;
  Index next_free;
  Index subject, previous;  // chain from newest to oldest
  uint32_t reserved;
  uint64_t first_ms;
  Bin bins[kBinsPerChunk];
};

struct SubjectRecord {  // log identity of a context; subject 1 is the card as a whole
  uint64_t txn;
  Index newest_chunk;
  int32_t pid, host_pid;
  uint32_t process_serial, context_serial, context_ordinal;
  uint64_t born_ns, died_ns;           // died 0: lives
  uint64_t executing_ns, occupied_ns;  // totals
  uint64_t resident_bytes;
  uint64_t switch_ns;  // spent on changing to it
  uint64_t pid_namespace;
  char name[64];
};

struct MemoryPoint {  // resident bytes of a subject from this time on
  uint64_t time_ns;
  uint64_t bytes;
  Index subject;
  uint32_t reserved;
};

struct SwitchPoint {
  uint64_t time_ns;
  uint32_t duration_ns;
  Index from, to;  // subjects
  uint32_t reserved;
};

struct CommandPoint {
  uint64_t submitted_ns, started_ns, ended_ns, duration_ns;
  Index subject;
  CommandKind kind;
  uint32_t stream_ordinal;
  uint32_t reserved;
};

struct UtilisationSample {  // what NVML's ring holds: one process named per 139 ms
  uint64_t time_ns;
  uint32_t busy_percent;  // of the 139 ms
  Index subject;          // running at the instant; kNone when idle
};

struct Tables {
  TableHead processes, contexts, streams, events, commands, blocks, cells, subjects, chunks;
};

struct CardHeader {
  uint64_t txn;
  uint64_t now_ns;    // everything up to here has happened
  uint64_t epoch_ns;  // host clock at card time 0
  Tables tables;
  uint32_t next_process_serial, next_serial;
  uint32_t process_ordinals;
  Index owner;       // context on the card, kNone before the first
  Index next_owner;  // while changing
  uint64_t slice_start_ns;
  uint64_t slice_end_ns;   // kNever: nobody else waits
  uint64_t switch_end_ns;  // kNever: not changing
  Index active_contexts;   // list of those with pending commands, oldest first
  Index active_tail;
  uint64_t copy_busy_until_ns[2];  // engines: to the device, to the host
  uint64_t used_bytes;             // physical, all processes
  uint64_t peak_bytes;
  uint64_t contents_bytes;                                // kept contents, all processes
  uint64_t memory_points, switch_points, command_points;  // written ever; rings
  uint64_t next_teardown_ns;
  uint64_t sample_at_ns;  // next NVML sample
  uint64_t sample_count;
  uint64_t card_exec_since_ns;   // any kernel of any context executing
  uint64_t card_executing_ns;    // total
  uint64_t sample_executing_ns;  // total at the last sample
  uint64_t commands_done;
  int64_t clock_offset_ns;
  uint32_t lost;  // 1: fallen off the bus
  uint32_t xid;   // last one reported, 0 none
  uint64_t xid_at_ns;
  uint32_t xid_count;
  uint32_t repairs;  // transactions of killed processes rolled back
};

// The fixed part at the start of the file, not journalled: identity, configuration, lock, journal head.
struct CardFile {
  uint32_t magic, version;
  uint64_t file_bytes;
  uint32_t card_index;  // in its folder
  uint32_t minor;       // NVML minor number
  char uuid[48];        // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  uint8_t uuid_bytes[16];
  char serial_number[32];
  uint32_t pci_bus, pci_domain, pci_slot;
  uint32_t generation;  // grows when the card comes back with a new UUID
  ProfileData profile;
  int64_t knobs[kKnobs];
  uint32_t cost_count;
  uint32_t fault_count;
  CostEntry costs[kMaxCosts];
  Fault faults[kMaxFaults];

  // Who may hold the lock: one kernel lock each, on byte kLockerByte + n; the nonce tells users of one number apart.
  uint32_t nonces;
  uint32_t locker_nonce[kMaxLockers];
  alignas(64) uint64_t lock;           // 0, or owner: nonce << 32 | number
  alignas(64) uint64_t journal_bytes;  // used; 0: no transaction is open
  uint64_t journal_txn;
  alignas(64) CardHeader header;
  UtilisationSample samples[kSampleRing];
};

// Offsets of everything in the file; a function of this version alone.
struct Layout {
  size_t journal, processes, contexts, streams, events, commands, blocks, cells, subjects, chunks, memory_points,
      switch_points, command_points, total;
};
Layout layout();

}  // namespace sluice::sim
