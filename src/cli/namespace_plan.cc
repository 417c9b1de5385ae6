// Which mounts a command needs: from the agent's answer and what the command's own environment leads to. Values only,
// so that every rule about files and names is tested without mounting anything.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/namespace.h"
#include "page/driver_names.h"

namespace sluice::cli {
namespace {

constexpr char kPreloadShim[] = "libsluice-preload.so";

void add_cover(NamespacePlan& plan, const std::string& source, const std::string& target) {
  const bool known =
      std::any_of(plan.covers.begin(), plan.covers.end(), [&](const Bind& b) { return b.target == target; });
  if (!known && source != target) plan.covers.push_back({source, target});
}

const agent::DriverFile* find(const agent::GrantAnswer& grant, DriverLibrary library) {
  const auto file = std::find_if(grant.driver_files.begin(), grant.driver_files.end(),
                                 [&](const agent::DriverFile& f) { return f.soname == soname(library); });
  return file == grant.driver_files.end() ? nullptr : &*file;
}

}  // namespace

Result<NamespacePlan> plan_namespace(const agent::GrantAnswer& grant, const DriverFiles& found, Delivery delivery,
                                     const std::string& agent_directory) {
  NamespacePlan plan;
  plan.grant_directory = grant.grant_directory;
  plan.usage_file = grant.usage_file;
  for (const DriverLibrary library : kDriverLibraries) {
    const agent::DriverFile* file = find(grant, library);
    if (file == nullptr || file->real_path.empty() || file->guest_path.empty()) {
      return unavailable(fmt::format(
          "the agent names no {} to put ours in front of; `sluice doctor` says what is missing", soname(library)));
    }
    plan.drivers.push_back({file->real_path, page::real_driver_name(soname(library))});
    if (delivery == Delivery::kBindMount) {
      for (const std::string& target : file->cover) add_cover(plan, file->guest_path, target);
      for (const DriverFile& other : found.all(library)) add_cover(plan, file->guest_path, other.target);
      add_cover(plan, file->guest_path, file->real_path);
    } else {
      plan.preloads.push_back({file->guest_path, soname(library)});
    }
  }
  if (!plan.preloads.empty()) {
    // Sends what goes round the SONAME (dlopen of "libcuda.so" or of a full path) to ours; lies beside them.
    const std::filesystem::path folder = std::filesystem::path(plan.preloads[0].source).parent_path();
    plan.preloads.push_back({folder / kPreloadShim, kPreloadShim});
  }
  // A user's own agent lives in a folder of that user, where the command could reach its socket, and write the grant
  // page and records that this user's agent has written. /run/sluice is covered anyway; a folder chosen by hand may
  // hold other things, so only what is the agent's is hidden there.
  const bool covered = agent_directory.empty() || agent_directory.starts_with("/run/sluice");
  const std::string last = std::filesystem::path(agent_directory).filename();
  if (!covered && (last == "sluice" || last.starts_with("sluice-"))) {
    plan.hidden.push_back(agent_directory);
  } else if (!covered) {
    for (const char* own : {"/grants", "/records"}) plan.hidden.push_back(agent_directory + own);
  }
  return plan;
}

}  // namespace sluice::cli
