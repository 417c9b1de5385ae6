#include "accuracy/ideal.h"

#include <algorithm>
#include <limits>

namespace sluice::accuracy {

namespace {

// Host and card as the normal profile has them, in us.
constexpr double kLaunchUs = 3.0;
constexpr double kGraphLaunchUs = 5.0;
constexpr double kLatencyUs = 3.5;
constexpr double kGapUs = 1.5;
constexpr double kNodeGapUs = 0.7;
constexpr double kSyncUs = 1.5;
constexpr double kWakeUs = 13.0;
constexpr double kBurstUs = 30'000.0;

// Tokens in us of card time. What is earned while nothing is due is limited by the burst; what is earned while work
// waits for tokens is not, nor while the card works.
class Bucket {
 public:
  explicit Bucket(double rate) : rate_(rate), level_(kBurstUs) {}
  // Earliest time at or after `ready_us` at which there are tokens; the card has been idle since `idle_from_us`.
  double start(double ready_us, double idle_from_us) {
    if (rate_ >= 1) return ready_us;
    refill(std::max(idle_from_us, at_us_), false);
    refill(std::max(ready_us, at_us_), true);
    const double start_us = level_ > 0 ? at_us_ : at_us_ - level_ / rate_;
    return std::max(start_us, ready_us);
  }
  void take(double start_us, double busy_us) {
    refill(start_us, false);
    level_ -= busy_us;
  }

 private:
  void refill(double to_us, bool idle) {
    if (to_us <= at_us_) return;
    level_ += (to_us - at_us_) * rate_;
    if (idle) level_ = std::min(level_, kBurstUs);
    at_us_ = to_us;
  }
  double rate_;
  double level_;
  double at_us_ = 0;
};

struct Thread {
  const StreamSpec* spec;
  std::mt19937_64 random;
  double host_us = 0;
  double last_end_us = 0;
  uint64_t units = 0;
};

}  // namespace

double ideal_percent(const ContainerSpec& container, double percent, double seconds, uint64_t seed) {
  std::vector<Thread> threads;
  for (uint32_t p = 0; p < container.processes; ++p) {
    for (const StreamSpec& spec : container.streams) {
      threads.push_back({&spec, std::mt19937_64(seed * 31 + threads.size()), 0, 0, 0});
    }
  }
  Bucket bucket(percent > 0 ? percent / 100 : 1);
  const double limit_us = seconds * 1e6;
  const double from_us = 2e6;
  double card_free_us = 0;
  double busy_us = 0;
  for (;;) {
    Thread* next = nullptr;
    for (Thread& thread : threads) {
      if (next == nullptr || thread.host_us < next->host_us) next = &thread;
    }
    if (next->host_us >= limit_us || card_free_us >= limit_us) break;
    const StreamSpec& spec = *next->spec;
    next->host_us += spec.graph_nodes != 0 ? kGraphLaunchUs : kLaunchUs;
    double work_us = 0;
    for (uint32_t node = 0; node < std::max(1u, spec.graph_nodes); ++node) {
      work_us += spec.kernel_us.draw(next->random) + (node != 0 ? kNodeGapUs : 0);
    }
    const double ready_us = std::max(next->host_us + kLatencyUs, next->last_end_us + kGapUs);
    const double start_us = bucket.start(std::max(ready_us, card_free_us), card_free_us);
    // A pause of up to 5 us before a kernel counts as occupied.
    const double pause_us = start_us - card_free_us <= 5 ? start_us - card_free_us : 0;
    bucket.take(start_us, work_us + pause_us);
    card_free_us = start_us + work_us;
    next->last_end_us = card_free_us;
    if (start_us >= from_us && start_us < limit_us) busy_us += work_us + pause_us;
    ++next->units;
    // The driver's queue holds 1,024 commands; a program that never synchronises runs that far ahead and no further.
    if (next->host_us < start_us - 50'000) next->host_us = start_us - 50'000;
    bool pause = spec.sync_every == 0;
    if (spec.sync_every != 0 && next->units % spec.sync_every == 0) {
      next->host_us = std::max(next->host_us + kSyncUs, next->last_end_us + spec.copy_us + kWakeUs);
      pause = true;
    }
    if (pause) next->host_us += spec.gap_us.draw(next->random);
  }
  return busy_us / (limit_us - from_us) * 100;
}

}  // namespace sluice::accuracy
