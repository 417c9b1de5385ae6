// The driver as containers get it: which files of the node appear where. Read once per container start from the
// driver's root, a folder that holds the node's driver files as the agent sees them ("/host" for a node's "/").
//
// A root with a file `simulated` in it is a simulated card (docs/node-agent.md): its libraries lie in the root itself,
// its cards in state/.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::node {

struct DriverRoot {
  std::string seen;     // as the agent sees it
  std::string on_node;  // the same folder's path on the node
};

// A file of the node and where a container finds it.
struct DriverMount {
  std::string host_path;
  std::string container_path;
  bool read_only = true;
  bool operator==(const DriverMount&) const = default;
};

struct Driver {
  bool simulated = false;
  std::string library_folder;         // of libnvidia-ml.so.1 as the agent sees it, for the agent's own use
  std::string state_folder;           // simulated: of the cards, as the agent sees it
  std::string state_on_node;          // the same on the node
  std::string cuda, nvml;             // the real pair on the node, links resolved
  std::vector<DriverMount> others;    // further files: helper libraries, nvidia-smi
  std::vector<std::string> controls;  // device nodes that every container with a card needs
};

// kNotFound: no driver there; the message names what is missing and where it was looked for.
Result<Driver> find_driver(const DriverRoot& root);

}  // namespace sluice::node
