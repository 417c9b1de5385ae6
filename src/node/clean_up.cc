#include "node/clean_up.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <vector>

#include "agent/metrics.h"
#include "agent/run_directory.h"
#include "base/files.h"
#include "base/log.h"
#include "kube/api_client.h"
#include "node/delivery.h"
#include "node/local_pods.h"
#include "node/node_report.h"

namespace sluice::node {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxNamed = 5;

// Our own mounts below a path, the innermost first. What is mounted at the path itself stays: in a pod it is the node's
// folder, and without it nothing of the node could be reached.
std::vector<std::string> mounts_below(const std::string& path) {
  std::vector<std::string> found;
  std::ifstream mounts("/proc/self/mounts");
  std::string device, target, rest;
  while (mounts >> device >> target && std::getline(mounts, rest)) {
    if (device.starts_with("sluice") && target.starts_with(path + "/")) found.push_back(target);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return found;
}

Result<void> clear_directory(const std::string& path) {
  for (const std::string& target : mounts_below(path)) {
    if (::umount2(target.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 && errno != EINVAL)
      log::warning("cannot unmount", {{"path", target}, {"errno", errno}});
  }
  std::error_code code;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, code)) {
    std::error_code failed;
    fs::remove_all(entry.path(), failed);
    if (failed) return unavailable(fmt::format("cannot remove {}: {}", entry.path().string(), failed.message()));
  }
  return {};
}

Result<void> clear_node_object(const Options& options) {
  Result<kube::Endpoint> endpoint = kube::find_endpoint(options.kubeconfig, "");
  if (!endpoint) return std::move(endpoint.error());
  kube::ApiClient api(std::move(*endpoint));
  const kube::ApiAnswer node = api.get(kube::node_path(options.node_name));
  if (node.status == 404) return {};
  if (!node.ok() || !node.body.is_object()) return node.to_error("node");
  const NodePatches patches = plan_patches(read_node(node.body.get_object()).face, NodeFace{}, "");
  struct Part {
    const std::optional<json::Object>* body;
    const char* subresource;
  };
  for (const Part& part : {Part{&patches.object, ""}, Part{&patches.status, "status"}}) {
    if (!*part.body) continue;
    const kube::ApiAnswer answer =
        api.patch(kube::node_path(options.node_name, part.subresource), kube::PatchKind::kStrategicMerge, **part.body);
    if (!answer.ok()) return answer.to_error("node");
  }
  return {};
}

Result<void> check_no_pods(const Options& options) {
  Result<kube::Endpoint> endpoint = kube::find_endpoint(options.kubeconfig, "");
  if (!endpoint) return std::move(endpoint.error());
  kube::ApiClient api(std::move(*endpoint));
  const kube::ApiAnswer pods =
      api.get("/api/v1/pods?fieldSelector=" + kube::url_encode("spec.nodeName=" + options.node_name));
  if (!pods.ok() || !pods.body.is_object()) return pods.to_error("pods");
  const json::Value* items = pods.body.get_object().if_contains("items");
  std::string names;
  size_t count = 0;
  if (items == nullptr || !items->is_array()) return invalid("the API server's list of pods has no items");
  for (const json::Value& item : items->get_array()) {
    Result<LocalPod> pod = decode_local_pod(item);
    if (!pod || pod->pod.terminal() || pod->kind() == PodKind::kNone) continue;
    if (pod->kind() == PodKind::kWhole && !options.whole_cards) continue;  // another plugin's
    if (++count <= kMaxNamed) names += (names.empty() ? "" : ", ") + pod->pod.full_name();
  }
  if (count == 0) return {};
  if (count > kMaxNamed) names += fmt::format(" and {} more", count - kMaxNamed);
  return Error{
      ErrorCode::kExists,
      fmt::format("pods on this node hold shares of its cards: {}; drain the node first, or say --force", names)};
}

}  // namespace

Result<void> clean_up(const Options& options) {
  std::error_code code;
  if (fs::exists(options.run_directory, code)) {
    Result<Fd> directory = agent::open_run_directory(options.run_directory);
    if (!directory) return std::move(directory.error());
    Result<Fd> lock = agent::lock_file(directory->get(), options.run_directory, "agent.lock", 15'000);
    if (!lock) return Error{ErrorCode::kExists, "an agent serves this node; delete its DaemonSet first"};
  }
  if (!options.force) {
    if (Result<void> free = check_no_pods(options); !free) return free;
  }
  if (Result<void> cleared = clear_node_object(options); !cleared) return cleared;
  for (const fs::directory_entry& entry : fs::directory_iterator(options.cdi_directory, code)) {
    if (!slot_of_cdi_file(entry.path().filename()).empty()) fs::remove(entry.path(), code);
  }
  if (Result<void> cleared = clear_directory(options.run_directory); !cleared) return cleared;
  if (Result<void> cleared = clear_directory(options.state_directory); !cleared) return cleared;
  log::info("nothing of Sluice is left on this node", {{"node", options.node_name}});
  return {};
}

Result<void> clean_up_and_wait(const Options& options, int stop_fd) {
  std::atomic<bool> done{false};
  agent::MetricsServer answers;
  if (!options.metrics_listen.empty()) {
    Result<void> serving =
        answers.start(options.metrics_listen, [] { return std::string(); }, [&] { return done.load(); });
    if (!serving) return serving;
  }
  std::string said;
  while (true) {
    if (!done) {
      Result<void> cleared = clean_up(options);
      done = cleared.ok();
      if (!cleared && cleared.error().message != said) {
        said = cleared.error().message;
        log::warning(said);
      }
    }
    pollfd waiting{stop_fd, POLLIN, 0};
    if (::poll(&waiting, 1, done ? -1 : 1000) > 0) return {};
  }
}

}  // namespace sluice::node
