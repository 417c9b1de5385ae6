#include "sim/process.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "sim/memory.h"
#include "sim/per_thread.h"

namespace sluice::sim {

namespace {

constexpr uint64_t kReapNs = 5000000;         // how often one process looks for dead others
constexpr uint64_t kServiceIdleNs = 2000000;  // the service thread ends after this long without work

thread_local Thread* t_override = nullptr;

// The process that a real program is: made on first use, never destroyed (threads may call until the very end).
Process& real_process() {
  static Process* const process = [] {
    char path[160] = {};
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) path[0] = '\0';
    auto* made = new Process(real_host(), card_folder(), 0, false, path);
    pthread_atfork(nullptr, nullptr, [] { real_process().set_forked(); });
    return made;
  }();
  return *process;
}

// Destroyed through a key of pthreads: the C++ way needs the loader's record of this library, which a statically linked
// program that called dlopen does not have.
thread_local Thread* t_real = nullptr;

pthread_key_t thread_end() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    pthread_key_create(&made, [](void* thread) {
      t_real = nullptr;
      delete static_cast<Thread*>(thread);
    });
    return made;
  }();
  return key;
}

Thread& real_thread() {
  static std::atomic<uint64_t> numbers{0};
  if (t_real == nullptr) {
    t_real = new Thread;
    t_real->process = &real_process();
    t_real->id = ++numbers;
    pthread_setspecific(thread_end(), t_real);
  }
  return *t_real;
}

class HostLockGuard {
 public:
  HostLockGuard(Host& host, HostLock& lock) : host_(host), lock_(lock) { host_.lock(lock_); }
  ~HostLockGuard() { host_.unlock(lock_); }
  HostLockGuard(const HostLockGuard&) = delete;
  HostLockGuard& operator=(const HostLockGuard&) = delete;

 private:
  Host& host_;
  HostLock& lock_;
};

}  // namespace

Thread& current_thread() {
  return t_override != nullptr ? *t_override : real_thread();
}
void set_current_thread(Thread* thread) {
  t_override = thread;
}

PerThreadScope::PerThreadScope() : before_(current_thread().null_stream) {
  current_thread().null_stream = CU_STREAM_PER_THREAD;
}
PerThreadScope::~PerThreadScope() {
  current_thread().null_stream = static_cast<CUstream>(before_);
}

Process::Process(Host& host, std::string folder, int32_t pid, bool simulated, std::string name)
    : host_(host),
      folder_(std::move(folder)),
      name_(std::move(name)),
      pid_(pid != 0 ? pid : getpid()),
      simulated_(simulated) {
  owner_pid_ = getpid();
}

Process::~Process() {
  stopping_ = true;
  if (killed_ || forked_) return;
  for (Device& device : devices_) {
    if (device.record == kNone) continue;
    Card::Guard guard(*device.card);
    advance(*device.card, device.card->card_time(host_.now_ns()));
    device.card->detach_process(device.record, true);
    advance(*device.card, device.card->header().now_ns);
  }
}

void Process::set_forked() {
  if (getpid() == owner_pid_) return;
  forked_ = true;
  for (Device& device : devices_) device.card->after_fork_in_child();
}

CUresult Process::initialise() {
  HostLockGuard guard(host_, objects);
  if (forked_) return CUDA_ERROR_NOT_INITIALIZED;
  if (initialised_) return CUDA_SUCCESS;
  std::vector<Device> found;
  for (const std::string& path : Card::list(folder_)) {
    auto card = Card::open(path);
    if (!card) continue;
    if ((*card)->header().lost != 0) continue;
    Device device;
    device.card = std::move(*card);
    found.push_back(std::move(device));
  }
  if (found.empty()) return CUDA_ERROR_NO_DEVICE;
  devices_ = std::move(found);
  last_reap_ns_.assign(devices_.size(), 0);
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i].memory = std::make_unique<Memory>(*this, static_cast<int>(i));
  }
  initialised_ = true;
  return CUDA_SUCCESS;
}

Device* Process::device(int ordinal) {
  return ordinal >= 0 && ordinal < device_count() ? &devices_[static_cast<size_t>(ordinal)] : nullptr;
}

// A process becomes a user of a card with its first context there.
CUresult Process::attach(int ordinal) {
  Device& device = devices_[static_cast<size_t>(ordinal)];
  if (device.record != kNone) return CUDA_SUCCESS;
  Card& card = *device.card;
  Card::Guard guard(card);
  advance(card, card.card_time(host_.now_ns()));
  card.reap();
  device.record = card.attach_process(pid_, simulated_, name_);
  if (device.record == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  device.serial = card.process(device.record).serial;
  return CUDA_SUCCESS;
}

void Process::kill() {
  killed_ = true;
  stopping_ = true;
  for (Device& device : devices_) {
    if (device.record == kNone) continue;
    Card::Guard guard(*device.card);
    advance(*device.card, device.card->card_time(host_.now_ns()));
    device.card->detach_process(device.record, false);
  }
}

uint64_t Process::add_effect(std::function<void()> effect) {
  HostLockGuard guard(host_, effects_lock_);
  effects_.emplace(next_effect_, std::move(effect));
  return next_effect_++;
}

uint64_t Process::add_host_function(std::function<void()> function) {
  HostLockGuard guard(host_, effects_lock_);
  host_functions_.emplace(next_effect_, std::move(function));
  return next_effect_++;
}

// Called with the card unlocked. Effects in order of completion; one thread at a time, so that the order holds.
void Process::run_due(int ordinal) {
  Device& device = devices_[static_cast<size_t>(ordinal)];
  Card& card = *device.card;
  ++applying_;
  host_.lock(effects_order_);
  for (;;) {
    Due due;
    {
      Card::Guard guard(card);
      if (card.process(device.record).effects_head == kNone || !next_due(card, device.record, &due)) break;
    }
    std::function<void()> effect;
    host_.lock(effects_lock_);
    auto& from = due.host_function ? host_functions_ : effects_;
    if (auto at = from.find(due.effect); at != from.end()) {
      effect = std::move(at->second);
      from.erase(at);
    }
    host_.unlock(effects_lock_);
    if (effect) effect();
  }
  host_.unlock(effects_order_);
  --applying_;
}

void Process::watch_word(int card, uint64_t address, volatile void* bytes, bool wide) {
  HostLockGuard guard(host_, effects_lock_);
  words_[address] = {card, bytes, wide};
}

// Words in memory that the program itself may have changed.
void Process::look_at_words(int ordinal) {
  Device& device = devices_[static_cast<size_t>(ordinal)];
  Card& card = *device.card;
  for (auto at = words_.begin(); at != words_.end();) {
    if (at->second.card != ordinal) {
      ++at;
      continue;
    }
    Index cell = kNone;
    for (Index i = 1; i <= card.header().tables.cells.high; ++i) {
      const CellRecord& c = card.cell(i);
      if (c.state == LiveState::kLive && c.process == device.record && c.address == at->first) cell = i;
    }
    if (cell == kNone) {
      at = words_.erase(at);
      continue;
    }
    const uint64_t value = at->second.wide ? *static_cast<volatile uint64_t*>(at->second.bytes)
                                           : *static_cast<volatile uint32_t*>(at->second.bytes);
    cell_value(card, cell, value);
    ++at;
  }
}

uint64_t Process::settle(int ordinal) {
  Device& device = devices_[static_cast<size_t>(ordinal)];
  Card& card = *device.card;
  const uint64_t host_now = host_.now_ns();
  bool due = false;
  uint64_t now = 0;
  {
    Card::Guard guard(card);
    now = card.card_time(host_now);
    advance(card, now);
    if (device.record != kNone) {
      if (!words_.empty()) {
        HostLockGuard words(host_, effects_lock_);
        look_at_words(ordinal);
      }
      due = card.process(device.record).effects_head != kNone;
    }
    uint64_t& last_reap = last_reap_ns_[static_cast<size_t>(ordinal)];
    if (host_now > last_reap + kReapNs) {
      last_reap = host_now;
      card.reap();
    }
  }
  if (due) run_due(ordinal);
  // Somebody else may be in the middle of an effect that is done as far as the card is concerned.
  if (applying_.load() != 0 && !due) {
    host_.lock(effects_order_);
    host_.unlock(effects_order_);
  }
  return now;
}

CUresult Process::wait(int ordinal, const std::function<bool(Card&)>& done, const std::function<uint64_t(Card&)>& bound,
                       WaitMode mode) {
  Card& card = *devices_[static_cast<size_t>(ordinal)].card;
  for (;;) {
    settle(ordinal);
    uint64_t until = 0;
    {
      Card::Guard guard(card);
      if (done(card)) break;
      if (card.header().lost != 0) return CUDA_ERROR_UNKNOWN;
      until = bound(card);
      const uint64_t now = card.header().now_ns;
      if (until == kNever) until = now + std::max<uint64_t>(1000, card.knob_ns(Knob::poll_ns));
      until = std::max(until, now + 1) + card.header().epoch_ns;
    }
    host_.wait_until(until, mode);
  }
  settle(ordinal);
  return CUDA_SUCCESS;
}

CUresult Process::submit(Stream& stream, Submission what, CommandRef* made, bool count_depth) {
  const int ordinal = stream.context->card;
  Card& card = *devices_[static_cast<size_t>(ordinal)].card;
  for (;;) {
    uint64_t until = 0;
    bool due = false;
    {
      Card::Guard guard(card);
      advance(card, card.card_time(host_.now_ns()));
      if (card.header().lost != 0) return CUDA_ERROR_UNKNOWN;
      due = card.process(devices_[static_cast<size_t>(ordinal)].record).effects_head != kNone;
      const StreamRecord& record = card.stream(stream.record);
      if (!count_depth || record.pending < static_cast<uint32_t>(card.knob(Knob::queue_depth))) {
        const CommandRef command = sim::submit(card, stream.record, what);
        if (command.index == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
        if (made != nullptr) *made = command;
        break;
      }
      // Full: the oldest has to go first.
      const Index oldest = record.first_command;
      until = earliest_done(card, {oldest, card.command(oldest).serial});
      const uint64_t now = card.header().now_ns;
      if (until == kNever) until = now + std::max<uint64_t>(1000, card.knob_ns(Knob::poll_ns));
      until = std::max(until, now + 1) + card.header().epoch_ns;
    }
    if (due) run_due(ordinal);
    host_.wait_until(until, WaitMode::kAuto);
  }
  return CUDA_SUCCESS;
}

void Process::need_service() {
  if (service_running_.exchange(true)) return;
  host_.spawn(&Process::service_main, this);
}

void Process::service_main(void* self) {
  static_cast<Process*>(self)->service_loop();
}

// Runs host functions in order, applies effects and looks at words while the program does not call.
void Process::service_loop() {
  uint64_t idle_since = host_.now_ns();
  while (!stopping_) {
    uint64_t wake = kNever;
    bool worked = false;
    for (int i = 0; i < device_count(); ++i) {
      Device& device = devices_[static_cast<size_t>(i)];
      if (device.record == kNone) continue;
      settle(i);
      Card& card = *device.card;
      for (;;) {
        Due due;
        {
          Card::Guard guard(card);
          if (card.process(device.record).effects_head != kNone || !next_due(card, device.record, &due)) break;
        }
        std::function<void()> function;
        host_.lock(effects_lock_);
        if (auto at = host_functions_.find(due.effect); at != host_functions_.end()) {
          function = std::move(at->second);
          host_functions_.erase(at);
        }
        host_.unlock(effects_lock_);
        Thread& self = current_thread();
        self.in_host_function = true;
        if (function) function();
        self.in_host_function = false;
        Card::Guard guard(card);
        advance(card, card.card_time(host_.now_ns()));
        host_function_done(card, due.command);
        worked = true;
      }
      host_.lock(effects_lock_);
      const bool watches = !words_.empty(),
                 expects = watches || !host_functions_.empty() || writes_under_way.load() > 0;
      host_.unlock(effects_lock_);
      if (!expects) continue;  // effects of copies can wait for the program's next call
      Card::Guard guard(card);
      const uint64_t now = card.header().now_ns, poll = std::max<uint64_t>(1000, card.knob_ns(Knob::poll_ns));
      uint64_t next = next_due_time(card, device.record);
      if (watches) next = std::min(next, now + poll);
      if (next != kNever) wake = std::min(wake, std::max(next, now + poll / 4) + card.header().epoch_ns);
    }
    const uint64_t now = host_.now_ns();
    if (worked || wake != kNever) idle_since = now;
    if (wake == kNever) {
      if (now - idle_since > kServiceIdleNs) break;
      wake = now + 100000;
    }
    host_.wait_until(std::min(wake, now + 10000000), WaitMode::kBlock);
  }
  service_running_ = false;
  // Work that came just now found a service thread that was about to end.
  HostLockGuard guard(host_, effects_lock_);
  if (!stopping_ && !host_functions_.empty()) need_service();
}

}  // namespace sluice::sim
