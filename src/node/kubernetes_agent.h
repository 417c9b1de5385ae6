// The agent of a Kubernetes node put together: cards and grants as on any machine, pods and the node object watched,
// the node's face kept as it should be. One thread decides (mode, what is offered, what is written on the node); the
// kubelet's calls come on threads of their own, by way of the process that keeps the kubelet's connection (front.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "agent/metrics.h"
#include "agent/node.h"
#include "agent/server.h"
#include "agent/watchdog.h"
#include "kube/reflector.h"
#include "node/events.h"
#include "node/local_pods.h"
#include "node/neighbours.h"
#include "node/node_report.h"
#include "node/options.h"
#include "node/plugin_link.h"
#include "node/pod_grants.h"
#include "node/strangers.h"

namespace sluice::node {

// The whole program; its exit code.
int run_kubernetes(int argc, char** argv);

// The scheduler's public keys from PEM files, several in one file too; nullopt: no file.
Result<std::optional<kube::Verifier>> load_keys(const std::vector<std::string>& paths);

inline constexpr char kPolicyFile[] = "policy";  // in the state directory: the label's word

class KubernetesAgent final : public kube::ReflectorSink {
 public:
  // front: this process's end of the pair.
  KubernetesAgent(Options options, Fd front);
  ~KubernetesAgent();
  KubernetesAgent(const KubernetesAgent&) = delete;
  KubernetesAgent& operator=(const KubernetesAgent&) = delete;

  Result<void> start();
  // Decides and tends until `stop_fd` is readable or the control socket asks for the end.
  void run(int stop_fd);
  // Offers nothing more, lets what is under way finish, and ends; pods run on under their caps.
  void leave();

 private:
  // The node object (from its watch's thread).
  void replaced(json::Array items) override;
  void changed(json::Value object) override;
  void deleted(json::Value) override {}

  Result<void> open_cards();
  Result<void> open_cluster();
  void poke();  // look again soon
  void decide();
  void renew_keys();
  void decide_mode(const NodeFacts& facts);
  void take_settings(const std::map<std::string, std::string>& labels);
  void use_policy(const std::string& word);
  ReplyMessage answer(const CallMessage& call);
  DeviceLists offers(const std::vector<agent::CardFacts>& cards);
  bool whole_cards_free(const NodeFacts& facts);
  void find_enforce_problem(const NodeFacts& facts, ReportInput& input);
  void write_face(const NodeFacts& facts, const std::vector<agent::CardFacts>& cards);
  bool patch(const std::string& subresource, const json::Object& body);
  void tell_agent_events();
  // observe.cc
  std::vector<PodOnNode> pods_on_node() const;
  std::vector<ContainerGrant> containers();
  void look_at_mounts(const std::vector<ContainerGrant>& grants);
  void observe_loop();
  std::string metrics_text();

  Options options_;
  Fd directory_, lock_;
  std::unique_ptr<agent::Cards> cards_;
  std::unique_ptr<agent::Node> node_;
  std::unique_ptr<agent::Watchdog> watchdog_;
  std::unique_ptr<agent::Server> server_;
  std::unique_ptr<kube::ApiClient> api_;
  std::unique_ptr<Events> events_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<LocalPods> pods_;
  std::unique_ptr<PodRecords> records_;
  std::unique_ptr<PodGrants> grants_;
  std::unique_ptr<PluginLink> plugins_;
  std::unique_ptr<kube::Reflector> pod_watch_, node_watch_;
  agent::MetricsServer metrics_;

  Fd wake_, stop_event_;
  std::mutex mutex_;  // facts_
  std::optional<NodeFacts> facts_;

  // Of the deciding thread alone.
  ModeState mode_;
  size_t memory_ids_ = 0, core_ids_ = 0;  // listed so far
  std::vector<std::string> whole_ids_;
  bool leaving_ = false;
  std::string policy_word_;  // of the node's label, as last seen
  std::string said_waiting_, offer_problem_, foreign_plugin_;
  std::chrono::steady_clock::time_point next_patch_{};
  std::chrono::milliseconds patch_backoff_{0};
  int64_t last_event_ms_ = 0;
  std::chrono::steady_clock::time_point keys_read_at_{};
  std::atomic<bool> ready_{false};
  std::atomic<core::NodeMode> mode_shown_{core::NodeMode::kDefault};
  std::atomic<uint64_t> registrations_{0};

  std::mutex observe_mutex_;
  std::condition_variable observe_wake_;
  bool observe_stop_ = false;
  std::vector<Stranger> strangers_;
  std::map<std::string, bool> mounted_;  // running containers by id: whether the grant is mounted in them
  std::thread observer_;
};

}  // namespace sluice::node
