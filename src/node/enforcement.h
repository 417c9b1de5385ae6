// Are a container's limits in force, as far as can be seen from outside of it? The answer behind the metric
// sluice_enforced: not what was asked for, but what holds at this moment.
#pragma once

#include <string>
#include <vector>

#include "agent/protocol.h"
#include "node/pods.h"
#include "node/strangers.h"

namespace sluice::node {

// Empty: they are. Else the first reason why not, one short sentence without numbers that change by themselves.
std::string not_in_force(const ContainerGrant& container, const agent::ListAnswer& node,
                         const std::vector<Stranger>& strangers);

// The agent's own record of the container's grant; nullptr: it has none.
const agent::GrantStatus* grant_status(const ContainerGrant& container, const agent::ListAnswer& node);

}  // namespace sluice::node
