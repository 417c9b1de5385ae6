// The private mount namespace in which a command finds its grant and our libraries where it looks for the driver.
//
// Bind mounts, and not an environment variable or a changed file, because nothing the command does to its environment
// moves them and nobody else on the machine sees them. With CAP_SYS_ADMIN a mount namespace is enough; without, a user
// namespace that maps the caller's own uid and gid to themselves gives the right to mount in it, and execve takes that
// right away again. Places that do not exist and that the caller may not create (/run/sluice, /etc/ld.so.preload) are
// made by mounting a tmpfs over their parent with all its old entries bound back. The host's folders are not written,
// but for an empty /run/sluice where root starts the first command of a machine.
#pragma once

#include <string>
#include <vector>

#include "agent/protocol.h"
#include "base/result.h"
#include "cli/driver_files.h"
#include "cli/options.h"

namespace sluice::cli {

struct Bind {
  std::string source;
  std::string target;
  bool operator==(const Bind&) const = default;
};

struct NamespacePlan {
  std::string grant_directory;      // appears read-only at page::kContainerRoot/grant
  std::string usage_file;           // appears read-write at page::kUsagePath
  std::vector<Bind> drivers;        // target: the name in page::kDriverDirectory
  std::vector<Bind> covers;         // source: our library; target: a file by which the driver can be found
  std::vector<Bind> preloads;       // preload delivery; target: the name in page::kContainerRoot/lib
  std::vector<std::string> hidden;  // directories of an agent that the command has no business with
};

// Pure. `found` is what the command's own environment leads to; the agent's answer may know of more. kUnavailable when
// the answer lacks what isolation needs.
Result<NamespacePlan> plan_namespace(const agent::GrantAnswer& grant, const DriverFiles& found, Delivery delivery,
                                     const std::string& agent_directory);

// Makes the namespace around the calling process, which has to be single-threaded and about to exec: on an error it is
// left half-moved and has to exit. kPermission where the kernel does not allow it, with the setting that would.
Result<void> enter_namespace(const NamespacePlan& plan);

// After enter_namespace: takes away what would let the command undo it. Capabilities to mount, to trace others or to
// reach files behind mounts leave all sets including the bounding set; in a user namespace no_new_privs is set
// (set-user-id programs do not work there anyway), as root it is not (they do work, and cannot regain what the bounding
// set lost).
Result<void> drop_privileges();

// What the kernel allows, for doctor: tried in a child process. kPermission with the reason.
Result<void> try_namespace();

}  // namespace sluice::cli
