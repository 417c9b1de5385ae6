// The commands that ask a running agent and print: ps, cards, set.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/request.h"
#include "cli/views.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

int print_list(const Options& options, std::string_view verb, std::string (*text)(const agent::ListAnswer&, int64_t)) {
  auto client = connect(options);
  if (!client) return fail(verb, client.error());
  auto list = client->list();
  if (!list) return fail(verb, list.error());
  const std::string out = options.json ? json::to_pretty_string(list->to_json()) : text(*list, std::time(nullptr));
  fputs(out.c_str(), stdout);
  return kExitOk;
}

}  // namespace

int fail(std::string_view verb, const Error& error) {
  fflush(stdout);
  fmt::print(stderr, "sluice {}: {}\n", verb, error.message);
  return exit_code(error.code);
}

Result<agent::Client> connect(const Options& options, bool start) {
  agent::ConnectOptions how;
  how.run_directory = options.run_directory;
  // An agent started from inside a grant would take the grant's view of the card for the machine.
  how.start = start && access(page::kGrantPath, F_OK) != 0;
  auto client = agent::Client::connect(how);
  // Whatever kept an agent from starting, for the caller it is an agent that cannot be had.
  if (!client && client.error().code == ErrorCode::kInternal) client.error().code = ErrorCode::kUnavailable;
  return client;
}

int ps(const Options& options) {
  return print_list(options, "ps", ps_text);
}

// Cards are known to the agent alone, so it is started for the question; it leaves again by itself.
int cards(const Options& options) {
  auto client = connect(options, true);
  if (!client) return fail("cards", client.error());
  auto list = client->list();
  if (!list) return fail("cards", list.error());
  json::Object object = list->to_json();
  const std::string out = options.json ? json::to_pretty_string(object["cards"]) : cards_text(*list);
  fputs(out.c_str(), stdout);
  return list->cards.empty() ? kExitNotFound : kExitOk;
}

int set(const Options& options) {
  if (access(page::kGrantPath, F_OK) == 0) {
    return fail("set", invalid("this is the inside of a sluice run, which does not change limits; "
                               "run sluice set outside of it"));
  }
  auto request = set_request(options.set);
  if (!request) return fail("set", request.error());
  auto client = connect(options);
  if (!client) return fail("set", client.error());
  auto changed = client->set(*request);
  if (!changed) return fail("set", changed.error());
  agent::ListAnswer list;
  list.grants.push_back(*changed);
  if (options.json) {
    json::Object object = list.to_json();
    fputs(json::to_pretty_string(object["grants"].as_array()[0]).c_str(), stdout);
  } else {
    fputs(ps_text(list, std::time(nullptr)).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace sluice::cli
