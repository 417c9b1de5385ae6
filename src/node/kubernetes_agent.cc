#include "node/kubernetes_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "agent/nvml_cards.h"
#include "agent/process.h"
#include "agent/run_directory.h"
#include "agent/turn_host.h"
#include "base/log.h"
#include "node/clean_up.h"
#include "node/front.h"
#include "node/libraries.h"

namespace sluice::node {
namespace {

constexpr int kLeavingAgentMs = 15'000;   // an agent of an older version may still be on its way out
constexpr long kTmpfsMagic = 0x01021994;  // linux/magic.h

// Pages of grants lie in memory: a disk would be written ten times a second, and a reboot has to clear them.
Result<void> make_tmpfs(const std::string& path) {
  struct statfs fs{};
  if (::statfs(path.c_str(), &fs) == 0 && fs.f_type == kTmpfsMagic) return {};
  if (::mount("sluice", path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=256m,nr_inodes=64k,mode=0755") == 0)
    return {};
  return errno_error("cannot mount a tmpfs over", path, errno);
}

std::vector<std::string> pems_in(const std::string& text) {
  constexpr std::string_view kBegin = "-----BEGIN";
  std::vector<std::string> out;
  for (size_t at = text.find(kBegin); at != std::string::npos;) {
    const size_t next = text.find(kBegin, at + kBegin.size());
    out.push_back(text.substr(at, next == std::string::npos ? next : next - at));
    at = next;
  }
  return out;
}

}  // namespace

Result<std::optional<kube::Verifier>> load_keys(const std::vector<std::string>& paths) {
  std::vector<std::string> pems;
  for (const std::string& path : paths) {
    Result<std::string> text = read_file(path, 64u << 10);
    if (!text) return std::move(text.error()).wrap("the scheduler's public key");
    std::vector<std::string> more = pems_in(*text);
    if (more.empty())
      return invalid(fmt::format("{}: expected a public key in PEM (-----BEGIN PUBLIC KEY-----)", path));
    pems.insert(pems.end(), more.begin(), more.end());
  }
  if (pems.empty()) return std::optional<kube::Verifier>();
  Result<kube::Verifier> verifier = kube::Verifier::from_pem(pems);
  if (!verifier) return std::move(verifier.error()).wrap("the scheduler's public key");
  return std::optional<kube::Verifier>(std::move(*verifier));
}

KubernetesAgent::KubernetesAgent(Options options, Fd front)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Without the front nothing can be served, and all that has to last is on disk: a new agent may start at once.
  plugins_ = std::make_unique<PluginLink>(std::move(front), [this] { poke(); }, [] { ::_exit(agent::kExitFailed); });
}

ReplyMessage KubernetesAgent::answer(const CallMessage& call) {
  ReplyMessage reply;
  auto keep = [&](auto&& result) {
    reply.done = result.ok();
    if (!result) reply.error = std::move(result.error());
    return reply.done;
  };
  if (call.pre_start) {
    keep(grants_->pre_start(call.resource, call.ids));
  } else if (Result<ContainerAnswer> allocated = grants_->allocate(call.resource, call.ids); keep(allocated)) {
    reply.answer = std::move(*allocated);
  }
  return reply;
}

KubernetesAgent::~KubernetesAgent() {
  {
    std::lock_guard guard(observe_mutex_);
    observe_stop_ = true;
  }
  observe_wake_.notify_all();
  if (observer_.joinable()) observer_.join();
  metrics_.stop();
  plugins_.reset();
  pod_watch_.reset();
  node_watch_.reset();
  if (server_) server_->stop();
  if (watchdog_) watchdog_->stop();
  events_.reset();
}

void KubernetesAgent::poke() {
  ::eventfd_write(wake_.get(), 1);
}

Result<void> KubernetesAgent::open_cards() {
  if (Result<void> made = make_directories(options_.run_directory); !made) return made;
  if (Result<void> mounted = make_tmpfs(options_.run_directory); !mounted) return mounted;
  Result<Fd> directory = agent::open_run_directory(options_.run_directory);
  if (!directory) return std::move(directory.error());
  directory_ = std::move(*directory);
  Result<Fd> lock = agent::lock_as_the_agent(directory_.get(), options_.run_directory, kLeavingAgentMs);
  if (!lock) return std::move(lock.error());
  lock_ = std::move(*lock);
  Result<Driver> driver = find_driver({options_.driver_root, options_.driver_host_root});
  if (!driver) return std::move(driver.error());
  if (driver->simulated) ::setenv("SLUICE_SIM_DIR", driver->state_folder.c_str(), 1);
  Result<std::unique_ptr<agent::Cards>> cards = agent::open_nvml_cards(driver->library_folder);
  if (!cards) return std::move(cards.error());
  cards_ = std::move(*cards);
  agent::NodeOptions node;
  node.run_directory = options_.run_directory;
  node.guest_directory = options_.library_directory;
  node.driver_directory = driver->library_folder;
  node.card_lock_directory = options_.card_lock_directory;
  node.unit_mib = options_.memory_unit_mib;
  node.mixed = options_.mixed;
  node.allow_priority = options_.allow_priority;
  node.pods_only = true;
  node.policy = options_.policy;
  node_ = std::make_unique<agent::Node>(node, *cards_, [] { return std::make_unique<agent::LinuxTurnHost>(); });
  if (Result<void> started = node_->start(); !started) return started;
  agent::WatchdogOptions watchdog;
  watchdog.directories = {options_.run_directory, options_.state_directory};
  watchdog_ = std::make_unique<agent::Watchdog>(*node_, *cards_, std::move(watchdog));
  watchdog_->start();
  agent::ServerOptions server;
  server.directory = directory_.get();
  server.run_directory = options_.run_directory;
  server.all_users = false;  // people reach it through `kubectl exec`, as root
  server_ = std::make_unique<agent::Server>(server, *node_, [this] { ::eventfd_write(stop_event_.get(), 1); });
  return server_->start();
}

Result<void> KubernetesAgent::open_cluster() {
  Result<kube::Endpoint> endpoint = kube::find_endpoint(options_.kubeconfig, "");
  if (!endpoint) return std::move(endpoint.error());
  Result<std::optional<kube::Verifier>> keys = load_keys(options_.allocation_keys);
  if (!keys) return std::move(keys.error());
  keys_read_at_ = std::chrono::steady_clock::now();
  if (!*keys) log::warning("no --allocation-key: no pod can be given a share until there is one");
  Result<std::string> libraries = install_libraries(options_.library_directory, options_.state_directory);
  if (!libraries) return std::move(libraries.error());
  api_ = std::make_unique<kube::ApiClient>(*endpoint);
  events_ = std::make_unique<Events>(*endpoint, options_.node_name);
  neighbours_ = std::make_unique<Neighbours>(*endpoint, options_.node_name);
  pods_ = std::make_unique<LocalPods>([this] { poke(); });
  records_ = open_pod_records(options_.kubelet_directory + "/pod-resources/kubelet.sock");
  PodGrantsOptions grants;
  grants.node_name = options_.node_name;
  grants.state_directory = options_.state_directory;
  grants.run_directory = options_.run_directory;
  grants.cdi_directory = options_.cdi_directory;
  grants.libraries = *libraries;
  grants.driver_root = {options_.driver_root, options_.driver_host_root};
  grants.checkpoint = options_.kubelet_directory + "/device-plugins/" + kCheckpointName;
  grants.delivery = options_.delivery;
  grants.allow_priority = options_.allow_priority;
  grants.allow_disable = options_.allow_disable;
  grants_ = std::make_unique<PodGrants>(grants, *node_, *pods_, *records_, std::move(*keys), events_.get());
  if (Result<void> restored = grants_->restore(); !restored) return restored;
  remove_old_libraries(options_.state_directory, grants_->libraries_in_use());
  plugins_->serve([this](const CallMessage& call) { return answer(call); });
  if (Result<std::string> word = read_file(options_.state_directory + "/mode", 64); word)
    mode_.mode = parse_mode_word(*word);
  if (Result<std::string> word = read_file(options_.state_directory + "/" + kPolicyFile, 64); word && !word->empty())
    use_policy(*word);

  kube::ReflectorOptions pods;
  pods.path = "/api/v1/pods";
  pods.field_selector = "spec.nodeName=" + options_.node_name;
  pods.seed = agent::monotonic_ns();
  pod_watch_ = std::make_unique<kube::Reflector>(*endpoint, pods, *pods_);
  kube::ReflectorOptions node;
  node.path = "/api/v1/nodes";
  node.field_selector = "metadata.name=" + options_.node_name;
  node.seed = agent::monotonic_ns() + 1;
  node_watch_ = std::make_unique<kube::Reflector>(*endpoint, node, *this);
  pod_watch_->start();
  node_watch_->start();
  return {};
}

Result<void> KubernetesAgent::start() {
  if (Result<void> cards = open_cards(); !cards) return cards;
  if (Result<void> cluster = open_cluster(); !cluster) return cluster;
  observer_ = std::thread([this] { observe_loop(); });
  if (options_.metrics_listen.empty()) return {};
  return metrics_.start(options_.metrics_listen, [this] { return metrics_text(); }, [this] { return ready_.load(); });
}

void KubernetesAgent::replaced(json::Array items) {
  for (json::Value& item : items) changed(std::move(item));
}

void KubernetesAgent::changed(json::Value object) {
  if (!object.is_object()) return;
  NodeFacts facts = read_node(object.get_object());
  {
    std::lock_guard guard(mutex_);
    facts_ = std::move(facts);
  }
  poke();
}

void KubernetesAgent::run(int stop_fd) {
  constexpr int kTickMs = 1000;
  constexpr int kSettleMs = 20;  // several changes at once are looked at once
  while (true) {
    decide();
    pollfd waiting[3] = {{stop_fd, POLLIN, 0}, {stop_event_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    const int ready = ::poll(waiting, 3, kTickMs);
    if (ready < 0 && errno != EINTR) return;
    if (((waiting[0].revents | waiting[1].revents) & POLLIN) != 0) return;
    if (ready > 0) ::usleep(kSettleMs * 1000);
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
  }
}

void KubernetesAgent::leave() {
  log::info("the agent ends; pods run on under their caps");
  leaving_ = true;
  // Pods that the scheduler has bound already are let through: the node says that it takes no more, and the kubelet is
  // served until it has been quiet for a while. (Whoever is bound after that fails, which the annotation prevents.)
  constexpr int64_t kQuietMs = 1500;
  constexpr auto kLongest = std::chrono::seconds(8);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  const bool sharing = is_sharing(mode_.mode);
  decide();
  for (int waited_ms = 0; sharing && std::chrono::steady_clock::now() < end; waited_ms += 100) {
    if (waited_ms >= kQuietMs && grants_->quiet_ms() >= kQuietMs) break;
    ::usleep(100'000);
  }
}

int run_kubernetes(int argc, char** argv) {
  int exit_code = 0;
  std::optional<Options> options = read_options(argc, argv, exit_code);
  if (!options) return exit_code;
  if (options->debug) log::set_level(log::Level::kDebug);
  sigset_t handled = agent::prepare_process();
  sigaddset(&handled, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &handled, nullptr);  // before any thread: they inherit it
  const char* front = std::getenv(kWorkerVariable);
  if (front == nullptr && !options->clean_up) {
    return Front({argv + 1, argv + argc}, options->kubelet_directory + "/device-plugins").run();
  }
  sigdelset(&handled, SIGCHLD);
  Fd signals(::signalfd(-1, &handled, SFD_CLOEXEC));
  if (options->clean_up) {
    Result<void> done = clean_up_and_wait(*options, signals.get());
    if (done) return 0;
    return agent::cannot_serve(done.error());
  }
  Fd pair(static_cast<int>(std::strtol(front, nullptr, 10)));
  ::fcntl(pair.get(), F_SETFD, FD_CLOEXEC);
  ::unsetenv(kWorkerVariable);
  ::prctl(PR_SET_NAME, "sluice-agent");  // started by way of /proc/self/exe, it would be called "exe"
  KubernetesAgent agent(*options, std::move(pair));
  if (Result<void> started = agent.start(); !started) {
    const int code = agent::cannot_serve(started.error());
    return started.error().code == ErrorCode::kNotFound ? agent::kExitMissing : code;
  }
  log::info("the agent is ready", {{"node", options->node_name}, {"pid", ::getpid()}});
  agent.run(signals.get());
  agent.leave();
  return 0;
}

}  // namespace sluice::node
