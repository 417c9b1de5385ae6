// `sluice doctor`: runs the checks of the chain and prints them, broken links last and in full.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/exit_codes.h"

namespace sluice::cli {
namespace {

void append(std::vector<Link>& links, std::vector<Link> more) {
  for (Link& link : more) links.push_back(std::move(link));
}

std::vector<Link> examine(const Options& options) {
  std::vector<Link> links;
  append(links, check_driver());
  append(links, check_device_nodes());
  append(links, check_kernel());
  append(links, check_guest_libraries());
  Result<agent::Client> client = connect(options);
  append(links, check_agent(client));
  if (!client) return links;
  auto list = client->list();
  if (!list) {
    links.push_back({"agent: list", LinkState::kBroken, list.error().message, "restart the agent"});
    return links;
  }
  append(links, check_cards(*list));
  append(links, check_pages(*list));
  return links;
}

json::Value to_json(const std::vector<Link>& links) {
  json::Array array;
  for (const Link& link : links) {
    array.push_back(json::Object{
        {"link", link.name}, {"state", to_string(link.state)}, {"found", link.found}, {"mend", link.mend}});
  }
  return array;
}

}  // namespace

int doctor(const Options& options) {
  const std::vector<Link> links = examine(options);
  size_t broken = 0;
  for (const Link& link : links) broken += link.state == LinkState::kBroken ? 1 : 0;
  if (options.json) {
    fputs(json::to_pretty_string(to_json(links)).c_str(), stdout);
    return broken == 0 ? kExitOk : kExitBroken;
  }
  for (const Link& link : links) {
    fmt::print("{:<6}  {}: {}\n", to_string(link.state), link.name, link.found);
    if (!link.mend.empty()) fmt::print("        mend: {}\n", link.mend);
  }
  if (broken == 0) {
    fmt::print("\nall links hold\n");
  } else {
    fmt::print("\n{} broken link{}; the first one is usually why the others are\n", broken, broken == 1 ? "" : "s");
  }
  return broken == 0 ? kExitOk : kExitBroken;
}

}  // namespace sluice::cli
