// Our guest libraries where containers can have them mounted from: in the state directory on the node, in a folder per
// build, so that an agent of a new version leaves the files of running containers as they are.
#pragma once

#include <set>
#include <string>

#include "base/result.h"

namespace sluice::node {

// Copies the libraries of `from` to state_directory/lib/<build>/ unless they are there, and returns that folder.
// <build> is made from the files' content.
Result<std::string> install_libraries(const std::string& from, const std::string& state_directory);

// Removes folders of other builds that nobody names any more. (A running container has its files mounted and keeps
// them.)
void remove_old_libraries(const std::string& state_directory, const std::set<std::string>& in_use);

}  // namespace sluice::node
