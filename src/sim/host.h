// The seam between the simulated driver and the machine it runs on: time, waiting, the cost of calls, helper threads.
//
// In a real process calls cost what they cost and waits are waits. In tests and in the accuracy harness time is
// injected: a call is charged to the calling fibre, a wait hands the one real thread to another fibre. Nothing else in
// src/sim reads a clock, sleeps or starts a thread. No member is ever called with a card's lock held.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::sim {

// What a call does on the host, for host profiles. A harness maps each to nanoseconds.
enum class Charge : uint32_t {
  kTrivial,  // getters, context push and pop
  kLaunch,   // one kernel
  kGraphLaunch,
  kRecord,        // event record
  kWaitEvent,     // stream wait, value waits and writes
  kQuery,         // event, stream query
  kSync,          // entry of a synchronising call; the wait itself is a wait
  kCopy,          // entry of a copy or memset
  kHostFunction,  // enqueueing one
  kCreate,        // stream, event, graph objects
  kAllocate,      // knob alloc_ns
  kLoad,          // knob load_ns
  kContext,       // knob context_ns
  kNvml,          // knob nvml_call_ns
  kCount
};

// How a thread waits for the card, from the context's scheduling flags.
enum class WaitMode : uint32_t { kAuto, kSpin, kYield, kBlock };

// A lock inside one process, held across waits (a launch into a full queue keeps its context's lock).
struct HostLock {
  std::atomic<uint32_t> word{0};
};

class Host {
 public:
  virtual ~Host() = default;
  // Monotonic nanoseconds of the host.
  virtual uint64_t now_ns() = 0;
  // Returns at t_ns or earlier (never later than needed by more than a wake-up takes).
  virtual void wait_until(uint64_t t_ns, WaitMode mode) = 0;
  // The calling thread has done `what`; nominal_ns is a knob's figure for it, 0 when the host profile decides.
  virtual void charge(Charge what, uint64_t nominal_ns) = 0;
  // Runs fn(argument) on another thread (or fibre) of the current process; it ends by returning.
  virtual void spawn(void (*fn)(void*), void* argument) = 0;
  // Blocking in-process lock.
  virtual void lock(HostLock& lock);
  virtual void unlock(HostLock& lock);
};

// The process's own machine: CLOCK_MONOTONIC, sleeps and spins, threads. charge() does nothing.
Host& real_host();

}  // namespace sluice::sim
