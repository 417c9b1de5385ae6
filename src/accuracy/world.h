// Simulated cards (one, unless a container says otherwise) and the containers on them, in one real process: each
// simulated process has a driver of the simulated card and the shipped guest's objects in front of it; a turn keeper of
// the agent serves each card. The four seams of the guest and the keeper's host are the fibres' clock and plain
// bookkeeping.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accuracy/fibres.h"
#include "accuracy/scenario.h"
#include "agent/turn_keeper.h"
#include "guest/guest.h"
#include "page/grant.h"
#include "page/usage.h"
#include "sim/card.h"
#include "sim/process.h"

namespace sluice::accuracy {

// Locks of one usage file: byte -> pid.
struct LockTable {
  std::map<uint64_t, int> owner;
};

// Folder of the cards of one run, removed at the end.
class CardFolder {
 public:
  static Result<std::unique_ptr<CardFolder>> create(const std::string& profile, uint32_t count, uint64_t seed,
                                                    uint64_t epoch_ns);
  ~CardFolder();
  const std::string& path() const { return path_; }
  sim::Card& card(uint32_t index) { return *cards_[index]; }
  uint32_t count() const { return static_cast<uint32_t>(cards_.size()); }

 private:
  std::string path_;
  std::vector<std::unique_ptr<sim::Card>> cards_;
};

// A container's pages. One that comes and goes has new ones each time.
struct Pages {
  uint64_t id = 0;
  page::Grant* grant = nullptr;
  page::Usage* usage = nullptr;
  LockTable locks;
  std::vector<char> memory;
  Pages(CardFolder& folder, uint32_t cards, uint64_t id);
};

class World;

// A simulated process. Figures of its program are taken from the end of the warm-up on.
struct ProgramProcess {
  int pid = 0;
  size_t container = 0;
  std::unique_ptr<sim::Process> driver;
  std::unique_ptr<guest::Guest> guest;  // nullptr: runs without the library
  struct Seams;
  std::unique_ptr<Seams> seams;
  ProgramProcess();
  ~ProgramProcess();
  bool killed = false;
  uint32_t ordinal = 0;           // among all processes that its container has had
  uint64_t units = 0;             // launched by its program
  double longest_wait_ms = 0;     // of a launch
  std::vector<float> latency_ms;  // from the first launch after a synchronisation to the end of the next
};

class World {
 public:
  // With `library`, processes run behind the guest; with `keeper`, turns are kept.
  static Result<std::unique_ptr<World>> create(const Scenario& scenario, bool library);
  ~World();

  // Runs the whole scenario.
  void run();

  Fibres& fibres() { return *fibres_; }
  const Scenario& scenario() const { return scenario_; }
  sim::Card& card(uint32_t index = 0) { return folder_->card(index); }
  const std::string& folder() const { return folder_->path(); }
  uint32_t card_count() const { return folder_->count(); }
  // Of all lives of the container, the present one last.
  std::vector<std::unique_ptr<Pages>>& pages(size_t container) { return pages_[container]; }
  std::vector<std::unique_ptr<ProgramProcess>>& processes() { return processes_; }
  // What the turn keeper of a card reports at the end; empty without one.
  std::vector<agent::TurnReport> turns(uint32_t card);
  static size_t container_of(uint64_t id) { return static_cast<size_t>(id & 0xffff) - 1; }

  // Milliseconds of card time, executing and occupied ns of a container's contexts per millisecond.
  struct Bins {
    std::vector<uint32_t> executing_ns;
    std::vector<uint32_t> occupied_ns;
  };
  Bins container_bins(size_t container, uint32_t card = 0);
  Bins card_bins(uint32_t card = 0);

 private:
  explicit World(const Scenario& scenario) : scenario_(scenario) {}
  struct Action;
  std::vector<Action> plan() const;
  void act(const Action& action);
  void run_until_busy(size_t container);
  void start_keepers();
  void start_container(size_t index);
  void end_container(size_t index, bool removed);
  core::ShareRequest share_of(const ContainerSpec& spec, double percent) const;
  void make_process(size_t container, uint64_t at_ns);
  void claim_falsely(size_t container);
  Bins bins_of(uint32_t card, const std::vector<sim::Index>& subjects);

  Scenario scenario_;
  bool library_ = true;
  std::unique_ptr<CardFolder> folder_;
  std::unique_ptr<Fibres> fibres_;
  std::vector<std::vector<std::unique_ptr<Pages>>> pages_;  // by container
  std::vector<std::unique_ptr<ProgramProcess>> processes_;
  std::vector<std::unique_ptr<agent::TurnHost>> keeper_hosts_;  // by card
  std::vector<std::unique_ptr<agent::TurnKeeper>> keepers_;
  int next_pid_ = 100;
};

// The program of a scenario's process (program.cc).
void run_program(World& world, ProgramProcess& process);

}  // namespace sluice::accuracy
