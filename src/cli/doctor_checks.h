// The links of the chain from driver to page, each with a check that says whether it holds, what was found and how to
// mend it. Checks look and try; they change nothing that lasts. The order is that of the chain: the first broken link
// is usually why the later ones are.
#pragma once

#include <string>
#include <vector>

#include "agent/client.h"
#include "agent/protocol.h"
#include "base/result.h"
#include "cli/link.h"

namespace sluice::cli {

// Inside a grant the machine's chain cannot be seen: the driver is our library there, and mounting is not allowed. One
// note that says so, and what to run instead.
std::vector<Link> check_place(bool inside_a_grant);
std::vector<Link> check_driver();           // where the pair lies, and its names against our table
std::vector<Link> check_device_nodes();     // of the vendor's driver, where it is there
std::vector<Link> check_kernel();           // namespaces, openat2, futex, record locks
std::vector<Link> check_guest_libraries();  // of this installation: there, ours, loadable
std::vector<Link> check_agent(const Result<agent::Client>& client);
std::vector<Link> check_cards(const agent::ListAnswer& list);
// Grant and usage pages of the running grants, where this user may read them.
std::vector<Link> check_pages(const agent::ListAnswer& list);
// The same where no agent answers: what lies in its run directory.
std::vector<Link> check_pages_alone(const std::string& run_directory);

// On a node of a cluster: the kubelet's sockets, the runtime's CDI directory, the agent's plugins.
std::vector<Link> check_kubelet(const std::string& directory, const std::string& cdi_directory);

// Names that the driver exports and the table lacks. Pure; both sorted. Names that programs cannot ask for (not of the
// cu/nvml families) are left out.
std::vector<std::string> unknown_names(const std::vector<std::string>& exported, const std::vector<std::string>& known);

// The sentence for page::RefusalCode; empty for none and for values that are no code.
std::string refusal_text(uint32_t code);

// The folder of our libraries for this program: SLUICE_GUEST_DIR, beside it in a build folder, or as installed.
std::string guest_directory();

}  // namespace sluice::cli
