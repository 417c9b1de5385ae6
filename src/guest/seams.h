// The four seams around the guest's objects: driver table, clock, wait/wake, process identity. The shipped library
// fills them with the real driver, CLOCK_MONOTONIC, futexes and record locks; the accuracy harness fills them with the
// simulated card's entry points, one injected clock, fibres and plain bookkeeping, many guests in one process.
//
// Freestanding: no libc, no C++ runtime. Interfaces have protected non-virtual destructors, so nothing needs delete.
#pragma once

#include <cstddef>
#include <cstdint>

#include "page/share.h"

namespace sluice::guest {

// Nanoseconds of CLOCK_MONOTONIC (shared by all processes of a node that are in no time namespace).
class Clock {
 public:
  virtual uint64_t now_ns() = 0;

 protected:
  ~Clock() = default;
};

// Sleeps of up to this long are spun: a real one would take at least 50 us longer than asked.
inline constexpr uint64_t kSpunSleepNs = 50'000;

class Waiter {
 public:
  // FUTEX_WAIT (non-private) while *word == expected, at most timeout_ns. True when woken or changed, false at the
  // timeout. May return early; callers re-check.
  virtual bool wait(const volatile uint32_t* word, uint32_t expected, uint64_t timeout_ns) = 0;
  virtual void wake(volatile uint32_t* word, uint32_t count) = 0;
  // One round of a spin loop. Costs time in the harness too: a spin that never calls this would hang virtual time.
  virtual void spin_pause() = 0;
  // True where a thread may keep a processor for a moment while it waits. On few processors it would keep it from the
  // very thread that it waits for.
  virtual bool may_spin() = 0;
  // Up to kSpunSleepNs exactly, by spinning, where may_spin(); else as any sleep.
  virtual void sleep_ns(uint64_t duration_ns) = 0;
  // Starts a thread that runs body(argument) and ends with it; false when none can be had.
  virtual bool start_thread(void (*body)(void*), void* argument) = 0;

 protected:
  ~Waiter() = default;
};

class Identity {
 public:
  // The same for every copy of the library in one exec, different across exec and fork (AT_RANDOM mixed with the pid).
  virtual uint64_t exec_token() = 0;
  // True in a process forked from the one that was set up: everything must be claimed anew.
  virtual bool forked() = 0;
  // Accepts the forked process as one of its own: forked() is false again, exec_token() is a new one, no lock is held.
  virtual void renew() = 0;
  // Record locks on the usage file's byte `offset`, owned by the process (not the thread). try_lock never blocks.
  virtual bool try_lock(uint64_t offset) = 0;
  virtual void unlock(uint64_t offset) = 0;
  // The process (as this one sees pids) that holds the byte, 0 when none does or only this one. -1: held by somebody
  // whose pid cannot be seen from here.
  virtual int owner_pid(uint64_t offset) = 0;
  // This process's own pid.
  virtual int own_pid() = 0;

  // What hold_slot() needs and takes long, done before the ledger's mutex is held.
  virtual void prepare() {}
  // The lock that makes a slot this process's, for the process's whole life. True also when another copy of the library
  // in this process has it.
  virtual bool hold_slot(uint32_t card, uint32_t slot) { return try_lock(page::slot_lock_byte(card, slot)); }
  virtual void leave_slot(uint32_t card, uint32_t slot) { unlock(page::slot_lock_byte(card, slot)); }
  // The tally (page/tally.h): what this copy of the library has charged on its slot, kept in private memory to the byte
  // and in locks in whole units. raise_tally: false when the locks cannot say it; the bytes are counted all the same.
  // A harness without hostile programs needs none.
  virtual bool raise_tally(uint32_t, uint32_t, uint64_t) { return true; }
  virtual void lower_tally(uint32_t, uint32_t, uint64_t) {}
  struct OwnTally {
    uint32_t slot = ~0u;  // none
    uint64_t bytes = 0;
  };
  virtual OwnTally own_tally(uint32_t) { return {}; }
  // Read locks (page/share.h) for as long as the process lives or until they are dropped. False: they cannot be had.
  virtual bool hold_shared(uint64_t /*start*/, uint64_t /*units*/) { return true; }
  virtual void leave_shared(uint64_t /*start*/, uint64_t /*units*/) {}
  // Some lock in [start, end) that is not the calling thread's own; false when there is none.
  virtual bool locked_range(uint64_t, uint64_t, page::LockedRange&) { return false; }

 protected:
  ~Identity() = default;
};

class Driver {
 public:
  // Address of the real driver's function of this exported name, nullptr when it has none. cu* names come from
  // libcuda, nvml* names from libnvidia-ml, each loaded at the first name asked of it.
  virtual void* symbol(const char* name) = 0;

 protected:
  ~Driver() = default;
};

struct Seams {
  Driver* driver;
  Clock* clock;
  Waiter* waiter;
  Identity* identity;
};

}  // namespace sluice::guest
