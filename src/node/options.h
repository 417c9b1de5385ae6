// What `sluice-agent --kubernetes` can be told. docs/node-agent.md explains each option to who installs it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "node/pod_grants.h"

namespace sluice::node {

struct Options {
  std::string node_name;  // NODE_NAME
  std::string kubeconfig;
  std::vector<std::string> allocation_keys;  // files of public keys, PEM
  std::string driver_root = "/";
  std::string driver_host_root;  // empty: as driver_root
  std::string library_directory = "/usr/lib/sluice";
  std::string state_directory = "/var/lib/sluice";
  std::string run_directory = "/run/sluice";
  std::string kubelet_directory = "/var/lib/kubelet";
  std::string cdi_directory = "/var/run/cdi";
  DeliveryKind delivery = DeliveryKind::kCdi;
  int64_t memory_unit_mib = 1024;
  std::string metrics_listen = "0.0.0.0:9449";
  bool whole_cards = false;
  std::optional<uint32_t> policy;
  bool allow_priority = false;
  bool allow_disable = false;
  bool mixed = false;
  bool stop_strangers = false;
  std::vector<std::string> exempt_namespaces = {"kube-system"};  // whose pods are never stopped
  bool no_device_series = false;
  bool clean_up = false;
  bool force = false;
  bool debug = false;
  std::string card_lock_directory;
};

// What is wrong with the options taken together, one sentence that names the option. Looks at the kubelet's directory
// and at nothing else of the machine.
Result<void> check_options(const Options& options);

// nullopt with an exit code: --help, --version or wrong usage, already answered.
std::optional<Options> read_options(int argc, char** argv, int& exit_code);

}  // namespace sluice::node
