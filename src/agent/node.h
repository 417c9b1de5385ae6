// The node: cards, grants and what is known about them. One mutex guards all of it; whoever holds it makes no call to
// NVML and never waits for a program, so that a sick card or a slow peer delays nobody. Turns are named elsewhere (one
// keeper per card, with a lock and a thread of its own).
//
// Who calls what: connections call the operations (Peer says for whom), the probe thread calls probe() some forty times
// a second, each card's thread calls before_reading()/card_read()/card_failed(), the finder calls cards_found().
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agent/cards.h"
#include "agent/grant_pages.h"
#include "agent/grant_record.h"
#include "agent/protocol.h"
#include "agent/slot_watch.h"
#include "agent/turn_keeper.h"
#include "core/node.h"

namespace sluice::agent {

// Steps at which a kill must leave something that the next agent understands; a test asks for each by its name.
#define SLUICE_NODE_POINTS(X) \
  X(kPagesMade)               \
  X(kRecordWritten)           \
  X(kShareTaken)              \
  X(kGranted)                 \
  X(kLimitsChanged)           \
  X(kClosed)                  \
  X(kRecordRemoved)           \
  X(kPagesRemoved)
enum class NodePoint {
#define SLUICE_NODE_POINT(name) name,
  SLUICE_NODE_POINTS(SLUICE_NODE_POINT)
#undef SLUICE_NODE_POINT
};

struct NodeOptions {
  std::string run_directory;
  std::string guest_directory;   // our libcuda.so.1 and libnvidia-ml.so.1
  std::string driver_directory;  // empty: searched
  std::string card_lock_directory;
  int64_t unit_mib = 1024;  // memory unit
  int32_t max_grants_per_card = 20;
  core::CardOrder card_order = core::CardOrder::kBinpack;
  bool mixed = false;           // memory-only requests may share what compute is left of a card that serves both kinds
  bool allow_priority = false;  // weight and high priority of users other than the agent's own
  // On a Kubernetes node: cards go to pods alone, and no card at the start is a state and no error.
  bool pods_only = false;
  std::optional<uint32_t> policy;     // of every card that set-policy does not name; absent: by what the card serves
  std::function<void(NodePoint)> at;  // tests only
};

// One container's grant as the pod's allocation has it (node_pods.cc). Shares name cards by UUID; memory_mib is worked
// out here, of whole cards units too.
struct PodGrantRequest {
  uint64_t id = 0;   // the slot's number becomes the grant's
  std::string name;  // "namespace/pod/container"
  std::string pod;   // "namespace/pod"
  std::string pod_uid;
  core::Kind kind = core::Kind::kNone;
  bool enforced = true;       // false: no limits
  bool switched_off = false;  // that is the pod's own wish; the library stays in, so that neighbours get their turns
  std::vector<RecordShare> shares;
  int64_t weight = 1;
  bool high_priority = false;
};

// A card for whoever reports about the node.
struct CardFacts {
  CardInfo info;
  bool usable = false;  // ours and answering
  std::string problem;  // why it is not; also of a usable card that cannot be shared (MIG, exclusive-process mode)
  int64_t units = 0, free_units = 0;
  int64_t free_core_percent = 0;
  bool operator==(const CardFacts&) const = default;
};

// Who asks, by the kernel's word.
struct Peer {
  int64_t pid = 0;
  int64_t uid = 0;
};

using HostFactory = std::function<std::unique_ptr<TurnHost>()>;

// A card that this agent serves.
struct CardUnit {
  CardInfo info;        // info.index is unique on the node for as long as the agent lives
  Fd lock;              // machine-wide; invalid: another agent has the card
  std::string held_by;  // why it is not ours
  bool lost = false;
  std::optional<uint32_t> policy;  // by set-policy
  uint32_t policy_in_force = 0;
  std::unique_ptr<TurnHost> host;
  std::unique_ptr<TurnKeeper> keeper;
  std::thread keeper_thread;
  CardReading reading;  // the last one
  bool read_once = false;
  int quiet_rounds = 0;              // readings in a row in which the card was much busier than the pages say
  std::map<int64_t, int> strangers;  // pid -> readings in a row
  std::map<int64_t, uint64_t> strangers_within;  // of those: pid -> the grant in whose container it runs
  ~CardUnit();
};

// One card of a grant.
struct GrantCard {
  CardUnit* unit = nullptr;  // nullptr: the card is not there now
  core::Share share;
  std::unique_ptr<SlotWatch> watch = std::make_unique<SlotWatch>();
  std::deque<std::pair<uint64_t, uint64_t>> busy;  // (time, settled busy total), a little over one second
  double utilisation = 0;                          // percent of the card, last second
  uint64_t refused_allocations = 0;
  int64_t tampering = 0;
  uint64_t outside_bytes = 0;  // on the card by processes of the container past its library
  uint64_t overruns_seen = 0;
  bool differs = false;
};

struct Holder {
  ProcessId process;
  Fd pidfd;
};

struct Grant {
  GrantRecord record;
  std::shared_ptr<GrantPages>
      pages;  // nullptr: of a layout this agent cannot read; held as taken until its holders end
  std::vector<GrantCard> cards;
  std::vector<Holder> holders;   // runner first
  uint64_t mount_namespace = 0;  // inode of the runner's own, once it has one; 0: not seen
  uint64_t sequence = 0;         // order in which this agent came by its grants
  bool taken_over = false;
  int probes_to_skip = 0;  // of a pod's grant under which nothing runs
  bool closing = false;    // released by order, waits for its processes
  bool fading = false;     // nobody lives: its compute is given back, its memory when the card frees it
};

class Node {
 public:
  Node(NodeOptions options, Cards& cards, HostFactory hosts);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Directories, cards, the grants that an earlier agent left. Errors are for the user who started the agent.
  Result<void> start();

  Result<GrantAnswer> grant(const Peer& peer, const GrantRequest& request);
  Result<void> release(const Peer& peer, const std::string& grant, bool force);
  Result<void> attach(const Peer& peer, const std::string& grant, int64_t pid);
  Result<GrantStatus> set(const Peer& peer, const SetRequest& request);
  Result<void> set_policy(const Peer& peer, const SetPolicyRequest& request);
  ListAnswer list(const Peer& peer);
  bool is_admin(const Peer& peer) const;
  bool idle();  // no grant

  // Pods (node_pods.cc). The same request again gives the same answer; an id that belongs to another pod or to other
  // cards is an error. kExhausted: the cards have not got that much free (who asks again may succeed later).
  Result<GrantAnswer> grant_for_pod(const PodGrantRequest& request);
  // Closes the grant for new programs and ends it as soon as none runs. No grant of that number: nothing to do.
  void end_pod_grant(uint64_t id);
  std::optional<GrantRecord> record_of(uint64_t id);
  std::vector<GrantRecord> pod_records();
  std::vector<CardFacts> card_facts();
  // The node's compute policy, by its label; absent: by what a card serves. Holds at once; set_policy's goes before it.
  void set_default_policy(std::optional<uint32_t> policy);
  // The most pods per card, by the node's label; only the fair policy divides by it.
  void set_max_grants_per_card(int32_t most);

  // The watchdog's calls.
  void probe(uint64_t now_ns);
  void write_heartbeats(uint64_t now_ns);
  // True: the card should be read soon (somebody's memory is on its way back).
  bool wants_reading(const std::string& uuid);
  // Of some card, because of the dead.
  bool any_waiting();
  using Before = std::unordered_map<uint64_t, SlotImages>;  // by grant id
  Before before_reading(const std::string& uuid);
  void card_read(const std::string& uuid, uint64_t now_ns, uint64_t started_ns, const CardReading& reading,
                 const Before& before);
  void card_failed(const std::string& uuid, const Error& error);
  // Cards as the driver lists them now: new ones are served, lost ones come back. UUIDs that were not known before.
  std::vector<std::string> cards_found(const std::vector<CardInfo>& found);
  bool any_lost();
  std::vector<std::string> card_uuids();  // those that are read

 private:
  struct Choice {
    core::Placement placement;
    core::Kind kind = core::Kind::kNone;
  };
  // node.cc
  void at(NodePoint point) const {
    if (options_.at) options_.at(point);
  }
  Result<Grant*> find_grant(const std::string& text);
  Result<Grant*> find_own_grant(const Peer& peer, const std::string& text);
  CardUnit* unit_of(int32_t index);
  CardUnit* unit_by_uuid(const std::string& uuid);
  core::Kind kind_on(int32_t card_index) const;
  uint32_t policy_for(const CardUnit& unit, core::Kind kind) const;
  void apply_policy(CardUnit& unit);
  Result<Holder> make_holder(const Peer& peer, int64_t pid) const;
  void event(std::string what, std::string text);
  Result<void> write_record(const Grant& grant);
  void end_grant(uint64_t id, std::string_view why);
  void fade_grant(Grant& grant);
  bool any_fading();
  void join_keepers(Grant& grant);
  void leave_keepers(Grant& grant);
  core::ShareRequest share_of(const Grant& grant, const GrantCard& card) const;

  // node_grant.cc
  Result<GrantAnswer> try_grant(const Peer& peer, const GrantRequest& request);
  Result<Choice> choose(const GrantRequest& request);
  Result<std::unique_ptr<Grant>> make_grant(const Peer& peer, const GrantRequest& request, const Choice& choice,
                                            std::vector<std::string>& notes);
  // What the grant page says of a card for as long as nobody changes the share.
  struct PageLimits {
    std::vector<uint8_t> uuid;
    uint32_t index = 0;
    uint64_t card_memory_bytes = 0, context_estimate_bytes = 0, memory_limit_bytes = 0;
    uint32_t policy = 0, weight = 0, flags = 0;
  };
  PageLimits limits_of(const Grant& grant, const GrantCard& card) const;
  void fill_page(Grant& grant);
  GrantAnswer answer_for(const Grant& grant, std::vector<std::string> notes);
  GrantCardAnswer card_answer(const Grant& grant, const GrantCard& card) const;
  Result<void> check_change(const Peer& peer, Grant& grant, const SetRequest& request);
  void apply_shares(Grant& grant, const core::Placement& placement, const GrantRecord& like);
  Result<void> check_memory_change(Grant& grant, int64_t units);

  // node_pods.cc
  Error too_much(const std::vector<GrantCard>& cards, Error otherwise) const;
  Result<std::unique_ptr<Grant>> make_pod_grant(const PodGrantRequest& request);
  Result<GrantAnswer> book(std::unique_ptr<Grant> made, const core::Placement& placement,
                           std::vector<std::string> notes);

  // node_watch.cc
  void probe_grant(Grant& grant, uint64_t now_ns);
  bool holders_alive(Grant& grant);
  void adopt_namespace(Grant& grant);
  void look_at_slots(Grant& grant, size_t card, uint64_t now_ns);
  void clear_slots(Grant& grant, size_t card, const std::vector<uint32_t>& slots);
  void publish(Grant& grant, size_t card);
  void publish_look(Grant& grant, size_t index, uint64_t now_ns);
  void measure_busy(Grant& grant, size_t card, uint64_t now_ns);
  void look_for_strangers(CardUnit& unit, const CardReading& reading);
  void compare_busy(CardUnit& unit, const CardReading& reading);

  // node_mend.cc
  void mend_page(Grant& grant);
  void mend_shares(CardUnit& unit, const std::vector<TurnReport>& reports);
  void grant_page_changed(Grant& grant, size_t card, const std::string& what);

  // node_list.cc
  GrantStatus status_of(const Grant& grant, bool full);
  CardStatus status_of(CardUnit& unit, const Peer& peer);

  // node_takeover.cc
  Result<void> prepare_directories();
  Result<void> serve_card(const CardInfo& info);
  void take_over_grants();
  void take_over(GrantRecord record);
  void remove_leftovers();
  void load_policies();
  Result<void> save_policies();

  NodeOptions options_;
  Cards& cards_source_;
  HostFactory hosts_;
  std::string driver_version_;

  std::mutex mutex_;
  Fd grants_directory_;
  std::string grants_path_, records_path_;
  core::Node core_;                               // what is taken; cards in the order of units_
  std::vector<std::unique_ptr<CardUnit>> units_;  // never removed
  std::map<uint64_t, std::unique_ptr<Grant>> grants_;
  uint64_t grants_made_ = 0;
  std::vector<GrantRecord> waiting_records_;        // their cards are not there
  std::map<std::string, uint32_t> saved_policies_;  // by UUID
  std::deque<Event> events_;
  std::deque<std::pair<uint64_t, std::string>> said_;  // CLOCK_MONOTONIC, text
  std::vector<DriverFile> driver_files_;
};

uint64_t monotonic_ns();

// kInvalid where a memory unit is larger than every card, so that nothing could be asked for. Cards that are smaller
// alone are told to the log.
Result<void> check_unit(const std::vector<CardInfo>& cards, int64_t unit_mib);

}  // namespace sluice::agent
