// `sluice doctor --kubelet-dir`: what stands between the kubelet of this node and the agent's device plugins. Looked at
// from the node or from inside the agent's pod, which has these folders mounted under the same paths.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "agent/run_directory.h"
#include "base/files.h"
#include "base/json_find.h"
#include "cli/doctor_checks.h"
#include "core/request.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxCheckpointBytes = 16 << 20;
constexpr const char* kRestartAgent =
    "see the logs of the agent's pod on this node (kubectl -n sluice-system logs); a restart of it registers again";

// Somebody listens there.
Link check_socket(const std::string& name, const std::string& directory, const std::string& file,
                  const std::string& mend) {
  const std::string path = directory + "/" + file;
  Fd folder(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  Result<int> socket = folder.valid() ? agent::connect_socket(folder.get(), file)
                                      : Result<int>(errno_error("cannot open", directory, errno));
  if (!socket) {
    if (socket.error().code == ErrorCode::kPermission)
      return {name, LinkState::kNote, path + ": only root may ask", "run sluice doctor as root"};
    return {name, LinkState::kBroken, fmt::format("{}: {}", path, socket.error().message), mend};
  }
  ::close(*socket);
  return {name, LinkState::kHolds, path + " answers", ""};
}

Link check_cdi_directory(const std::string& directory) {
  Link link{"CDI directory", LinkState::kHolds, directory + " is there", ""};
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return {link.name, LinkState::kBroken, fmt::format("{}: there is no such directory", directory),
            "name the one that the container runtime reads (--cdi-dir; of the agent too), /var/run/cdi as a rule, and "
            "see that the runtime has CDI switched on"};
  }
  if (::access(directory.c_str(), W_OK) != 0) {
    const bool user = ::geteuid() != 0;
    return {
        link.name, user ? LinkState::kNote : LinkState::kBroken,
        fmt::format("{} cannot be written: {}", directory, std::strerror(errno)),
        user ? "run sluice doctor as root" : "mount it writable into the agent's pod (deploy/manifests/agent.yaml)"};
  }
  return link;
}

// The kubelet's own file of what is registered (no promised interface: one that cannot be understood says nothing).
Link check_registered(const std::string& plugins) {
  const std::string name = "registered plugin";
  const std::string path = plugins + "/kubelet_internal_checkpoint";
  Result<std::string> text = read_file(path, kMaxCheckpointBytes);
  Result<json::Value> value = text ? json::parse(*text) : Result<json::Value>(std::move(text.error()));
  const json::Object* root = value ? value->if_object() : nullptr;
  const json::Object* data = root != nullptr ? json::find_object(*root, "Data") : nullptr;
  if (data == nullptr)
    return {name, LinkState::kNote, fmt::format("{} cannot be read as the kubelet writes it", path),
            "kubectl describe node shows whether aliyun.com/gpu-mem is in allocatable"};
  const json::Object* devices = json::find_object(*data, "RegisteredDevices");
  const json::Array* units = devices != nullptr ? json::find_array(*devices, core::kResourceMemory) : nullptr;
  if (units == nullptr || units->empty())
    return {name, LinkState::kBroken, fmt::format("the kubelet has no device of {}", core::kResourceMemory),
            kRestartAgent};
  return {name, LinkState::kHolds, fmt::format("{} devices of {}", units->size(), core::kResourceMemory), ""};
}

}  // namespace

std::vector<Link> check_kubelet(const std::string& directory, const std::string& cdi_directory) {
  const std::string plugins = directory + "/device-plugins";
  struct stat status{};
  if (::stat(plugins.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return {{"kubelet", LinkState::kBroken, fmt::format("{}: there is no such directory", plugins),
             "name the kubelet's --root-dir (--kubelet-dir; of the agent too); in a pod it has to be mounted there"}};
  }
  std::vector<Link> links;
  links.push_back(check_socket("kubelet.sock", plugins, "kubelet.sock",
                               "the kubelet does not run, or has another --root-dir: systemctl status kubelet"));
  links.push_back(
      check_socket("pod-resources", directory + "/pod-resources", "kubelet.sock",
                   "the kubelet serves it from 1.28 on by default (KubeletPodResources); it may be starting"));
  links.push_back(check_cdi_directory(cdi_directory));
  size_t sockets = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(plugins, failed)) {
    const std::string file = entry.path().filename();
    if (!file.starts_with("sluice-") || !file.ends_with(".sock")) continue;
    ++sockets;
    links.push_back(check_socket("plugin", plugins, file, kRestartAgent));
  }
  if (sockets == 0)
    links.push_back({"plugin", LinkState::kBroken, fmt::format("no plugin of Sluice has its socket in {}", plugins),
                     "the agent does not offer anything here: see the node's conditions and the agent's log"});
  links.push_back(check_registered(plugins));
  return links;
}

}  // namespace sluice::cli
