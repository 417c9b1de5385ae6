// One arbiter per card and machine: a lock named after the card's UUID in a place that every user can reach, whoever's
// agent it is. The kernel drops it when the agent dies.
#pragma once

#include <string>

#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

// /run/lock where every user may create files, else /tmp.
std::string default_card_lock_directory();

// kExists: another agent has the card; the sentence says which one.
Result<Fd> lock_card(const std::string& directory, const std::string& uuid, const std::string& run_directory);

}  // namespace sluice::agent
