// sluice-agent without Kubernetes: options, start, the wait for its end. Everything else is in the classes it puts
// together.
#include "agent/standalone.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>

#include "agent/card_lock.h"
#include "agent/metrics.h"
#include "agent/node.h"
#include "agent/nvml_cards.h"
#include "agent/process.h"
#include "agent/run_directory.h"
#include "agent/server.h"
#include "agent/start_agent.h"
#include "agent/turn_host.h"
#include "agent/version.h"
#include "agent/watchdog.h"
#include "base/log.h"
#include "base/output.h"

namespace sluice::agent {
namespace {

constexpr int kLeavingAgentMs = 5000;  // how long a leaving agent of the same directory is waited for

struct Options {
  NodeOptions node;
  std::string metrics;
  std::string order = "binpack";
  int idle_seconds = 10;
  int ready_fd = -1;
  bool debug = false;
};

// build/<preset>/guest beside bin, or lib/sluice of an installation.
std::string default_guest_directory() {
  if (const char* variable = std::getenv("SLUICE_GUEST_DIR"); variable != nullptr) return variable;
  std::array<char, PATH_MAX> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return "";
  std::string bin = std::string(self.data()).substr(0, std::string(self.data()).find_last_of('/'));
  for (const char* place : {"/../guest", "/../lib/sluice", "/../lib/x86_64-linux-gnu/sluice"}) {
    if (::access((bin + place + "/libcuda.so.1").c_str(), R_OK) == 0) return bin + place;
  }
  return "";
}

void declare_options(CLI::App& app, Options& options) {
  app.set_version_flag("--version", std::string("sluice-agent ") + kVersion);
  app.add_option(
      "--run-dir", options.node.run_directory,
      "socket, locks, records and pages (SLUICE_RUN_DIR; /run/sluice for root, else $XDG_RUNTIME_DIR/sluice)");
  app.add_option("--driver-dir", options.node.driver_directory,
                 "folder of the driver's libraries; searched for otherwise");
  app.add_option("--guest-dir", options.node.guest_directory,
                 "folder of Sluice's libraries for programs (SLUICE_GUEST_DIR)");
  app.add_option("--memory-unit-mib", options.node.unit_mib, "memory unit of requests, MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-grants-per-card", options.node.max_grants_per_card, "0 = no limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--card-order", options.order, "which card first")
      ->capture_default_str()
      ->check(CLI::IsMember({"binpack", "spread"}));
  app.add_flag("--mixed", options.node.mixed, "let memory-only requests share what compute is left beside capped ones");
  app.add_flag("--allow-priority", options.node.allow_priority, "honour weight and high priority of every user");
  app.add_option("--idle-seconds", options.idle_seconds, "leave after this long without grants and callers; 0 = stay")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
  app.add_option("--metrics", options.metrics,
                 "serve Prometheus metrics at IP:PORT, as 127.0.0.1:9401; implies staying");
  app.add_option("--card-lock-dir", options.node.card_lock_directory,
                 "where a card's one arbiter is settled, machine-wide");
  app.add_option("--ready-fd", options.ready_fd, "report readiness to this descriptor")->group("");
  app.add_flag("--debug", options.debug, "more log lines");
  app.footer(
      "Exit codes: 0 done, 1 cannot serve, 2 wrong usage, 3 another agent serves the directory or the cards.\n"
      "With --kubernetes it serves a Kubernetes node and takes other options: sluice-agent --kubernetes --help");
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// The parts of a running agent, in the order in which they start; they stop in the other.
class Agent {
 public:
  explicit Agent(Options options) : options_(std::move(options)) {}

  Result<void> start() {
    Result<Fd> directory = open_run_directory(options_.node.run_directory);
    if (!directory) return std::move(directory.error());
    directory_ = std::move(*directory);
    Result<Fd> lock = lock_as_the_agent(directory_.get(), options_.node.run_directory, kLeavingAgentMs);
    if (!lock) return std::move(lock.error());
    lock_ = std::move(*lock);
    Result<std::unique_ptr<Cards>> cards = open_nvml_cards(options_.node.driver_directory);
    if (!cards) return std::move(cards.error());
    cards_ = std::move(*cards);
    node_ = std::make_unique<Node>(options_.node, *cards_, [] { return std::make_unique<LinuxTurnHost>(); });
    Result<void> started = node_->start();
    if (!started) return started;
    WatchdogOptions watchdog;
    watchdog.directories = {options_.node.run_directory};
    watchdog_ = std::make_unique<Watchdog>(*node_, *cards_, std::move(watchdog));
    watchdog_->start();
    stop_event_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ServerOptions server;
    server.directory = directory_.get();
    server.run_directory = options_.node.run_directory;
    server.all_users = ::geteuid() == 0;
    server_ = std::make_unique<Server>(server, *node_, [this] { ::eventfd_write(stop_event_.get(), 1); });
    if (!options_.metrics.empty()) {
      const Peer self{::getpid(), static_cast<int64_t>(::geteuid())};
      Result<void> serving = metrics_.start(
          options_.metrics, [this, self, host = host_name()] { return metrics_text(node_->list(self), host); });
      if (!serving) return serving;
    }
    return server_->start();
  }

  // Returns at a signal, at a shutdown request, or when nobody has needed the agent for its grace.
  void wait(int signals) {
    const bool stays = options_.idle_seconds == 0 || !options_.metrics.empty();
    int idle_ms = 0;
    constexpr int kStepMs = 100;
    while (true) {
      pollfd waiting[2] = {{signals, POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
      int ready = ::poll(waiting, 2, stays ? -1 : kStepMs);
      if (ready < 0 && errno == EINTR) continue;
      if (ready != 0) {
        log::info("the agent ends; running programs keep their caps");
        return;
      }
      idle_ms = server_->idle() && node_->idle() ? idle_ms + kStepMs : 0;
      if (idle_ms >= options_.idle_seconds * 1000 && server_->leave_if_idle()) {
        log::info("nobody needs the agent; it leaves");
        return;
      }
    }
  }

  ~Agent() {
    if (server_) server_->stop();
    metrics_.stop();
    if (watchdog_) watchdog_->stop();
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

 private:
  Options options_;
  Fd directory_;
  Fd lock_;  // released last: the next agent starts when everything else is gone
  std::unique_ptr<Cards> cards_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Watchdog> watchdog_;
  Fd stop_event_;
  std::unique_ptr<Server> server_;
  MetricsServer metrics_;
};

}  // namespace

int run_standalone(int argc, char** argv) {
  Options options;
  CLI::App app{"One per machine: hands out shares of its GPU cards and holds programs to them."};
  declare_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finish_output("sluice-agent", app.exit(error) == 0 ? 0 : kExitUsage);
  }
  if (Result<void> fine = options.metrics.empty() ? Result<void>() : check_listen_address(options.metrics); !fine) {
    fmt::print(stderr, "sluice-agent: --metrics {}\n", fine.error().message);
    return kExitUsage;
  }
  if (options.debug) log::set_level(log::Level::kDebug);
  if (options.ready_fd >= 0) ::fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  options.node.card_order = options.order == "spread" ? core::CardOrder::kSpread : core::CardOrder::kBinpack;
  if (const char* variable = std::getenv("SLUICE_RUN_DIR"); options.node.run_directory.empty() && variable != nullptr) {
    options.node.run_directory = variable;
  }
  if (options.node.run_directory.empty()) options.node.run_directory = default_run_directory();
  if (options.node.guest_directory.empty()) options.node.guest_directory = default_guest_directory();
  if (options.node.card_lock_directory.empty()) options.node.card_lock_directory = default_card_lock_directory();

  const sigset_t ends = prepare_process();
  Fd signals(::signalfd(-1, &ends, SFD_CLOEXEC));

  Agent agent(options);
  Result<void> started = agent.start();
  if (!started) {
    report_failure(options.ready_fd, started.error());
    return cannot_serve(started.error());
  }
  log::info("the agent is ready", {{"run_dir", options.node.run_directory}, {"pid", ::getpid()}, {"uid", ::geteuid()}});
  report_ready(options.ready_fd);
  agent.wait(signals.get());
  return 0;
}

}  // namespace sluice::agent
