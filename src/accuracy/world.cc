#include "accuracy/world.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "governor/governor.h"

namespace sluice::accuracy {

namespace {

constexpr int64_t kContextBytes = 16 << 20;
constexpr uint64_t kEpochNs = 1'000'000'000;  // the fibres' clock at card time 0

uint32_t permille_of(double percent) {
  return static_cast<uint32_t>(percent * 10 + 0.5);
}

class SimDriver final : public guest::Driver {
 public:
  void* symbol(const char* name) override { return const_cast<void*>(sim::sim_symbol(name)); }
};

class SimClock final : public guest::Clock {
 public:
  explicit SimClock(Fibres& fibres) : fibres_(fibres) {}
  uint64_t now_ns() override { return fibres_.now_ns(); }

 private:
  Fibres& fibres_;
};

class SimWaiter final : public guest::Waiter {
 public:
  explicit SimWaiter(Fibres& fibres) : fibres_(fibres) {}
  bool wait(const volatile uint32_t* word, uint32_t expected, uint64_t timeout_ns) override {
    fibres_.spend(fibres_.profile().syscall_ns);
    if (*word != expected) return true;
    return fibres_.wait_word(const_cast<const uint32_t*>(word), fibres_.now_ns() + timeout_ns);
  }
  void wake(volatile uint32_t* word, uint32_t count) override {
    fibres_.spend(fibres_.profile().syscall_ns);
    fibres_.wake_word(const_cast<const uint32_t*>(word), count);
  }
  void spin_pause() override {
    fibres_.sleep_until(fibres_.now_ns() + static_cast<uint64_t>(fibres_.profile().spin_ns));
  }
  bool may_spin() override { return true; }
  void sleep_ns(uint64_t duration_ns) override {
    // Short sleeps are spun; longer ones end with a wake-up.
    const bool spun = duration_ns <= guest::kSpunSleepNs;
    fibres_.sleep_until(fibres_.now_ns() + duration_ns + (spun ? 0 : fibres_.draw_wake_ns()));
  }
  bool start_thread(void (*body)(void*), void* argument) override {
    fibres_.spawn(body, argument);
    return true;
  }

 private:
  Fibres& fibres_;
};

class SimIdentity final : public guest::Identity {
 public:
  SimIdentity(LockTable& locks, int pid) : locks_(locks), pid_(pid) {}
  uint64_t exec_token() override { return 0x5eed0000ull + static_cast<uint64_t>(pid_); }
  bool forked() override { return false; }
  void renew() override {}
  bool try_lock(uint64_t offset) override {
    int& owner = locks_.owner[offset];
    if (owner != 0 && owner != pid_) return false;
    owner = pid_;
    return true;
  }
  void unlock(uint64_t offset) override {
    if (locks_.owner[offset] == pid_) locks_.owner[offset] = 0;
  }
  int owner_pid(uint64_t offset) override {
    const int owner = locks_.owner[offset];
    return owner == pid_ ? 0 : owner;
  }
  int own_pid() override { return pid_; }

 private:
  LockTable& locks_;
  int pid_;
};

class KeeperHost final : public agent::TurnHost {
 public:
  explicit KeeperHost(Fibres& fibres) : fibres_(fibres) {}
  uint64_t now_ns() override { return fibres_.now_ns(); }
  void wait_any(std::span<const Word> words, uint64_t deadline_ns) override {
    pay();
    std::vector<const void*> addresses;
    for (const Word& word : words) {
      if (*word.address != word.expected) return;
      addresses.push_back(const_cast<const uint32_t*>(word.address));
    }
    if (deadline_ns > fibres_.now_ns()) fibres_.wait_words(addresses, deadline_ns);
  }
  void wake(std::atomic<uint32_t>* word) override {
    owed_ns_ += fibres_.profile().syscall_ns;
    fibres_.wake_word(word, ~0u);
  }
  void spin_pause() override {
    pay();
    fibres_.sleep_until(fibres_.now_ns() + static_cast<uint64_t>(fibres_.profile().spin_ns));
  }
  // Reads and wakes of a round are paid when it ends: the keeper's lock is held meanwhile, and other fibres cannot wait
  // for a mutex.
  void owe(double ns) { owed_ns_ += ns; }

 private:
  void pay() {
    const double owed = owed_ns_;
    owed_ns_ = 0;
    fibres_.spend(owed);
  }
  Fibres& fibres_;
  double owed_ns_ = 0;
};

class SimUsage final : public agent::UsageView {
 public:
  SimUsage(Pages& pages, KeeperHost& host, double read_ns, bool finds_dead)
      : pages_(pages), host_(host), read_ns_(read_ns), finds_dead_(finds_dead) {}
  bool read(uint64_t offset, void* into, size_t bytes) override {
    host_.owe(read_ns_);
    std::memcpy(into, reinterpret_cast<const char*>(pages_.usage) + offset, bytes);
    return true;
  }
  const volatile uint32_t* futex_word(uint64_t offset) override {
    return reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(pages_.usage) + offset);
  }
  bool slot_owned(uint32_t card, uint32_t slot) override {
    host_.owe(read_ns_);
    if (!finds_dead_) return true;
    return pages_.locks.owner[page::slot_lock_byte(card, slot)] != 0;
  }

 private:
  Pages& pages_;
  KeeperHost& host_;
  double read_ns_;
  bool finds_dead_;  // false: a mutation
};

bool has_open_segment(const guest::Guest& guest) {
  for (const guest::StreamState* stream = guest.compute.cards[0].streams; stream != nullptr; stream = stream->next) {
    if (stream->open.load() != nullptr && stream->launching.load() == 0) return true;
  }
  return false;
}

}  // namespace

struct ProgramProcess::Seams {
  SimDriver driver;
  SimClock clock;
  SimWaiter waiter;
  SimIdentity identity;
  Pages& pages;
  Seams(Fibres& fibres, Pages& of, int pid) : clock(fibres), waiter(fibres), identity(of.locks, pid), pages(of) {}
};

ProgramProcess::ProgramProcess() = default;
ProgramProcess::~ProgramProcess() = default;

Pages::Pages(CardFolder& folder, uint32_t cards, uint64_t number)
    : id(number), memory(page::grant_bytes(cards) + page::usage_bytes(cards) + 8192) {
  const uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + 4095) & ~uintptr_t{4095};
  usage = reinterpret_cast<page::Usage*>(base);
  grant = reinterpret_cast<page::Grant*>(base + page::usage_bytes(cards));
  grant->header.magic = page::kGrantMagic;
  grant->header.major = page::kMajor;
  grant->header.minor = page::kMinor;
  grant->header.bytes = page::grant_bytes(cards);
  grant->header.card_count = cards;
  grant->header.grant_id = id;
  for (uint32_t i = 0; i < cards; ++i) {
    const sim::CardFile& file = folder.card(i).file();
    std::memcpy(grant->cards[i].uuid, file.uuid_bytes, 16);
    grant->cards[i].index = i;
    grant->cards[i].card_memory_bytes = file.profile.nvml_total_bytes;
  }
  usage->header.magic = page::kUsageMagic;
  usage->header.major = page::kMajor;
  usage->header.bytes = page::usage_bytes(cards);
  usage->header.card_count = cards;
  usage->header.grant_id = id;
}

Result<std::unique_ptr<CardFolder>> CardFolder::create(const std::string& profile, uint32_t count, uint64_t seed,
                                                       uint64_t epoch_ns) {
  std::unique_ptr<CardFolder> folder(new CardFolder);
  const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  std::string path = std::string(base) + "/sluice-accuracy-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    return unavailable("cannot make a folder for the simulated card under " + std::string(base));
  folder->path_ = path;
  for (uint32_t i = 0; i < count; ++i) {
    sim::CardOptions options;
    options.profile = profile;
    options.seed = seed;
    options.epoch_ns = epoch_ns;
    options.card_index = i;
    const std::string file = path + "/card" + std::to_string(i);
    Result<void> made = sim::Card::create(file, options);
    if (!made) return std::move(made.error()).wrap("simulated card");
    Result<std::unique_ptr<sim::Card>> opened = sim::Card::open(file);
    if (!opened) return std::move(opened.error()).wrap("simulated card");
    folder->cards_.push_back(std::move(*opened));
    folder->cards_.back()->set_knob(sim::Knob::hide_image_costs, 1);
    // Time is what is measured here: many processes must not run out of memory.
    folder->cards_.back()->set_knob(sim::Knob::context_bytes, kContextBytes);
  }
  return folder;
}

CardFolder::~CardFolder() {
  cards_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::unique_ptr<World>> World::create(const Scenario& scenario, bool library) {
  std::unique_ptr<World> world(new World(scenario));
  world->library_ = library;
  Result<HostProfile> profile = host_profile(scenario.host);
  if (!profile) return profile.error();
  Result<std::unique_ptr<CardFolder>> folder =
      CardFolder::create(scenario.card, accuracy::card_count(scenario), scenario.seed, kEpochNs);
  if (!folder) return folder.error();
  world->folder_ = std::move(*folder);
  world->fibres_ = std::make_unique<Fibres>(*profile, scenario.seed * 7919 + 17);
  world->pages_.resize(scenario.containers.size());
  return world;
}

World::~World() {
  // The keeper's and the programs' fibres never run again; drivers go without an orderly exit.
  for (std::unique_ptr<ProgramProcess>& process : processes_) {
    if (!process->killed) process->driver->kill();
  }
  fibres_.reset();
}

void World::make_process(size_t container, uint64_t at_ns) {
  std::unique_ptr<ProgramProcess> process = std::make_unique<ProgramProcess>();
  process->pid = next_pid_++;
  process->container = container;
  for (const std::unique_ptr<ProgramProcess>& other : processes_) process->ordinal += other->container == container;
  process->driver = std::make_unique<sim::Process>(*fibres_, folder_->path(), process->pid, true, "program");
  if (library_) {
    process->seams = std::make_unique<ProgramProcess::Seams>(*fibres_, *pages_[container].back(), process->pid);
    process->guest = std::make_unique<guest::Guest>(
        [](guest::Guest* guest) -> uint32_t {
          ProgramProcess::Seams* seams = static_cast<ProgramProcess::Seams*>(guest->attach_context);
          guest->seams = {&seams->driver, &seams->clock, &seams->waiter, &seams->identity};
          guest->grant = seams->pages.grant;
          guest->usage = seams->pages.usage;
          guest->card_count = seams->pages.grant->header.card_count;
          for (uint32_t i = 0; i < guest->card_count; ++i) {
            guest->cards[i].grant = &seams->pages.grant->cards[i];
            guest->cards[i].usage = &seams->pages.usage->cards[i];
          }
          return page::kRefusalNone;
        },
        guest::resolve_real_cuda);
    process->guest->attach_context = process->seams.get();
    process->guest->compute.mutations = scenario_.mutations;
    process->guest->compute.measure_permille = scenario_.measure_permille;
  }
  ProgramProcess* raw = process.get();
  processes_.push_back(std::move(process));
  fibres_->start(raw->driver.get(), raw->guest.get(), [this, raw] { run_program(*this, *raw); }, at_ns);
}

// A slot without a program behind it that says for ever that a thread waits at the gate, or that work is in flight too.
void World::claim_falsely(size_t container) {
  Pages& pages = *pages_[container].back();
  page::UsageCard& usage = pages.usage->cards[0];
  const bool drains = scenario_.containers[container].lies != Lie::kNeverDrains;
  pages.locks.owner[page::slot_lock_byte(0, 0)] = next_pid_++;
  usage.compute[0].low_water_ns.store(page::kIdle);
  usage.compute[0].overdue_ns.store(page::kIdle);
  usage.compute[0].attached.store(1);
  usage.compute[0].activity.store((1u << page::kWaitingShift) | (drains ? 0u : 1u));
  usage.account.slot_high.store(1);
  usage.account.doorbell.fetch_add(1);
  fibres_->wake_word(&usage.account.doorbell, ~0u);
}

void World::start_keepers() {
  core::ArbiterSettings settings;
  if ((scenario_.agent_mutations & kMutateOverrun) != 0) settings.overrun_ns = 3'600'000'000'000;
  if ((scenario_.agent_mutations & kMutateTakeBack) != 0) {
    settings.take_back = false;
    settings.extend_ns = 200'000'000;
  }
  for (uint32_t i = 0; i < folder_->count(); ++i) {
    keeper_hosts_.push_back(std::make_unique<KeeperHost>(*fibres_));
    keepers_.push_back(std::make_unique<agent::TurnKeeper>(*keeper_hosts_.back(), settings));
    agent::TurnKeeper* keeper = keepers_.back().get();
    keeper->set_policy(scenario_.policy, scenario_.max_containers);
    fibres_->start(nullptr, nullptr, [keeper] { keeper->run(); }, fibres_->now_ns());
  }
}

void World::start_container(size_t index) {
  const ContainerSpec& spec = scenario_.containers[index];
  const uint64_t life = pages_[index].size();
  pages_[index].push_back(std::make_unique<Pages>(*folder_, spec.cards, (life << 16) + index + 1));
  Pages& pages = *pages_[index].back();
  for (uint32_t i = 0; i < spec.cards && library_; ++i) {
    page::GrantCard& card = pages.grant->cards[i];
    if (!scenario_.gated) {
      // Measured, not gated: as beside an idle neighbour.
      card.gate.store(page::kGateWatch);
      continue;
    }
    agent::TurnContainer container;
    container.id = pages.id;
    container.grant = &card;
    container.usage_card = i;
    KeeperHost& host = static_cast<KeeperHost&>(*keeper_hosts_[i]);
    const bool finds_dead = (scenario_.agent_mutations & kMutateDead) == 0;
    container.usage = std::make_shared<SimUsage>(pages, host, fibres_->profile().syscall_ns, finds_dead);
    container.share = share_of(spec, spec.percent);
    keepers_[i]->add(container);
  }
  if (spec.lies != Lie::kNone) {
    claim_falsely(index);
    return;
  }
  for (uint32_t i = 0; i < spec.processes; ++i) {
    make_process(index, fibres_->now_ns() + 1'000'000 * i);
  }
}

// All its processes are killed; `removed`: its grant is taken away too, as at the end of a pod.
void World::end_container(size_t index, bool removed) {
  Pages& pages = *pages_[index].back();
  for (std::unique_ptr<ProgramProcess>& process : processes_) {
    if (process->container != index || process->killed) continue;
    fibres_->drop(process->driver.get());
    process->driver->kill();
    process->killed = true;
    for (auto& [offset, owner] : pages.locks.owner) {
      if (owner == process->pid) owner = 0;
    }
  }
  for (std::unique_ptr<agent::TurnKeeper>& keeper : keepers_) {
    if (removed) {
      keeper->remove(pages.id);
    } else if ((scenario_.agent_mutations & kMutateDead) == 0) {
      keeper->process_died(pages.id);
    }
  }
}

struct World::Action {
  uint64_t at_ns;
  size_t container;
  enum { kStart, kEnd, kKill, kFreeze, kThaw, kShare } what;
  double percent = 0;
};

std::vector<World::Action> World::plan() const {
  std::vector<Action> actions;
  const auto at = [](double seconds) { return kEpochNs + static_cast<uint64_t>(seconds * 1e9); };
  for (size_t i = 0; i < scenario_.containers.size(); ++i) {
    const ContainerSpec& spec = scenario_.containers[i];
    const double end_s = std::min(scenario_.seconds, spec.stop_s.value_or(scenario_.seconds));
    actions.push_back({at(spec.start_s), i, Action::kStart});
    for (double s = spec.start_s; spec.lives_s > 0 && s < end_s; s += spec.every_s) {
      if (s > spec.start_s) actions.push_back({at(s), i, Action::kStart});
      actions.push_back({at(s + spec.lives_s), i, Action::kEnd});
    }
    if (spec.kill_s) actions.push_back({at(*spec.kill_s), i, Action::kKill});
    if (spec.freeze_s) actions.push_back({at(*spec.freeze_s), i, Action::kFreeze});
    if (spec.thaw_s) actions.push_back({at(*spec.thaw_s), i, Action::kThaw});
    for (const ContainerSpec::Change& change : spec.changes) {
      actions.push_back({at(change.at_s), i, Action::kShare, change.percent});
    }
  }
  std::erase_if(actions, [&](const Action& action) { return action.at_ns >= at(scenario_.seconds); });
  std::stable_sort(actions.begin(), actions.end(), [](const Action& a, const Action& b) { return a.at_ns < b.at_ns; });
  return actions;
}

// Goes on until the container has work on a card whose end is not marked yet, or for 100 ms: stopped or killed just
// then it does the most harm.
void World::run_until_busy(size_t container) {
  if (!library_ || pages_[container].empty()) return;
  for (const uint64_t end_ns = fibres_->now_ns() + 100'000'000; fibres_->now_ns() < end_ns;) {
    for (const std::unique_ptr<ProgramProcess>& process : processes_) {
      if (process->container == container && !process->killed && has_open_segment(*process->guest)) return;
    }
    fibres_->run(fibres_->now_ns() + 5'000);
  }
}

void World::act(const Action& action) {
  const ContainerSpec& spec = scenario_.containers[action.container];
  if (action.what == Action::kKill || action.what == Action::kFreeze) run_until_busy(action.container);
  switch (action.what) {
    case Action::kStart:
      start_container(action.container);
      return;
    case Action::kEnd:
      end_container(action.container, true);
      return;
    case Action::kKill:
      if (!pages_[action.container].empty()) end_container(action.container, false);
      return;
    case Action::kFreeze:
    case Action::kThaw:
      for (std::unique_ptr<ProgramProcess>& process : processes_) {
        if (process->container != action.container || process->killed) continue;
        fibres_->freeze(process->driver.get(), action.what == Action::kFreeze);
      }
      return;
    case Action::kShare:
      if (pages_[action.container].empty()) return;
      for (uint32_t i = 0; i < spec.cards && i < keepers_.size(); ++i) {
        keepers_[i]->set_share(pages_[action.container].back()->id, share_of(spec, action.percent));
      }
      return;
  }
}

core::ShareRequest World::share_of(const ContainerSpec& spec, double percent) const {
  const bool first = spec.high_priority && (scenario_.agent_mutations & kMutatePriority) == 0;
  return {permille_of(percent), spec.weight, first};
}

void World::run() {
  if (library_ && scenario_.gated) start_keepers();
  for (const Action& action : plan()) {
    fibres_->run(action.at_ns);
    act(action);
  }
  fibres_->run(kEpochNs + static_cast<uint64_t>(scenario_.seconds * 1e9));
}

std::vector<agent::TurnReport> World::turns(uint32_t card) {
  return card < keepers_.size() ? keepers_[card]->report() : std::vector<agent::TurnReport>{};
}

World::Bins World::bins_of(uint32_t index, const std::vector<sim::Index>& subjects) {
  sim::Card& card = folder_->card(index);
  Bins bins;
  const size_t count = static_cast<size_t>(scenario_.seconds * 1000);
  bins.executing_ns.resize(count, 0);
  bins.occupied_ns.resize(count, 0);
  for (const sim::Index subject : subjects) {
    for (sim::Index c = card.subject(subject).newest_chunk; c != sim::kNone; c = card.chunk(c).previous) {
      const sim::BinChunk& chunk = card.chunk(c);
      for (size_t b = 0; b < sim::kBinsPerChunk; ++b) {
        const size_t ms = chunk.first_ms + b;
        if (ms >= count) break;
        bins.executing_ns[ms] += chunk.bins[b].executing_ns;
        bins.occupied_ns[ms] += chunk.bins[b].occupied_ns;
      }
    }
  }
  // Changes between contexts of one container are its own: the card serves nobody else meanwhile.
  const uint64_t switches = card.header().switch_points;
  for (uint64_t n = switches > sim::kMaxSwitches ? switches - sim::kMaxSwitches : 0; n < switches; ++n) {
    const sim::SwitchPoint& point = card.switch_point(n);
    const auto own = [&](sim::Index subject) {
      return std::find(subjects.begin(), subjects.end(), subject) != subjects.end();
    };
    const size_t ms = point.time_ns / 1'000'000;
    if (ms < count && own(point.from) && own(point.to)) bins.occupied_ns[ms] += point.duration_ns;
  }
  return bins;
}

World::Bins World::container_bins(size_t container, uint32_t index) {
  std::vector<sim::Index> subjects;
  sim::Card& card = folder_->card(index);
  const sim::Index high = card.header().tables.subjects.high;
  for (sim::Index i = 2; i <= high; ++i) {
    for (const std::unique_ptr<ProgramProcess>& process : processes_) {
      if (process->container == container && card.subject(i).pid == process->pid) subjects.push_back(i);
    }
  }
  return bins_of(index, subjects);
}

World::Bins World::card_bins(uint32_t index) {
  return bins_of(index, {1});
}

}  // namespace sluice::accuracy
