// A simulated card as one process sees it: its file mapped, its lock, its tables, its physical memory, its log.
//
// The lock is a word in the file that holds its owner; taking it costs one compare-and-swap, since every API call of
// every process passes here. A waiter that sees the same owner for long asks the kernel whether that process still
// lives: each process holds an open-file-description lock on its record's byte, which the kernel drops with the
// process, in whatever PID namespace it ran. A dead owner's lock is taken over and its open transaction rolled back
// from the journal. (File locks alone would cost two system calls per launch.)
//
// All changes go through edit(): it copies a record into the journal the first time a transaction touches it.
// Guard commits at its end; long work (advance) commits after every event, so a transaction stays small.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/layout.h"

namespace sluice::sim {

struct CardOptions {
  std::string profile = "V100-SXM2-32GB";
  uint32_t card_index = 0;
  uint64_t seed = 1;
  uint64_t epoch_ns = 0;  // host time that is card time 0; 0: now, by CLOCK_MONOTONIC
};

// Folder with card0, card1, ...: SLUICE_SIM_DIR, else the one that /etc/sluice-sim/dir names, else /var/lib/sluice-sim.
std::string card_folder();

// When a process ("self" or a pid) started, in clock ticks since boot, cut to 32 bits; 0 when it cannot be read.
uint32_t started_ticks(const char* pid);

class Card {
 public:
  // Makes the file of a card. Errors: unknown profile (names those there are), the file exists, no permission.
  static Result<void> create(const std::string& path, const CardOptions& options);
  // Maps it. Errors: missing, other layout version, no permission.
  static Result<std::unique_ptr<Card>> open(const std::string& path);
  // All cards of a folder in order of index; an empty list when there are none.
  static std::vector<std::string> list(const std::string& folder);
  ~Card();
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  const std::string& path() const { return path_; }
  CardFile& file() { return *file_; }
  const ProfileData& profile() const { return file_->profile; }
  CardHeader& header() { return file_->header; }
  int64_t knob(Knob k) const { return file_->knobs[static_cast<size_t>(k)]; }
  uint64_t knob_ns(Knob k) const { return static_cast<uint64_t>(file_->knobs[static_cast<size_t>(k)]); }
  void set_knob(Knob k, int64_t value) { file_->knobs[static_cast<size_t>(k)] = value; }

  // Records by index (1-based). Reading needs the lock, like all else, unless said otherwise.
  ProcessRecord& process(Index i) { return table<ProcessRecord>(layout_.processes)[i]; }
  ContextRecord& context(Index i) { return table<ContextRecord>(layout_.contexts)[i]; }
  StreamRecord& stream(Index i) { return table<StreamRecord>(layout_.streams)[i]; }
  EventRecord& event(Index i) { return table<EventRecord>(layout_.events)[i]; }
  CommandRecord& command(Index i) { return table<CommandRecord>(layout_.commands)[i]; }
  BlockRecord& block(Index i) { return table<BlockRecord>(layout_.blocks)[i]; }
  CellRecord& cell(Index i) { return table<CellRecord>(layout_.cells)[i]; }
  SubjectRecord& subject(Index i) { return table<SubjectRecord>(layout_.subjects)[i]; }
  BinChunk& chunk(Index i) { return table<BinChunk>(layout_.chunks)[i]; }
  MemoryPoint& memory_point(uint64_t n) { return table<MemoryPoint>(layout_.memory_points)[n % kMaxMemoryPoints]; }
  SwitchPoint& switch_point(uint64_t n) { return table<SwitchPoint>(layout_.switch_points)[n % kMaxSwitches]; }
  CommandPoint& command_point(uint64_t n) { return table<CommandPoint>(layout_.command_points)[n % kMaxCommandPoints]; }

  // The record, for writing. Journalled at the first touch of this transaction.
  template <typename T>
  T& edit(T& record) {
    if (record.txn != file_->journal_txn) [[unlikely]] {
      journal(&record, sizeof(T));
      record.txn = file_->journal_txn;
    }
    return record;
  }
  CardHeader& edit_header() { return edit(file_->header); }
  // Something without a transaction number.
  void journal(const void* where, size_t bytes);
  // Ends the transaction and begins the next one; the lock stays held.
  void commit();

  // Free records; kNone when the table is full. They come zeroed, live, with a new serial.
  Index new_process();
  Index new_context();
  Index new_stream();
  Index new_event();
  Index new_command();
  Index new_block();
  Index new_cell();
  void free_process(Index i);
  void free_context(Index i);
  void free_stream(Index i);
  void free_event(Index i);
  void free_command(Index i);
  void free_block(Index i);
  void free_cell(Index i);

  // Registers a process and takes its kernel lock (none for simulated ones). kNone when the card is full.
  // pid: as NVML shall report it; 0 takes getpid().
  Index attach_process(int32_t pid, bool simulated, std::string_view name);
  // An orderly exit or a simulated kill: what the process held goes after knob teardown_delay_ns.
  void detach_process(Index process, bool orderly);
  // Is the record's owner alive, by its kernel lock? Any thread, no card lock needed.
  bool process_alive(Index process);
  // Finds the dead among the live records and starts their teardown; called every few milliseconds of real time.
  void reap();
  // Ends what is left of a process whose teardown time has come (engine.cc).
  void finish_teardown(Index process);
  // Forgets the kernel lock in a forked child, so that the parent's death is seen.
  void after_fork_in_child();

  // Physical memory. Charged to the context (kNone: to the process alone). kNone when it does not fit.
  // bytes is rounded up to block_bytes. The log gets the new resident size.
  Index allocate_block(Index process, Index context, uint64_t bytes, BlockKind kind);
  // A share of another process's block (IPC, imported handles): costs nothing, keeps the memory when the owner ends.
  Index alias_block(Index process, Index block);
  // Drops a reference; the last one frees the memory.
  void release_block(Index block);
  uint64_t used_bytes() { return file_->header.used_bytes; }
  // What a program may still allocate: cuda_total minus what is in use.
  uint64_t free_bytes();
  uint64_t capacity_bytes() const { return file_->profile.cuda_total_bytes; }
  uint64_t process_bytes(Index process_index) { return process(process_index).resident_bytes; }
  // Where contents of a process's memory lie ("<card>.contents/<serial>"); made by its owner, opened by IPC importers.
  std::string contents_path(uint32_t process_serial) const;

  // The log (card_log.cc). A span of a subject goes into its 1 ms bins, and into those of the whole card.
  Index new_subject(Index process, Index context);
  void log_span(Index subject, uint64_t from_ns, uint64_t to_ns, uint64_t executing_ppm, bool occupied_only);
  void log_memory(Index subject);
  void log_switch(Index from, Index to, uint64_t time_ns, uint64_t duration_ns);

  // For NVML: percent of [now - window, now] in which any kernel (of any context, or of this subject) executed.
  // advance() first.
  uint32_t utilisation_percent(uint64_t now_ns, uint64_t window_ns, Index subject = 1);
  uint64_t executing_ns(Index subject_index, uint64_t from_ns, uint64_t to_ns);

  // Card time of a host time; never goes back behind header().now_ns.
  uint64_t card_time(uint64_t host_ns) const;

  // The first fault that hits a call of this name by this pid, counted down; nullptr when none.
  const Fault* fault(std::string_view symbol, int32_t pid, FaultKind kind);

  // Holds the lock, and rolls back what a killed owner left half done. Nothing that waits or charges may be called
  // meanwhile.
  class Guard {
   public:
    explicit Guard(Card& card) : card_(card) { card_.lock(); }
    ~Guard() { card_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Card& card_;
  };

  void lock();
  void unlock();
  // collective.cc's mapping, kept with the card.
  template <typename T>
  T*& collective_groups() {
    return reinterpret_cast<T*&>(collective_groups_);
  }

 private:
  Card() = default;
  template <typename T>
  T* table(size_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(file_) + offset);
  }
  template <typename T>
  Index allocate(size_t offset, TableHead Tables::* head, Index limit);
  template <typename T>
  void release(size_t offset, TableHead Tables::* head, Index index);
  Result<void> claim_locker();
  bool locker_alive(uint32_t number, uint32_t nonce);
  void roll_back();
  void wait_for_lock();
  Bin* bin_at(Index subject, uint64_t ms);
  void add_to_bins(Index subject, uint64_t from_ns, uint64_t to_ns, uint64_t executing_ppm, bool occupied_only);
  void link_block(Index process, Index block);
  void unlink_block(Index block);
  void charge_memory(Index process, Index subject, int64_t bytes);

  std::string path_;
  CardFile* file_ = nullptr;
  Layout layout_{};
  int fd_ = -1;       // mapping
  int lock_fd_ = -1;  // own open file description: the process's record lock
  uint64_t owner_word_ = 0;
  uint32_t locker_ = 0;
  void* collective_groups_ = nullptr;
};

}  // namespace sluice::sim
