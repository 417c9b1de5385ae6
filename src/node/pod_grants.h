// From the kubelet's calls to grants: Allocate hands out a slot, PreStartContainer finds out whose it is and fills it,
// pods that go take their slots with them. Slots are on disk before an answer names them; what is made from them (CDI
// specs, pages) can be made again, so a restart at any point loses nothing.
//
// Locks: the slot table's, held for table and small files only; never while the kubelet, the API server or the cards
// are asked.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/node.h"
#include "kube/allocation.h"
#include "node/delivery.h"
#include "node/driver.h"
#include "node/events.h"
#include "node/local_pods.h"
#include "node/owner.h"
#include "node/pod_resources.h"
#include "node/pods.h"
#include "node/slots.h"

namespace sluice::node {

enum class DeliveryKind { kCdi, kEnv };

struct PodGrantsOptions {
  std::string node_name;
  std::string state_directory;  // slots/ below it
  std::string run_directory;    // the agent's; grants/ below it
  std::string cdi_directory;
  std::string libraries;  // folder of the guest libraries on the node
  DriverRoot driver_root;
  DeliveryKind delivery = DeliveryKind::kCdi;
  bool allow_priority = false;
  bool allow_disable = false;
  std::string checkpoint;         // the kubelet's file of allocations
  int owner_wait_ms = 8000;       // for record and watch to agree on whose a container is; the kubelet gives 30 s
  int last_resort_ms = 1500;      // before a container that no record shows is found by elimination
  int capacity_wait_ms = 3000;    // for the last word about a pod that has just ended and whose place is taken
  int allocation_wait_ms = 5000;  // for the allocation of a pod that was bound without one
};

class PodGrants {
 public:
  // events may be nullptr (tests).
  PodGrants(PodGrantsOptions options, agent::Node& node, LocalPods& pods, PodRecords& records,
            std::optional<kube::Verifier> verifier, Events* events);

  // Slots that an earlier agent left, and their CDI specs. Before any plugin is served.
  Result<void> restore();

  Result<ContainerAnswer> allocate(const std::string& resource, const std::vector<std::string>& ids);
  Result<void> pre_start(const std::string& resource, const std::vector<std::string>& ids);

  // Ends what pods that have gone held. Cheap; called after changes and every few seconds.
  void sweep();

  void set_mode(core::NodeMode mode) { mode_ = mode; }
  void set_verifier(std::optional<kube::Verifier> verifier);
  // Id numbers that containers hold or are about to, of one resource with this letter.
  std::set<int64_t> held(const std::string& resource, char letter);
  // Ids of containers that hold whole cards.
  std::set<std::string> held_texts(const std::string& resource);
  std::vector<ContainerGrant> list();
  std::set<std::string> libraries_in_use();

  struct Counters {
    std::atomic<uint64_t> allocate_calls{0}, pre_start_calls{0}, pre_start_errors{0};
    std::atomic<uint64_t> allocate_ns{0}, pre_start_ns{0}, pre_start_longest_ns{0};
    std::atomic<uint64_t> bad_records{0};  // allocations whose signature or text did not hold
    std::atomic<uint64_t> record_calls{0};
  };
  const Counters& counters() const { return counters_; }
  // Milliseconds since the last Allocate ended; 0 while one is open.
  int64_t quiet_ms() const;

 private:
  struct Known {
    RecordedPod record;
    bool complete = false;
    std::chrono::steady_clock::time_point at;  // when the question was asked
  };
  struct Given {  // the pod's allocation, and the record that said so
    kube::Allocation allocation;
    std::string text;
  };
  struct Wanted {  // what one container is to get, by its pod's allocation
    std::vector<agent::RecordShare> shares;
    int64_t pod_units = 0;
  };

  // owners (pod_grants_owner.cc)
  Result<Owner> owner_of(const OwnerQuestion& question);
  Result<std::vector<CheckpointEntry>> checkpoint() const;
  Result<Owner> owner_off_record(const OwnerQuestion& question, bool last_resort);
  Result<Owner> ask_pods(const OwnerQuestion& question, std::chrono::steady_clock::time_point arrived);
  Result<void> ask_pod(const LocalPodPtr& pod);
  Result<void> ask_all(std::chrono::steady_clock::time_point arrived);
  std::vector<OwnerCandidate> candidates();
  void remember(const LocalPod& pod, const std::optional<RecordedPod>& record,
                std::chrono::steady_clock::time_point asked_at);

  Result<void> fill(const OwnerQuestion& question, Owner owner);
  Result<void> fill_once(const OwnerQuestion& question, const Owner& owner, const Given* given, bool last_try);
  Result<Wanted> wanted_of(const LocalPod& pod, const kube::Allocation* allocation, const std::string& container,
                           const OwnerQuestion& question) const;
  Result<std::optional<Given>> allocation_of(LocalPodPtr& pod);
  std::optional<Given> given_before(const std::string& pod_uid);
  void release_others(const Owner& owner, const std::set<uint64_t>& kept);
  Result<void> write_out(const Slot& slot, const agent::GrantAnswer* answer, int64_t pod_units);
  Result<ContainerEdits> edits_for(const Slot& slot, const agent::GrantAnswer* answer, int64_t pod_units,
                                   std::vector<std::string> more_nodes = {});
  Result<void> save(const Slot& slot);
  Result<ContainerAnswer> answer_by_guess(Slot& slot);
  bool status_tells(const Owner& owner, bool last_try);
  Result<std::vector<Slot>> claim_slots(const OwnerQuestion& question, const Owner& owner, size_t chosen, bool equal,
                                        const Given* given);
  uint64_t new_grant_id(uint64_t slot, const std::set<uint64_t>& mistaken) const;
  static uint64_t random_slot();
  void forget(uint64_t slot);
  void drop_orphans();
  std::string slot_path(uint64_t slot) const;
  agent::PodGrantRequest request_for(const Slot& slot, const LocalPod& pod, const std::string& container,
                                     const Wanted& wanted) const;
  void complain(const LocalPod& pod, const std::string& reason, const std::string& text);

  PodGrantsOptions options_;
  agent::Node& node_;
  LocalPods& pods_;
  PodRecords& records_;
  std::optional<kube::Verifier> verifier_;
  Events* events_;
  std::atomic<core::NodeMode> mode_{core::NodeMode::kDefault};
  Counters counters_;

  mutable std::mutex mutex_;  // slots_, known_, verifier_
  SlotTable slots_;
  std::map<std::string, Known> known_;  // the kubelet's record by pod UID

  std::mutex asking_;  // one question to the kubelet at a time; its limit is 100 a second
  std::atomic<bool> has_get_{true};
  std::chrono::steady_clock::time_point listed_at_{};  // under asking_
  std::atomic<int> open_allocates_{0};
  std::atomic<int64_t> last_allocate_ms_{0};
  std::mutex filling_;  // one container is filled at a time: grants of one pod depend on one another
};

}  // namespace sluice::node
