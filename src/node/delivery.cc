#include "node/delivery.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/json.h"
#include "page/driver_names.h"
#include "page/grant.h"

namespace sluice::node {
namespace {

// The folders that the loaders of glibc images (Debian's and Red Hat's layout) and of musl search without being told.
// A file that an image brings there itself, or a link that leads to one, is covered with it.
constexpr std::array<const char*, 3> kLibraryFolders{"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"};
struct Library {
  const char* soname;
  const char* plain;  // the name that programs open when they do not know the version
};
constexpr std::array<Library, 2> kLibraries{{{"libcuda.so.1", "libcuda.so"}, {"libnvidia-ml.so.1", "libnvidia-ml.so"}}};

// Where simulated cards are looked for when no variable says otherwise, so that a program without an environment finds
// them too.
constexpr char kSimulatedCards[] = "/var/lib/sluice-sim";

constexpr char kFilePrefix[] = "sluice.dev-grant-";

// Older readers of CDI want a letter first.
std::string device_name(const std::string& slot) {
  return "g" + slot;
}

// The files of the granted cards alone, as a real node gives their device nodes alone. A card's number among them is
// the driver's minor number.
void add_simulated_cards(const std::set<std::string>& nodes, const Driver& driver, ContainerEdits& edits) {
  for (const std::string& node : nodes) {
    const size_t digits = node.find_first_of("0123456789");
    if (digits == std::string::npos) continue;
    for (const char* part : {"", ".contents"}) {
      const std::string name = fmt::format("card{}{}", node.substr(digits), part);
      edits.mounts.push_back(
          {fmt::format("{}/{}", driver.state_on_node, name), fmt::format("{}/{}", kSimulatedCards, name), false});
    }
  }
}

}  // namespace

ContainerEdits plan_edits(const Delivery& delivery, const Driver& driver) {
  ContainerEdits edits;
  if (delivery.guest) {
    edits.mounts.push_back({delivery.grant_directory, fmt::format("{}/grant", page::kContainerRoot), true});
    edits.mounts.push_back({delivery.usage_file, page::kUsagePath, false});
  }
  for (const Library& library : kLibraries) {
    const std::string& real = library.soname == kLibraries[0].soname ? driver.cuda : driver.nvml;
    const std::string ours = fmt::format("{}/{}", delivery.libraries, library.soname);
    if (delivery.guest)
      edits.mounts.push_back(
          {real, fmt::format("{}/{}", page::kDriverDirectory, page::real_driver_name(library.soname)), true});
    for (const char* folder : kLibraryFolders) {
      for (const char* name : {library.soname, library.plain})
        edits.mounts.push_back({delivery.guest ? ours : real, fmt::format("{}/{}", folder, name), true});
    }
  }
  edits.mounts.insert(edits.mounts.end(), driver.others.begin(), driver.others.end());
  std::set<std::string> nodes(delivery.more_nodes.begin(), delivery.more_nodes.end());
  std::string uuids, indexes;
  for (const DeliveredCard& card : delivery.cards) {
    uuids += (uuids.empty() ? "" : ",") + card.uuid;
    indexes += (indexes.empty() ? "" : ",") + std::to_string(card.index);
    if (!card.device_node.empty()) nodes.insert(card.device_node);
  }
  if (nodes.empty()) return edits;
  if (driver.simulated) {
    add_simulated_cards(nodes, driver, edits);
  } else {
    edits.device_nodes.assign(nodes.begin(), nodes.end());
    edits.device_nodes.insert(edits.device_nodes.end(), driver.controls.begin(), driver.controls.end());
  }
  if (delivery.cards.empty()) return edits;
  edits.environment["NVIDIA_VISIBLE_DEVICES"] = uuids;
  if (delivery.pod_units > 0) {
    edits.environment["ALIYUN_COM_GPU_MEM_DEV"] = std::to_string(delivery.cards.front().card_units);
    edits.environment["ALIYUN_COM_GPU_MEM_CONTAINER"] = std::to_string(delivery.cards.front().units);
    edits.environment["ALIYUN_COM_GPU_MEM_POD"] = std::to_string(delivery.pod_units);
    edits.environment["ALIYUN_COM_GPU_MEM_IDX"] = indexes;
  }
  return edits;
}

std::string cdi_spec(const std::string& slot, const ContainerEdits& edits) {
  json::Object container;
  json::Array env, mounts, nodes;
  for (const auto& [name, value] : edits.environment) env.push_back(json::Value(fmt::format("{}={}", name, value)));
  for (const DriverMount& mount : edits.mounts) {
    json::Array options{mount.read_only ? "ro" : "rw", "nosuid", "nodev", "rbind", "rprivate"};
    mounts.push_back(json::Object{
        {"hostPath", mount.host_path}, {"containerPath", mount.container_path}, {"options", std::move(options)}});
  }
  for (const std::string& path : edits.device_nodes) nodes.push_back(json::Object{{"path", path}});
  // CDI wants at least one edit in a device; there are always mounts.
  container["mounts"] = std::move(mounts);
  if (!env.empty()) container["env"] = std::move(env);
  if (!nodes.empty()) container["deviceNodes"] = std::move(nodes);
  json::Array devices{json::Object{{"name", device_name(slot)}, {"containerEdits", std::move(container)}}};
  return json::to_string(json::Object{{"cdiVersion", "0.3.0"}, {"kind", kCdiKind}, {"devices", std::move(devices)}});
}

std::string cdi_device(const std::string& slot) {
  return fmt::format("{}={}", kCdiKind, device_name(slot));
}

std::string cdi_file_name(const std::string& slot) {
  return fmt::format("{}{}.json", kFilePrefix, slot);
}

std::string slot_of_cdi_file(const std::string& name) {
  constexpr size_t kSlotDigits = 16;
  const std::string prefix = kFilePrefix;
  if (name.size() != prefix.size() + kSlotDigits + 5 || !name.starts_with(prefix) || !name.ends_with(".json"))
    return "";
  const std::string slot = name.substr(prefix.size(), kSlotDigits);
  return slot.find_first_not_of("0123456789abcdef") == std::string::npos ? slot : "";
}

ContainerAnswer to_answer(const ContainerEdits& edits) {
  ContainerAnswer answer;
  answer.environment = edits.environment;
  for (const DriverMount& mount : edits.mounts)
    answer.mounts.push_back({mount.container_path, mount.host_path, mount.read_only});
  for (const std::string& path : edits.device_nodes) answer.device_nodes.push_back({path, path, "rw"});
  return answer;
}

}  // namespace sluice::node
