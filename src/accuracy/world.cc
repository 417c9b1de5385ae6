#include "accuracy/world.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace sluice::accuracy {

namespace {

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
  SimUsage(Pages& pages, KeeperHost& host, double read_ns) : pages_(pages), host_(host), read_ns_(read_ns) {}
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
    return pages_.locks.owner[page::slot_lock_byte(card, slot)] != 0;
  }

 private:
  Pages& pages_;
  KeeperHost& host_;
  double read_ns_;
};

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

Pages::Pages(const sim::Card& card, uint64_t id) : memory(page::grant_bytes(1) + page::usage_bytes(1) + 8192) {
  const uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + 4095) & ~uintptr_t{4095};
  usage = reinterpret_cast<page::Usage*>(base);
  grant = reinterpret_cast<page::Grant*>(base + page::usage_bytes(1));
  sim::CardFile& file = const_cast<sim::Card&>(card).file();
  grant->header.magic = page::kGrantMagic;
  grant->header.major = page::kMajor;
  grant->header.minor = page::kMinor;
  grant->header.bytes = page::grant_bytes(1);
  grant->header.card_count = 1;
  grant->header.grant_id = id;
  std::memcpy(grant->cards[0].uuid, file.uuid_bytes, 16);
  grant->cards[0].card_memory_bytes = file.profile.nvml_total_bytes;
  usage->header.magic = page::kUsageMagic;
  usage->header.major = page::kMajor;
  usage->header.bytes = page::usage_bytes(1);
  usage->header.card_count = 1;
  usage->header.grant_id = id;
}

Result<std::unique_ptr<CardFolder>> CardFolder::create(const std::string& profile, uint64_t seed, uint64_t epoch_ns) {
  std::unique_ptr<CardFolder> folder(new CardFolder);
  const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  std::string path = std::string(base) + "/sluice-accuracy-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    return unavailable("cannot make a folder for the simulated card under " + std::string(base));
  folder->path_ = path;
  sim::CardOptions options;
  options.profile = profile;
  options.seed = seed;
  options.epoch_ns = epoch_ns;
  Result<void> made = sim::Card::create(path + "/card0", options);
  if (!made) return std::move(made.error()).wrap("simulated card");
  Result<std::unique_ptr<sim::Card>> opened = sim::Card::open(path + "/card0");
  if (!opened) return std::move(opened.error()).wrap("simulated card");
  folder->card_ = std::move(*opened);
  return folder;
}

CardFolder::~CardFolder() {
  card_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::unique_ptr<World>> World::create(const Scenario& scenario, bool library) {
  std::unique_ptr<World> world(new World(scenario));
  world->library_ = library;
  Result<HostProfile> profile = host_profile(scenario.host);
  if (!profile) return profile.error();
  Result<std::unique_ptr<CardFolder>> folder = CardFolder::create(scenario.card, scenario.seed, kEpochNs);
  if (!folder) return folder.error();
  world->folder_ = std::move(*folder);
  world->fibres_ = std::make_unique<Fibres>(*profile, scenario.seed * 7919 + 17);
  world->card().set_knob(sim::Knob::hide_image_costs, 1);
  for (size_t i = 0; i < scenario.containers.size(); ++i) {
    world->pages_.push_back(std::make_unique<Pages>(world->card(), i + 1));
  }
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
  process->driver = std::make_unique<sim::Process>(*fibres_, folder_->path(), process->pid, true, "program");
  if (library_) {
    process->seams = std::make_unique<ProgramProcess::Seams>(*fibres_, *pages_[container], process->pid);
    process->guest = std::make_unique<guest::Guest>(
        [](guest::Guest* guest) -> uint32_t {
          ProgramProcess::Seams* seams = static_cast<ProgramProcess::Seams*>(guest->attach_context);
          guest->seams = {&seams->driver, &seams->clock, &seams->waiter, &seams->identity};
          guest->grant = seams->pages.grant;
          guest->usage = seams->pages.usage;
          guest->card_count = 1;
          guest->cards[0].grant = &seams->pages.grant->cards[0];
          guest->cards[0].usage = &seams->pages.usage->cards[0];
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

// A slot without a program behind it that says for ever that a thread waits at the gate.
void World::claim_falsely(size_t container) {
  Pages& pages = *pages_[container];
  page::UsageCard& usage = pages.usage->cards[0];
  pages.locks.owner[page::slot_lock_byte(0, 0)] = next_pid_++;
  usage.compute[0].low_water_ns.store(page::kIdle);
  usage.compute[0].overdue_ns.store(page::kIdle);
  usage.compute[0].attached.store(1);
  usage.compute[0].activity.store(1u << page::kWaitingShift);
  usage.account.slot_high.store(1);
  usage.account.doorbell.fetch_add(1);
  fibres_->wake_word(&usage.account.doorbell, ~0u);
}

void World::start_container(size_t index) {
  const ContainerSpec& spec = scenario_.containers[index];
  page::GrantCard& card = pages_[index]->grant->cards[0];
  if (library_ && !scenario_.gated) {
    // Measured, not gated: as beside an idle neighbour.
    card.gate.store(page::kGateWatch);
  } else if (library_) {
    agent::TurnContainer container;
    container.id = index + 1;
    container.grant = &card;
    KeeperHost& host = static_cast<KeeperHost&>(*keeper_host_);
    container.usage = std::make_shared<SimUsage>(*pages_[index], host, fibres_->profile().syscall_ns);
    container.share.core_permille = permille_of(spec.percent);
    container.share.weight = spec.weight;
    container.share.high_priority = spec.high_priority;
    keeper_->add(container);
  }
  if (spec.lies) {
    claim_falsely(index);
    return;
  }
  for (uint32_t i = 0; i < spec.processes; ++i) {
    make_process(index, fibres_->now_ns() + 1'000'000 * i);
  }
}

void World::run() {
  struct Action {
    uint64_t at_ns;
    size_t container;
    enum { kStart, kKill, kFreeze, kShare } what;
    double percent = 0;
  };
  std::vector<Action> actions;
  const auto at = [](double seconds) { return kEpochNs + static_cast<uint64_t>(seconds * 1e9); };
  for (size_t i = 0; i < scenario_.containers.size(); ++i) {
    const ContainerSpec& spec = scenario_.containers[i];
    actions.push_back({at(spec.start_s), i, Action::kStart});
    if (spec.kill_s) actions.push_back({at(*spec.kill_s), i, Action::kKill});
    if (spec.freeze_s) actions.push_back({at(*spec.freeze_s), i, Action::kFreeze});
    for (const ContainerSpec::Change& change : spec.changes) {
      if (change.at_s < scenario_.seconds) actions.push_back({at(change.at_s), i, Action::kShare, change.percent});
    }
  }
  std::stable_sort(actions.begin(), actions.end(), [](const Action& a, const Action& b) { return a.at_ns < b.at_ns; });
  if (library_ && scenario_.gated) {
    keeper_host_ = std::make_unique<KeeperHost>(*fibres_);
    keeper_ = std::make_unique<agent::TurnKeeper>(*keeper_host_);
    keeper_->set_policy(scenario_.policy, scenario_.max_containers);
  }
  bool keeper_started = false;
  for (const Action& action : actions) {
    fibres_->run(action.at_ns);
    if (action.what == Action::kStart) start_container(action.container);
    if (keeper_ && !keeper_started) {
      keeper_started = true;
      fibres_->start(nullptr, nullptr, [this] { keeper_->run(); }, fibres_->now_ns());
    }
    if (action.what == Action::kShare && keeper_) {
      const ContainerSpec& spec = scenario_.containers[action.container];
      keeper_->set_share(action.container + 1, {permille_of(action.percent), spec.weight, spec.high_priority});
    }
    for (std::unique_ptr<ProgramProcess>& process : processes_) {
      if (process->container != action.container) continue;
      if (action.what == Action::kFreeze) fibres_->freeze(process->driver.get(), true);
      if (action.what != Action::kKill || process->killed) continue;
      fibres_->drop(process->driver.get());
      process->driver->kill();
      process->killed = true;
      for (auto& [offset, owner] : pages_[action.container]->locks.owner) {
        if (owner == process->pid) owner = 0;
      }
      if (keeper_) keeper_->process_died(action.container + 1);
    }
  }
  fibres_->run(kEpochNs + static_cast<uint64_t>(scenario_.seconds * 1e9));
}

World::Bins World::bins_of(const std::vector<sim::Index>& subjects) {
  Bins bins;
  const size_t count = static_cast<size_t>(scenario_.seconds * 1000);
  bins.executing_ns.resize(count, 0);
  bins.occupied_ns.resize(count, 0);
  for (const sim::Index subject : subjects) {
    for (sim::Index c = card().subject(subject).newest_chunk; c != sim::kNone; c = card().chunk(c).previous) {
      const sim::BinChunk& chunk = card().chunk(c);
      for (size_t b = 0; b < sim::kBinsPerChunk; ++b) {
        const size_t ms = chunk.first_ms + b;
        if (ms >= count) break;
        bins.executing_ns[ms] += chunk.bins[b].executing_ns;
        bins.occupied_ns[ms] += chunk.bins[b].occupied_ns;
      }
    }
  }
  // Changes between contexts of one container are its own: the card serves nobody else meanwhile.
  const uint64_t switches = card().header().switch_points;
  for (uint64_t n = switches > sim::kMaxSwitches ? switches - sim::kMaxSwitches : 0; n < switches; ++n) {
    const sim::SwitchPoint& point = card().switch_point(n);
    const auto own = [&](sim::Index subject) {
      return std::find(subjects.begin(), subjects.end(), subject) != subjects.end();
    };
    const size_t ms = point.time_ns / 1'000'000;
    if (ms < count && own(point.from) && own(point.to)) bins.occupied_ns[ms] += point.duration_ns;
  }
  return bins;
}

World::Bins World::container_bins(size_t container) {
  std::vector<sim::Index> subjects;
  const sim::Index high = card().header().tables.subjects.high;
  for (sim::Index i = 2; i <= high; ++i) {
    for (const std::unique_ptr<ProgramProcess>& process : processes_) {
      if (process->container == container && card().subject(i).pid == process->pid) subjects.push_back(i);
    }
  }
  return bins_of(subjects);
}

World::Bins World::card_bins() {
  return bins_of({1});
}

}  // namespace sluice::accuracy
