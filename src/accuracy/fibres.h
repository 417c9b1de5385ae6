// One clock and many threads in one real thread: programs, settlers and the turn keeper run as fibres, and the clock
// jumps from one wake-up to the next. Runs are the same for the same seed.
//
// Everything that a thread does on the host costs time from a profile, drawn +- 20 %: costs that are always the same
// lock the phases of threads to each other and invent or hide errors. Wake-ups of blocked threads are log-normal with
// the median and the 99th percentile that were measured.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sim/host.h"
#include "sim/process.h"

namespace sluice::guest {
struct Guest;
}

namespace sluice::accuracy {

struct HostProfile {
  double scale = 1.0;  // of all costs below
  double wake_median_ns = 12'000;
  double wake_p99_ns = 60'000;
  double wake_worst_ns = 200'000;
  double spin_ns = 400;     // one round of a spin loop
  double syscall_ns = 500;  // futex wake, pread
};
// "normal", "busy", and "0x", "1x", "3x" (normal scaled).
Result<HostProfile> host_profile(std::string_view name);

// A simulated process: its driver state and, unless it runs without the library, its guest.
struct ProcessState;

class Fibres : public sim::Host {
 public:
  explicit Fibres(const HostProfile& profile, uint64_t seed);
  ~Fibres() override;

  // Starts a thread at `at_ns` of `process` (nullptr: none, as the turn keeper) with `guest` as its library's state.
  void start(sim::Process* process, guest::Guest* guest, std::function<void()> body, uint64_t at_ns);
  // Runs until the clock reaches `until_ns`, or until nothing is left to run.
  void run(uint64_t until_ns);
  // Its fibres never run again.
  void drop(const sim::Process* process);
  // Stops and continues all threads of a process, as SIGSTOP and SIGCONT do.
  void freeze(const sim::Process* process, bool frozen);

  uint64_t now_ns() override { return now_ns_; }
  void wait_until(uint64_t t_ns, sim::WaitMode mode) override;
  void charge(sim::Charge what, uint64_t nominal_ns) override;
  void spawn(void (*fn)(void*), void* argument) override;
  void lock(sim::HostLock& lock) override;

  // The calling fibre's clock moves by a cost drawn around `ns`, or to a time.
  void spend(double ns);
  void sleep_until(uint64_t t_ns);
  uint64_t draw_wake_ns();
  // Futexes: sleeps until woken or the deadline; both come late by a wake-up. False at the deadline.
  bool wait_word(const void* word, uint64_t deadline_ns);
  // Sleeps until any of the words is woken, or the deadline.
  void wait_words(const std::vector<const void*>& words, uint64_t deadline_ns);
  void wake_word(const void* word, uint32_t count);

  const HostProfile& profile() const { return profile_; }
  std::mt19937_64& random() { return random_; }
  guest::Guest* current_guest() const;
  uint64_t current_number() const;
  static Fibres* active();  // of the run under way

 private:
  struct Fibre;
  struct Wakeup {
    uint64_t at_ns;
    uint64_t sequence;
    Fibre* fibre;
    uint64_t generation;
    bool operator>(const Wakeup& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };
  void schedule(Fibre* fibre, uint64_t at_ns);
  void resume(Fibre* fibre);
  void yield();

  HostProfile profile_;
  std::mt19937_64 random_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t until_ns_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<>> queue_;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::unordered_map<const void*, std::vector<Fibre*>> waiters_;
  Fibre* current_ = nullptr;
  boost::context::fiber main_;
};

}  // namespace sluice::accuracy
