#include "sim/fibre_host.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice::sim {

namespace {
constexpr size_t kStackBytes = 256 << 10;

// Sanitizers have to be told that the stack changes under them.
struct SanitizerFibre {
  void* fake_stack = nullptr;
  void* tsan = nullptr;
};
}  // namespace

struct FibreHost::Fibre {
  ucontext_t context{};
  void* stack = nullptr;
  std::function<void()> program;
  Thread thread;
  uint64_t wake_ns = 0;
  uint64_t number = 0;
  bool started = false, ended = false, dropped = false;
  SanitizerFibre sanitizer;
};

namespace {

struct MainContext {
  ucontext_t context{};
  SanitizerFibre sanitizer;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
};

}  // namespace

HostCosts normal_costs() {
  HostCosts c{};
  const auto set = [&c](Charge what, uint64_t ns) { c.ns[static_cast<size_t>(what)] = ns; };
  set(Charge::kTrivial, 50);
  set(Charge::kLaunch, 3000);
  set(Charge::kGraphLaunch, 5000);
  set(Charge::kRecord, 1000);
  set(Charge::kWaitEvent, 800);
  set(Charge::kQuery, 1500);
  set(Charge::kSync, 1500);
  set(Charge::kCopy, 4000);
  set(Charge::kHostFunction, 2000);
  set(Charge::kCreate, 2000);
  return c;
}

HostCosts free_costs() {
  HostCosts c{};
  c.scale = 0;
  c.wake_ns = 0;
  return c;
}

FibreHost::FibreHost(HostCosts costs, uint64_t seed, uint64_t start_ns)
    : costs_(costs), random_(seed), now_ns_(start_ns), main_context_(new MainContext) {}

FibreHost::~FibreHost() {
  for (auto& fibre : fibres_) {
    if (fibre->stack != nullptr) munmap(fibre->stack, kStackBytes);
#if defined(__SANITIZE_THREAD__)
    if (fibre->sanitizer.tsan != nullptr) __tsan_destroy_fiber(fibre->sanitizer.tsan);
#endif
  }
  delete static_cast<MainContext*>(main_context_);
}

void FibreHost::start(Process& process, std::function<void()> program, uint64_t at_ns) {
  auto fibre = std::make_unique<Fibre>();
  fibre->program = std::move(program);
  fibre->thread.process = &process;
  fibre->wake_ns = std::max(at_ns, now_ns_);
  fibre->number = fibres_.size();
  fibre->thread.id = fibre->number + 1;
  fibres_.push_back(std::move(fibre));
}

void FibreHost::spawn(void (*fn)(void*), void* argument) {
  start(current_process(), [fn, argument] { fn(argument); }, now_ns_);
}

void FibreHost::drop_process(Process& process) {
  for (auto& fibre : fibres_) {
    if (fibre->thread.process == &process) fibre->dropped = true;
  }
}

bool FibreHost::all_ended() const {
  return std::all_of(fibres_.begin(), fibres_.end(), [](const auto& f) { return f->ended || f->dropped; });
}

void FibreHost::enter(unsigned high, unsigned low) {
  auto* host = reinterpret_cast<FibreHost*>((uint64_t{high} << 32) | low);
  auto* main = static_cast<MainContext*>(host->main_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &main->stack, &main->stack_bytes);
#endif
  Fibre* self = host->current_;
  self->program();
  self->ended = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, main->stack, main->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(main->sanitizer.tsan, 0);
#endif
  setcontext(&main->context);
  std::abort();
}

void FibreHost::run(uint64_t until_ns) {
  for (;;) {
    Fibre* next = nullptr;
    for (auto& fibre : fibres_) {
      if (fibre->ended || fibre->dropped) continue;
      if (next == nullptr || fibre->wake_ns < next->wake_ns) next = fibre.get();
    }
    if (next == nullptr || next->wake_ns > until_ns) {
      if (until_ns != UINT64_MAX) now_ns_ = std::max(now_ns_, until_ns);
      return;
    }
    if (on_advance && next->wake_ns > now_ns_) on_advance(now_ns_, next->wake_ns);
    now_ns_ = std::max(now_ns_, next->wake_ns);
    resume(*next);
  }
}

// Runs a fibre until it sleeps or ends.
void FibreHost::resume(Fibre& fibre) {
  auto* main = static_cast<MainContext*>(main_context_);
  current_ = &fibre;
  set_current_thread(&fibre.thread);
  if (!fibre.started) {
    fibre.started = true;
    fibre.stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fibre.stack == MAP_FAILED) std::abort();
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = nullptr;
    const auto self = reinterpret_cast<uint64_t>(this);
    makecontext(&fibre.context, reinterpret_cast<void (*)()>(&FibreHost::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
    fibre.sanitizer.tsan = __tsan_create_fiber(0);
#endif
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&main->sanitizer.fake_stack, fibre.stack, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  main->sanitizer.tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fibre.sanitizer.tsan, 0);
#endif
  swapcontext(&main->context, &fibre.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(main->sanitizer.fake_stack, nullptr, nullptr);
#endif
  current_ = nullptr;
  set_current_thread(nullptr);
}

void FibreHost::sleep_until(uint64_t t_ns) {
  Fibre* self = current_;
  if (self == nullptr) {  // not in a fibre (a test's main thread): the clock simply moves
    now_ns_ = std::max(now_ns_, t_ns);
    return;
  }
  self->wake_ns = std::max(t_ns, now_ns_);
  auto* main = static_cast<MainContext*>(main_context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&self->sanitizer.fake_stack, main->stack, main->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(main->sanitizer.tsan, 0);
#endif
  swapcontext(&self->context, &main->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->sanitizer.fake_stack, &main->stack, &main->stack_bytes);
#endif
}

void FibreHost::wait_until(uint64_t t_ns, WaitMode mode) {
  const bool blocks = mode == WaitMode::kBlock;  // by default the driver spins while there are cores enough
  uint64_t late = blocks ? costs_.wake_ns : 0;
  if (late > 0)
    late = static_cast<uint64_t>(static_cast<double>(late) * (0.5 + std::exponential_distribution<>(1.0)(random_) / 2));
  sleep_until(t_ns <= now_ns_ ? now_ns_ + 100 : t_ns + late);
}

void FibreHost::charge(Charge what, uint64_t nominal_ns) {
  const uint64_t base = nominal_ns != 0 ? nominal_ns : costs_.ns[static_cast<size_t>(what)];
  const double drawn = 1 + costs_.spread * std::uniform_real_distribution<>(-1, 1)(random_);
  const auto cost = static_cast<uint64_t>(static_cast<double>(base) * costs_.scale * drawn);
  if (cost > 0) sleep_until(now_ns_ + cost);
}

}  // namespace sluice::sim
