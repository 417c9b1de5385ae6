// Who uses a card of this node without a grant? The watchdog names pids (it has the card's word and the pages'); here
// they become pods and containers, news for people, and, where the administrator wants it, the list of those to stop.
//
// What is stopped, and what never: under the policy `stop` a process of a pod that keeps using a card past Sluice (its
// own copy of the driver, raw calls, a card got through a privileged container) is killed. Processes outside of pods
// (the administrator's shell, the vendor's services) and pods of exempt namespaces are reported, never stopped.
//
// Pure: processes come in as they were seen, decisions go out. One look per second.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/protocol.h"
#include "node/cgroup.h"
#include "node/pods.h"

namespace sluice::node {

enum class StrangerPolicy { kReport, kStop };

// A pod of this node, with or without a grant.
struct PodOnNode {
  std::string uid;
  std::string name_space;
  std::string name;
  std::map<std::string, std::string> containers;  // name by the runtime's id
};

// One process on one card without a grant.
struct Stranger {
  ProcessSeen process;
  int32_t card_index = 0;
  std::string card_uuid;
  int64_t used_mib = -1;  // -1: the driver does not say
  // Empty: of no pod that is known here.
  std::string name_space;
  std::string pod;
  std::string pod_uid;
  std::string container;
  bool has_grant = false;  // the container has one and goes past it
};

struct StrangerNews {
  enum class Kind { kFound, kStopped, kStays } kind = Kind::kFound;
  Stranger stranger;
  std::string text;  // one sentence, as it stands in the event
};

inline constexpr const char* kStrangerReason = "CardUsedWithoutGrant";  // of the Kubernetes events

struct StrangerOptions {
  StrangerPolicy policy = StrangerPolicy::kReport;
  std::vector<std::string> exempt_namespaces = {"kube-system"};  // reported, never stopped
  int looks_before_stop = 2;  // in a row, one second apart: whoever is just starting or ending is left in peace
};

struct StrangerInput {
  const std::vector<agent::CardStatus>* cards = nullptr;  // Node::list's
  const std::vector<ContainerGrant>* grants = nullptr;
  const std::vector<PodOnNode>* pods = nullptr;
  // nullopt: ended. Asked once per process and look.
  std::function<std::optional<ProcessSeen>(int64_t pid)> look_at;
};

class StrangerWatch {
 public:
  explicit StrangerWatch(StrangerOptions options) : options_(std::move(options)) {}

  struct Found {
    std::vector<Stranger> present;     // for metrics
    std::vector<StrangerNews> news;    // for events, each once
    std::vector<ProcessSeen> to_stop;  // stop_process() each, now
  };
  Found look(const StrangerInput& input);

 private:
  // A process on a card, told from a later one with its pid.
  struct Key {
    int64_t pid;
    uint64_t start_ticks;
    std::string card;
    auto operator<=>(const Key&) const = default;
  };
  struct Known {
    int looks = 0;
    bool told = false;
    int stops = 0;
  };
  bool may_stop(const Stranger& stranger) const;
  void decide(const Stranger& stranger, Known& known, Found& found) const;

  StrangerOptions options_;
  std::map<Key, Known> known_;
};

}  // namespace sluice::node
