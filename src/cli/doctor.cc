// `sluice doctor`: runs the checks of the chain and prints them, broken links last and in full.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "agent/run_directory.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/doctor_cluster.h"
#include "cli/exit_codes.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

void append(std::vector<Link>& links, std::vector<Link> more) {
  for (Link& link : more) links.push_back(std::move(link));
}

// Of a cluster or a node's kubelet; in place of the machine's, which need not be a node at all.
std::vector<Link> examine_kubernetes(const DoctorOptions& options) {
  std::vector<Link> links;
  if (!options.kubelet_directory.empty()) links = check_kubelet(options.kubelet_directory, options.cdi_directory);
  if (!options.cluster) return links;
  Result<std::unique_ptr<ClusterReader>> cluster = open_cluster(options.kubeconfig, options.context, kClusterRights);
  if (!cluster)
    links.push_back({"API server", LinkState::kBroken, cluster.error().message,
                     "name the cluster's kubeconfig and context as for kubectl (--kubeconfig, --context)"});
  else
    append(links, check_cluster(**cluster, {.node = options.node}));
  return links;
}

std::vector<Link> examine(const Options& options) {
  if (options.doctor.cluster || !options.doctor.kubelet_directory.empty()) return examine_kubernetes(options.doctor);
  const bool inside = access(page::kGrantPath, F_OK) == 0;
  std::vector<Link> links = check_place(inside);
  if (!inside) {
    append(links, check_driver());
    append(links, check_device_nodes());
    append(links, check_kernel());
    append(links, check_guest_libraries());
  }
  Result<agent::Client> client = connect(options);
  if (inside && !client) return links;  // of a pod: the agent is the node's
  append(links, check_agent(client));
  if (!client) {
    const char* variable = getenv("SLUICE_RUN_DIR");
    std::string directory = options.run_directory.empty() && variable != nullptr ? variable : options.run_directory;
    append(links, check_pages_alone(directory.empty() ? agent::default_run_directory() : directory));
    return links;
  }
  auto list = client->list();
  if (!list) {
    links.push_back({"agent: list", LinkState::kBroken, list.error().message, "restart the agent"});
    return links;
  }
  append(links, check_cards(*list));
  append(links, check_pages(*list));
  return links;
}

}  // namespace

int doctor(const Options& options) {
  const std::vector<Link> links = examine(options);
  const size_t broken = count_broken(links);
  if (options.json) {
    fputs(json::to_pretty_string(to_json(links)).c_str(), stdout);
    return broken == 0 ? kExitOk : kExitBroken;
  }
  for (const Link& link : links) {
    fmt::print("{:<6}  {}: {}\n", to_string(link.state), link.name, link.found);
    if (!link.mend.empty()) fmt::print("        mend: {}\n", link.mend);
  }
  if (broken == 0) {
    const bool inside = !links.empty() && links.front().name == "place";
    fmt::print("\n{}\n", inside ? "what can be seen from in here holds" : "all links hold");
  } else {
    fmt::print("\n{} broken link{}; the first one is usually why the others are\n", broken, broken == 1 ? "" : "s");
  }
  return broken == 0 ? kExitOk : kExitBroken;
}

}  // namespace sluice::cli
