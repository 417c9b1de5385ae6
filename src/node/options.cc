#include "node/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "agent/card_lock.h"
#include "agent/metrics.h"
#include "agent/process.h"
#include "agent/protocol.h"
#include "agent/version.h"
#include "base/output.h"
#include "kube/names.h"

namespace sluice::node {
namespace {

Result<void> check_directories(const Options& o) {
  const std::pair<const char*, const std::string*> paths[] = {
      {"--driver-root", &o.driver_root},       {"--driver-host-root", &o.driver_host_root},
      {"--library-dir", &o.library_directory}, {"--state-dir", &o.state_directory},
      {"--run-dir", &o.run_directory},         {"--kubelet-dir", &o.kubelet_directory},
      {"--cdi-dir", &o.cdi_directory},         {"--card-lock-dir", &o.card_lock_directory}};
  for (const auto& [option, path] : paths) {
    // Empty: the root, whose slash has been taken off, or a default that is chosen later.
    if (!path->empty() && path->front() != '/')
      return invalid(fmt::format("{} '{}': expected an absolute path", option, *path));
  }
  // A pod that lacks the mount would otherwise register with nobody, and wait for ever.
  std::error_code failed;
  if (o.clean_up || std::filesystem::is_directory(o.kubelet_directory, failed)) return {};
  return invalid(
      fmt::format("--kubelet-dir '{}': there is no such directory; expected the kubelet's (its --root-dir), in a "
                  "pod mounted at the same path",
                  o.kubelet_directory));
}

// Options that are read as words first.
struct Words {
  std::string delivery = "cdi", stranger = "report", policy;
  bool kubernetes = false;
};

void declare_options(CLI::App& app, Options& o, Words& words) {
  app.set_version_flag("--version", std::string("sluice-agent ") + agent::kVersion);
  app.add_flag("--kubernetes", words.kubernetes, "serve a Kubernetes node");
  app.add_option("--node-name", o.node_name, "this node's name in the cluster (NODE_NAME)");
  app.add_option("--kubeconfig", o.kubeconfig, "how to reach the API server; absent: as the pod's service account");
  app.add_option("--allocation-key", o.allocation_keys,
                 "file with the scheduler's public key (PEM); several while a key is being changed");
  app.add_option("--driver-root", o.driver_root, "root of the node's driver files as the agent sees it")
      ->capture_default_str();
  app.add_option("--driver-host-root", o.driver_host_root, "the same folder's path on the node, where it differs");
  app.add_option("--library-dir", o.library_directory, "Sluice's libraries for containers")->capture_default_str();
  app.add_option("--state-dir", o.state_directory, "kept over reboots; the same path on the node")
      ->capture_default_str();
  app.add_option("--run-dir", o.run_directory, "pages of grants, a tmpfs; the same path on the node")
      ->capture_default_str();
  app.add_option("--kubelet-dir", o.kubelet_directory, "folder of device-plugins/ and pod-resources/")
      ->capture_default_str();
  app.add_option("--cdi-dir", o.cdi_directory, "where the container runtime reads CDI specs")->capture_default_str();
  app.add_option("--delivery", words.delivery, "how containers get their cards; env for runtimes without CDI (weaker)")
      ->check(CLI::IsMember({"cdi", "env"}))
      ->capture_default_str();
  app.add_option("--memory-unit-mib", o.memory_unit_mib, "unit of aliyun.com/gpu-mem, the same in the whole cluster")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--metrics-listen", o.metrics_listen, "IP:PORT of /metrics, /healthz, /readyz; empty: none")
      ->capture_default_str();
  app.add_flag("--whole-cards", o.whole_cards, "offer nvidia.com/gpu too (where no other plugin does)");
  app.add_option("--policy", words.policy, "compute policy of the node's cards by name or number; absent: by mode");
  app.add_flag("--allow-priority", o.allow_priority, "honour ALIYUN_COM_GPU_SCHD_WEIGHT and ALIYUN_COM_GPU_HIGH_PRIO");
  app.add_flag("--allow-disable", o.allow_disable,
               "honour CGPU_DISABLE: containers that set it are given their cards without limits");
  app.add_flag("--mixed", o.mixed, "memory-only pods may share a card with capped ones");
  app.add_option("--stranger", words.stranger, "what is done with processes on a card without a grant")
      ->check(CLI::IsMember({"report", "stop"}))
      ->capture_default_str();
  app.add_option("--stranger-exempt-namespace", o.exempt_namespaces,
                 "with --stranger stop: pods of this namespace are reported, never stopped (repeatable)")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_flag("--no-device-series", o.no_device_series,
               "leave DCGM_FI_DEV_* out of the metrics, where NVIDIA's exporter runs too");
  app.add_option("--card-lock-dir", o.card_lock_directory, "where a card's one arbiter is settled, machine-wide");
  app.add_flag("--clean-up", o.clean_up,
               "remove what an agent has left on this node instead of serving it, then wait to be ended");
  app.add_flag("--force", o.force, "with --clean-up: although pods hold shares");
  app.add_flag("--debug", o.debug, "more log lines");
  app.footer(
      "Exit codes: 0 done, 1 cannot serve (what is only missing, a driver or a key, is waited for, 150 s at most), "
      "2 wrong usage, 3 another agent serves this node.");
}

}  // namespace

Result<void> check_options(const Options& o) {
  if (o.node_name.empty()) return invalid("which node is this? Set --node-name or NODE_NAME");
  if (Result<void> fine = kube::check_subdomain_name("--node-name", o.node_name); !fine) return fine;
  if (o.force && !o.clean_up)
    return invalid(
        "--force goes with --clean-up, which it lets go on although pods hold shares; leave it out to serve");
  for (const std::string& name : o.exempt_namespaces) {
    if (Result<void> fine = kube::check_label_name("--stranger-exempt-namespace", name); !fine) return fine;
  }
  if (!o.metrics_listen.empty()) {
    if (Result<void> fine = agent::check_listen_address(o.metrics_listen); !fine)
      return invalid("--metrics-listen " + fine.error().message);
  }
  return check_directories(o);
}

std::optional<Options> read_options(int argc, char** argv, int& exit_code) {
  Options o;
  Words words;
  if (const char* name = std::getenv("NODE_NAME"); name != nullptr) o.node_name = name;
  CLI::App app{"The node agent of a Kubernetes cluster: offers the node's GPU cards in shares and holds pods to them."};
  declare_options(app, o, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = finish_output("sluice-agent", app.exit(error) == 0 ? 0 : agent::kExitUsage);
    return std::nullopt;
  }
  auto wrong = [&](const std::string& text) {
    fmt::print(stderr, "sluice-agent: {}\n", text);
    exit_code = agent::kExitUsage;
    return std::nullopt;
  };
  if (!words.policy.empty()) {
    Result<uint32_t> number = agent::parse_policy_name(words.policy);
    if (!number) return wrong(number.error().message);
    o.policy = *number;
  }
  o.delivery = words.delivery == "env" ? DeliveryKind::kEnv : DeliveryKind::kCdi;
  o.stop_strangers = words.stranger == "stop";
  if (o.driver_host_root.empty()) o.driver_host_root = o.driver_root;
  for (std::string* path : {&o.driver_root, &o.driver_host_root}) {
    while (!path->empty() && path->back() == '/') path->pop_back();
  }
  if (o.card_lock_directory.empty()) o.card_lock_directory = agent::default_card_lock_directory();
  if (Result<void> fine = check_options(o); !fine) return wrong(fine.error().message);
  return o;
}

}  // namespace sluice::node
