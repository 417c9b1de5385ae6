#include "accuracy/fibres.h"

#include <algorithm>
#include <cmath>

#include "guest/guest.h"

namespace sluice::accuracy {

namespace {

constexpr size_t kStackBytes = 256 * 1024;
Fibres* active_fibres = nullptr;

double nominal_cost(sim::Charge what) {
  switch (what) {
    case sim::Charge::kTrivial:
      return 50;
    case sim::Charge::kLaunch:
      return 3'000;
    case sim::Charge::kGraphLaunch:
      return 5'000;
    case sim::Charge::kRecord:
      return 1'000;
    case sim::Charge::kWaitEvent:
      return 800;
    case sim::Charge::kQuery:
      return 1'500;
    case sim::Charge::kSync:
      return 1'500;
    case sim::Charge::kCopy:
      return 4'000;
    case sim::Charge::kHostFunction:
      return 2'000;
    case sim::Charge::kCreate:
      return 2'000;
    default:
      return 0;
  }
}

}  // namespace

struct Fibres::Fibre {
  boost::context::fiber context;
  std::function<void()> body;
  sim::Thread thread;
  guest::Guest* guest = nullptr;
  const sim::Process* process = nullptr;
  uint64_t number = 0;
  uint64_t generation = 0;
  uint64_t wake_at_ns = 0;
  bool ended = false;
  bool dropped = false;
  bool frozen = false;
  bool woken = false;
  std::vector<const void*> words;  // waits on these
};

Result<HostProfile> host_profile(std::string_view name) {
  HostProfile profile;
  if (name == "normal" || name == "1x") return profile;
  if (name == "0x") {
    profile.scale = 0;
    return profile;
  }
  if (name == "3x") {
    profile.scale = 3;
    return profile;
  }
  if (name == "busy") {
    profile.wake_median_ns = 20'000;
    profile.wake_p99_ns = 2'000'000;
    profile.wake_worst_ns = 6'000'000;
    return profile;
  }
  return invalid("host: '" + std::string(name) + "' is not a profile; known are normal, busy, 0x, 1x, 3x");
}

Fibres::Fibres(const HostProfile& profile, uint64_t seed) : profile_(profile), random_(seed) {
  active_fibres = this;
}

Fibres::~Fibres() {
  // Boost would unwind fibres that have not ended by an exception, through library code that knows none. They are kept
  // instead, until the program ends.
  static std::vector<boost::context::fiber>* kept = new std::vector<boost::context::fiber>;
  static std::vector<std::unique_ptr<Fibre>>* owners = new std::vector<std::unique_ptr<Fibre>>;
  for (std::unique_ptr<Fibre>& fibre : fibres_) {
    if (fibre->ended) continue;
    kept->push_back(std::move(fibre->context));
    owners->push_back(std::move(fibre));
  }
  if (active_fibres == this) active_fibres = nullptr;
}

Fibres* Fibres::active() {
  return active_fibres;
}
guest::Guest* Fibres::current_guest() const {
  return current_ == nullptr ? nullptr : current_->guest;
}
uint64_t Fibres::current_number() const {
  return current_ == nullptr ? 1 : current_->number + 2;
}

void Fibres::schedule(Fibre* fibre, uint64_t at_ns) {
  fibre->wake_at_ns = std::max(at_ns, now_ns_);
  queue_.push({fibre->wake_at_ns, sequence_++, fibre, ++fibre->generation});
}

void Fibres::start(sim::Process* process, guest::Guest* guest, std::function<void()> body, uint64_t at_ns) {
  fibres_.push_back(std::make_unique<Fibre>());
  Fibre* fibre = fibres_.back().get();
  fibre->body = std::move(body);
  fibre->thread.process = process;
  fibre->process = process;
  fibre->guest = guest;
  fibre->number = fibres_.size();
  fibre->thread.id = fibre->number;
  fibre->context = boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(kStackBytes),
                                         [this, fibre](boost::context::fiber&& from) {
                                           main_ = std::move(from);
                                           fibre->body();
                                           fibre->ended = true;
                                           return std::move(main_);
                                         });
  schedule(fibre, at_ns);
}

void Fibres::resume(Fibre* fibre) {
  current_ = fibre;
  sim::set_current_thread(fibre->process == nullptr ? nullptr : &fibre->thread);
  boost::context::fiber back = std::move(fibre->context).resume();
  // The fibre kept its own continuation in yield(); what comes back here is empty or the fibre that suspended itself.
  if (!fibre->ended) fibre->context = std::move(back);
  current_ = nullptr;
}

void Fibres::yield() {
  main_ = std::move(main_).resume();
}

void Fibres::run(uint64_t until_ns) {
  until_ns_ = until_ns;
  while (!queue_.empty()) {
    const Wakeup next = queue_.top();
    if (next.at_ns > until_ns) break;
    queue_.pop();
    Fibre* fibre = next.fibre;
    if (fibre->generation != next.generation || fibre->ended || fibre->dropped) continue;
    if (fibre->frozen) continue;  // put back when it is continued
    now_ns_ = std::max(now_ns_, next.at_ns);
    resume(fibre);
  }
  now_ns_ = std::max(now_ns_, until_ns);
}

void Fibres::drop(const sim::Process* process) {
  for (const std::unique_ptr<Fibre>& fibre : fibres_) {
    if (fibre->process == process) fibre->dropped = true;
  }
}

void Fibres::freeze(const sim::Process* process, bool frozen) {
  for (const std::unique_ptr<Fibre>& fibre : fibres_) {
    if (fibre->process != process || fibre->ended) continue;
    fibre->frozen = frozen;
    if (!frozen) schedule(fibre.get(), std::max(now_ns_, fibre->wake_at_ns));
  }
}

void Fibres::sleep_until(uint64_t t_ns) {
  if (current_ == nullptr) {
    now_ns_ = std::max(now_ns_, t_ns);
    return;
  }
  // Nobody else runs before: no need to change stacks.
  if (!current_->dropped && !current_->frozen && t_ns <= until_ns_ && (queue_.empty() || queue_.top().at_ns > t_ns)) {
    now_ns_ = std::max(now_ns_, t_ns);
    return;
  }
  schedule(current_, t_ns);
  yield();
}

void Fibres::spend(double ns) {
  const double drawn = ns * profile_.scale * std::uniform_real_distribution<>(0.8, 1.2)(random_);
  if (drawn >= 1) sleep_until(now_ns_ + static_cast<uint64_t>(drawn));
}

uint64_t Fibres::draw_wake_ns() {
  if (profile_.scale == 0) return 0;
  const double sigma = std::log(profile_.wake_p99_ns / profile_.wake_median_ns) / 2.326;
  const double drawn = profile_.wake_median_ns * std::exp(sigma * std::normal_distribution<>()(random_));
  return static_cast<uint64_t>(profile_.scale * std::min(drawn, profile_.wake_worst_ns));
}

void Fibres::wait_until(uint64_t t_ns, sim::WaitMode mode) {
  const bool blocks = mode == sim::WaitMode::kBlock || mode == sim::WaitMode::kAuto;
  sleep_until(std::max(t_ns, now_ns_ + 100) + (blocks ? draw_wake_ns() : 0));
}

void Fibres::charge(sim::Charge what, uint64_t nominal_ns) {
  const double ns = nominal_ns != 0 ? static_cast<double>(nominal_ns) : nominal_cost(what);
  spend(ns);
}

void Fibres::spawn(void (*fn)(void*), void* argument) {
  Fibre* parent = current_;
  start(
      &sim::current_process(), parent == nullptr ? nullptr : parent->guest, [fn, argument] { fn(argument); },
      now_ns_ + draw_wake_ns());
}

void Fibres::lock(sim::HostLock& lock) {
  while (lock.word.exchange(1, std::memory_order_acquire) != 0) sleep_until(now_ns_ + 200);
}

bool Fibres::wait_word(const void* word, uint64_t deadline_ns) {
  wait_words({word}, deadline_ns);
  return current_->woken;
}

void Fibres::wait_words(const std::vector<const void*>& words, uint64_t deadline_ns) {
  Fibre* self = current_;
  self->woken = false;
  self->words = words;
  for (const void* word : words) waiters_[word].push_back(self);
  schedule(self, deadline_ns + draw_wake_ns());
  yield();
  for (const void* word : self->words) std::erase(waiters_[word], self);
  self->words.clear();
}

void Fibres::wake_word(const void* word, uint32_t count) {
  const auto found = waiters_.find(word);
  if (found == waiters_.end()) return;
  for (Fibre* fibre : found->second) {
    if (count == 0) break;
    if (fibre->woken || fibre->dropped) continue;
    --count;
    fibre->woken = true;
    const uint64_t at_ns = now_ns_ + draw_wake_ns();
    if (at_ns < fibre->wake_at_ns) schedule(fibre, at_ns);
  }
}

}  // namespace sluice::accuracy

namespace sluice::guest {

Guest* current_guest() {
  return accuracy::Fibres::active()->current_guest();
}

uint64_t current_thread_key() {
  return accuracy::Fibres::active()->current_number();
}

}  // namespace sluice::guest
