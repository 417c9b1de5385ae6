// One simulated card and the containers on it, in one real process: each simulated process has a driver of the
// simulated card and the shipped guest's objects in front of it; the agent's turn keeper serves the card. The four
// seams of the guest and the keeper's host are the fibres' clock and plain bookkeeping.
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

// Folder of a card for one run, removed at the end.
class CardFolder {
 public:
  static Result<std::unique_ptr<CardFolder>> create(const std::string& profile, uint64_t seed, uint64_t epoch_ns);
  ~CardFolder();
  const std::string& path() const { return path_; }
  sim::Card& card() { return *card_; }

 private:
  std::string path_;
  std::unique_ptr<sim::Card> card_;
};

class World;

// Locks of one usage file: byte -> pid.
struct LockTable {
  std::map<uint64_t, int> owner;
};

// A simulated process.
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
  uint64_t units = 0;          // launched by its program
  double longest_wait_ms = 0;  // of a launch
  uint64_t waited_units = 0;
};

// A container's pages.
struct Pages {
  page::Grant* grant = nullptr;
  page::Usage* usage = nullptr;
  LockTable locks;
  std::vector<char> memory;
  Pages(const sim::Card& card, uint64_t id);
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
  sim::Card& card() { return folder_->card(); }
  Pages& pages(size_t container) { return *pages_[container]; }
  std::vector<std::unique_ptr<ProgramProcess>>& processes() { return processes_; }
  agent::TurnKeeper* keeper() { return keeper_.get(); }

  // Milliseconds of card time, executing and occupied ns of a container's contexts per millisecond.
  struct Bins {
    std::vector<uint32_t> executing_ns;
    std::vector<uint32_t> occupied_ns;
  };
  Bins container_bins(size_t container);
  Bins card_bins();
  // Card time at which the programs began, in ms.
  uint64_t start_ms() const { return 0; }

 private:
  explicit World(const Scenario& scenario) : scenario_(scenario) {}
  void start_container(size_t index);
  void make_process(size_t container, uint64_t at_ns);
  void claim_falsely(size_t container);
  Bins bins_of(const std::vector<sim::Index>& subjects);

  Scenario scenario_;
  bool library_ = true;
  std::unique_ptr<CardFolder> folder_;
  std::unique_ptr<Fibres> fibres_;
  std::vector<std::unique_ptr<Pages>> pages_;
  std::vector<std::unique_ptr<ProgramProcess>> processes_;
  std::unique_ptr<agent::TurnHost> keeper_host_;
  std::unique_ptr<agent::TurnKeeper> keeper_;
  int next_pid_ = 100;
};

// The program of a scenario's process (program.cc).
void run_program(World& world, ProgramProcess& process);

}  // namespace sluice::accuracy
