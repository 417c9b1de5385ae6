// The turn keeper of one card: the shell around core/arbiter. It waits on the doorbells of the containers' usage pages,
// reads what their processes report, steps the arbiter and writes gate words, turn ends and the heartbeat into the
// grants.
//
// The pages are hostile: they are read with pread through UsageView, never through a mapping; a mapping only gives the
// addresses of futex words. Work that a dead process left behind in its slot is told from a living one's by the record
// lock on the slot's byte, looked at while such work holds up a turn.
//
// Threads: add, remove, set_* may be called from any thread; run() is the keeper's own thread and returns after stop().
// One mutex guards everything; it is never held while waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/arbiter.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::agent {

// The machine, as the keeper sees it: real in turn_keeper_linux.h, virtual time in the accuracy harness.
class TurnHost {
 public:
  struct Word {
    const volatile uint32_t* address;
    uint32_t expected;
  };
  virtual ~TurnHost() = default;
  virtual uint64_t now_ns() = 0;  // CLOCK_MONOTONIC
  // Returns when some word no longer holds what was expected, when it was woken, or at the deadline; may return early.
  // Words may lie in mappings that are gone.
  virtual void wait_any(std::span<const Word> words, uint64_t deadline_ns) = 0;
  virtual void wake(std::atomic<uint32_t>* word) = 0;  // everybody who waits on it, in any process
  virtual void spin_pause() = 0;
  // False where a spinning thread would keep others from the processor.
  virtual bool spins() const { return true; }
};

// One container's usage file.
class UsageView {
 public:
  virtual ~UsageView() = default;
  // pread; false when the file is shorter or gone.
  virtual bool read(uint64_t offset, void* into, size_t bytes) = 0;
  // Where the file's byte `offset` is mapped, for futex waits only; nullptr when it is not.
  virtual const volatile uint32_t* futex_word(uint64_t offset) = 0;
  // True while a process holds the record lock on the slot's byte.
  virtual bool slot_owned(uint32_t card, uint32_t slot) = 0;
};

struct TurnContainer {
  uint64_t id = 0;                   // the caller's
  page::GrantCard* grant = nullptr;  // this card in the container's grant page, the agent's own mapping
  std::shared_ptr<UsageView> usage;
  uint32_t usage_card = 0;  // index of the card in the container's pages
  core::ShareRequest share;
};

struct TurnReport {
  uint64_t id = 0;
  uint32_t permille = 0;  // ceiling that the policy made of the request, 0 = none
  bool holds_turn = false;
  bool active = false;  // used the card within 100 ms
  core::ArbiterCounters counters;
  bool gate_mended = false;  // somebody else had written to the gate word since the last report
};

class TurnKeeper {
 public:
  explicit TurnKeeper(TurnHost& host, const core::ArbiterSettings& settings = {});
  ~TurnKeeper();

  // The keeper writes gate, turn_end_ns, beside, core_permille, policy, weight, flags, limits_version,
  // containers_active and heartbeat_ns of the grant's card from now on; memory fields and the rest stay the caller's.
  void add(const TurnContainer& container);
  // When it returns, the keeper no longer touches the container's grant and usage view.
  void remove(uint64_t id);
  void set_share(uint64_t id, const core::ShareRequest& share);
  // max_containers: of the card, for `fair`.
  void set_policy(core::ComputePolicy policy, uint32_t max_containers);
  // A process of the container has ended: look at its slots now.
  void process_died(uint64_t id);

  void run();
  void stop();
  // One round without waiting, for tests and for shells of their own: reads, steps, writes. The time of the next round.
  uint64_t poll();

  bool turns_in_force();
  std::vector<TurnReport> report();

 private:
  struct Member;
  struct WaitPlan {
    std::vector<TurnHost::Word> words;
    uint64_t deadline_ns = 0;
    bool spin = false;
  };
  void apply_shares();
  static uint32_t slots_in_use(Member& member, uint32_t claimed, uint64_t now_ns);
  core::ContainerView look(Member& member, uint64_t now_ns);
  uint64_t poll_locked();
  void write_gates(const core::Arbiter::Outcome& outcome, uint64_t now_ns);
  void kick();
  void note_lateness(uint64_t deadline_ns);

  TurnHost& host_;
  std::mutex mutex_;
  core::Arbiter arbiter_;
  core::ComputePolicy policy_ = core::ComputePolicy::kFixed;
  uint32_t max_containers_ = 20;
  std::vector<std::unique_ptr<Member>> members_;  // the order of arbiter_.ids()
  std::vector<core::ContainerView> views_;
  WaitPlan plan_;
  std::atomic<uint32_t> kick_{0};
  std::atomic<bool> stop_{false};
  uint64_t heartbeat_at_ns_ = 0;
  double lateness_ns_ = 0;  // run() only
};

}  // namespace sluice::agent
