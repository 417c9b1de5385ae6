// Many simulated processes in one real one: programs run as fibres over one injected clock.
//
// Each fibre has its own idea of "now" only in that it sleeps until it is next: the clock jumps from one wake-up to the
// next, in order of time and then of fibre number, so a run is the same each time. Calls cost what the profile says,
// drawn +-20 % (fixed costs lock phases and invent errors).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "sim/host.h"
#include "sim/process.h"

namespace sluice::sim {

// Nanoseconds per Charge; scaled as a whole by `scale`.
struct HostCosts {
  uint64_t ns[static_cast<size_t>(Charge::kCount)];
  double scale = 1.0;
  double spread = 0.2;
  uint64_t wake_ns = 12000;  // from a due wake-up of a blocked thread to its running; spins and yields: none
};
// launch 3 us, record 1 us, query 1.5 us; wake-ups 12 us.
HostCosts normal_costs();
// All calls are free and wake-ups immediate.
HostCosts free_costs();

class FibreHost : public Host {
 public:
  explicit FibreHost(HostCosts costs = normal_costs(), uint64_t seed = 1, uint64_t start_ns = 1000000000);
  ~FibreHost() override;

  // Starts a program thread of `process`; it first runs inside run().
  void start(Process& process, std::function<void()> program, uint64_t at_ns = 0);
  // Runs fibres until none is left or the clock reaches until_ns (those that sleep longer stay asleep).
  void run(uint64_t until_ns = UINT64_MAX);
  // Fibres of a killed process never run again. Their stacks are kept until the host goes.
  void drop_process(Process& process);
  bool all_ended() const;

  uint64_t now_ns() override { return now_ns_; }
  void wait_until(uint64_t t_ns, WaitMode mode) override;
  void charge(Charge what, uint64_t nominal_ns) override;
  void spawn(void (*fn)(void*), void* argument) override;

  // Called whenever the clock is about to move from now to next: tests poll the card in between.
  std::function<void(uint64_t now_ns, uint64_t next_ns)> on_advance;

 private:
  struct Fibre;
  void sleep_until(uint64_t t_ns);
  void resume(Fibre& fibre);
  static void enter(unsigned high, unsigned low);

  HostCosts costs_;
  std::mt19937_64 random_;
  uint64_t now_ns_;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  Fibre* current_ = nullptr;
  void* main_context_ = nullptr;
};

}  // namespace sluice::sim
