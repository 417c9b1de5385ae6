// `sluice run`: from options or manifest to a grant, from the grant to a namespace, from there to the command.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "agent/client.h"
#include "base/files.h"
#include "cli/card_descriptors.h"
#include "cli/commands.h"
#include "cli/driver_files.h"
#include "cli/exit_codes.h"
#include "cli/manifest.h"
#include "cli/namespace.h"
#include "cli/process.h"
#include "cli/request.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr int kGiveBackMs = 500;
constexpr int kAskAgain = 3;
constexpr size_t kManifestBytesMax = 4u << 20;

Result<std::string> read_manifest(const std::string& path) {
  if (path != "-") return read_file(path, kManifestBytesMax);
  std::string text;
  char buffer[65536];
  while (const size_t length = fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, length);
    if (text.size() > kManifestBytesMax) return invalid("the manifest on standard input is longer than 4 MiB");
  }
  return text;
}

void note(const RunOptions& options, const std::string& sentence) {
  if (!options.quiet) fmt::print(stderr, "sluice run: {}\n", sentence);
}

Result<JobSpec> find_job(const RunOptions& options) {
  if (options.manifest.empty()) return job_from_options(options);
  auto text = read_manifest(options.manifest);
  if (!text) return std::move(text).error();
  auto job = parse_manifest(*text, options.job);
  if (!job) return std::move(job).error().wrap(options.manifest);
  if (!job->ignored.empty()) {
    note(options, fmt::format("left aside, as the command runs on this machine and in no container: {}",
                              fmt::join(job->ignored, ", ")));
  }
  return job;
}

// The LD_LIBRARY_PATH that the command will see.
std::string library_path(const Command& command) {
  const char* inherited = getenv("LD_LIBRARY_PATH");
  std::string path = inherited == nullptr ? "" : inherited;
  for (const auto& [name, value] : command.environment) {
    if (name == "LD_LIBRARY_PATH") path = value;
  }
  return path;
}

Result<NamespacePlan> plan(const agent::Client& client, const agent::GrantAnswer& grant, const Command& command,
                           Delivery delivery) {
  DriverSearch search;
  search.library_path = library_path(command);
  search.folders = default_driver_folders();
  for (const agent::DriverFile& file : grant.driver_files) search.own_files.push_back(file.guest_path);
  return plan_namespace(grant, find_driver_files(search), delivery, client.run_directory());
}

// An agent that ends between its hello and its answer is replaced, and asked again. Its successor keeps what was
// written down, perhaps this very grant, which nobody has seen yet.
Result<agent::GrantAnswer> ask(const Options& options, agent::Client& client, const agent::GrantRequest& request) {
  auto grant = client.grant(request);
  for (int again = 0; !grant && client.hung_up() && again < kAskAgain; ++again) {
    auto next = connect(options, true);
    if (!next) return std::move(next).error();
    client = std::move(*next);
    if (auto list = client.list(); list) {
      for (const agent::GrantStatus& left : list->grants) {
        if (left.runner_pid == getpid()) static_cast<void>(client.release(left.id, true));
      }
    }
    grant = client.grant(request);
  }
  return grant;
}

// Tells the agent that the command has ended, so that the next command need not wait until it notices. Processes left
// behind keep the grant, and an agent that does not answer finds out by itself.
void give_back(const std::string& agent_directory, const std::string& grant) {
  agent::ConnectOptions how;
  how.run_directory = agent_directory;
  how.timeout_ms = kGiveBackMs;
  if (auto client = agent::Client::connect(how); client) static_cast<void>(client->release(grant));
}

}  // namespace

int run(const Options& options) {
  if (access(page::kGrantPath, F_OK) == 0) {
    return fail("run",
                invalid("this is already the inside of a sluice run, whose limits hold for everything started here; "
                        "leave out the inner sluice run"));
  }
  auto job = find_job(options.run);
  if (!job) return fail("run", job.error());
  auto request = grant_request(*job, options.run);
  if (!request) return fail("run", request.error());
  if (request->name.empty()) request->name = default_name(job->command[0], getpid());
  auto client = connect(options, true);
  if (!client) return fail("run", client.error());
  auto grant = ask(options, *client, *request);
  if (!grant) return fail("run", grant.error());
  for (const std::string& sentence : grant->notes) note(options.run, sentence);

  Command command{.arguments = job->command, .environment = job->env, .working_directory = job->working_directory};
  std::copy(grant->environment.begin(), grant->environment.end(), std::back_inserter(command.environment));
  Result<NamespacePlan> space = NamespacePlan{};
  if (grant->isolate) space = plan(*client, *grant, command, options.run.delivery);
  if (!space) return fail("run", space.error());

  const auto prepare = [&]() -> Result<void> {
    const char* simulated = getenv("SLUICE_SIM_DIR");
    leave_cards_to_the_caller(simulated == nullptr ? "" : simulated);
    if (!grant->isolate) return {};
    if (auto entered = enter_namespace(*space); !entered) return entered;
    return drop_privileges();
  };
  // With the command attached too, a killed runner takes nothing away from it. A command that has ended already cannot
  // be attached, which is no fault. The grant needs no connection from then on, and the agent has only so many.
  const auto started = [&](pid_t pid) {
    static_cast<void>(client->attach(grant->id, pid));
    client = Error{};
  };
  const std::string agent_directory = client->run_directory();
  const Outcome outcome = run_command(command, prepare, started);
  give_back(agent_directory, grant->id);
  if (!outcome.error.empty()) fmt::print(stderr, "sluice run: {}\n", outcome.error);
  return outcome.status;
}

}  // namespace sluice::cli
