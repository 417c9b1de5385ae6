#include "node/front.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "agent/process.h"
#include "base/log.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// As long as a kubelet may well stand still; a healthy worker answers in milliseconds.
constexpr auto kLongestAllocate = milliseconds(60'000);
constexpr auto kLongestPreStart = milliseconds(28'000);  // the kubelet gives up after 30 s and tries again
constexpr int kLongestSendSeconds = 5;
constexpr int kTickMs = 1000;
constexpr int kAwaitRegistrationMs = 50;
constexpr int kExitFailed = 1;
constexpr int kSignalBase = 128;

std::vector<std::string> worker_environment(int fd) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) out.emplace_back(*entry);
  out.push_back(fmt::format("{}={}", kWorkerVariable, fd));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

ReplyMessage CallDesk::ask(CallMessage call, milliseconds longest) {
  std::unique_lock lock(mutex_);
  const uint64_t id = ++last_id_;
  call.id = id;
  Open& open = open_[id];
  open.call = std::move(call);
  // A channel that fails is about to be replaced: worker_here() asks again.
  if (channel_ != nullptr) (void)channel_->send(open.call).ok();
  news_.wait_for(lock, longest, [&] { return closed_ || open.reply.has_value(); });
  ReplyMessage reply;
  if (open.reply) {
    reply = std::move(*open.reply);
  } else {
    reply.done = false;
    reply.error = unavailable(closed_ ? "the agent is ending" : "the agent's worker does not answer");
  }
  open_.erase(id);
  return reply;
}

void CallDesk::worker_here(LineChannel* channel) {
  std::lock_guard guard(mutex_);
  channel_ = channel;
  for (auto& [id, open] : open_) {
    if (!open.reply) (void)channel_->send(open.call).ok();
  }
}

void CallDesk::worker_gone() {
  std::lock_guard guard(mutex_);
  channel_ = nullptr;
}

void CallDesk::answered(ReplyMessage reply) {
  std::lock_guard guard(mutex_);
  auto found = open_.find(reply.id);
  if (found == open_.end()) return;  // the kubelet has stopped waiting
  found->second.reply = std::move(reply);
  news_.notify_all();
}

void CallDesk::close() {
  std::lock_guard guard(mutex_);
  closed_ = true;
  news_.notify_all();
}

std::optional<milliseconds> RestartRule::died(Clock::time_point now) {
  constexpr auto kQuick = std::chrono::seconds(10);
  constexpr int kMostQuickDeaths = 6;
  constexpr auto kFirstPause = milliseconds(100);
  quick_deaths_ = now - started_ < kQuick ? quick_deaths_ + 1 : 0;
  if (quick_deaths_ > kMostQuickDeaths) return std::nullopt;
  return quick_deaths_ <= 1 ? milliseconds(0) : kFirstPause * (1 << (quick_deaths_ - 2));
}

struct Front::Calls final : PluginCalls {
  Calls(CallDesk& of, std::string name) : desk(of), resource(std::move(name)) {}
  Result<ContainerAnswer> allocate(const std::vector<std::string>& ids) override {
    ReplyMessage reply = desk.ask({0, false, resource, ids}, kLongestAllocate);
    if (!reply.done) return std::move(reply.error);
    return std::move(reply.answer);
  }
  Result<void> pre_start(const std::vector<std::string>& ids) override {
    ReplyMessage reply = desk.ask({0, true, resource, ids}, kLongestPreStart);
    if (!reply.done) return std::move(reply.error);
    return {};
  }
  CallDesk& desk;
  std::string resource;
};

Front::Front(std::vector<std::string> arguments, std::string directory)
    : arguments_(std::move(arguments)), plugins_(std::move(directory)) {}

Front::~Front() = default;

Result<void> Front::start_worker() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_error("cannot make", "a socket pair for the worker", errno);
  Fd ours(ends[0]), theirs(ends[1]);
  // A worker that stands still must not stop the front with it.
  const timeval longest{kLongestSendSeconds, 0};
  ::setsockopt(ours.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest));
  std::vector<std::string> arguments{kWorkerName};
  arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
  // The number is not ours to close on exec: duplicated onto itself it stays open in the child.
  std::vector<std::string> environment = worker_environment(theirs.get());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), theirs.get());
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed = ::posix_spawn(&worker_, "/proc/self/exe", &actions, &attributes, pointers(arguments).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    worker_ = -1;
    return errno_error("cannot start", "the agent's worker", failed);
  }
  rule_.started(Clock::now());
  channel_ = std::make_unique<LineChannel>(std::move(ours));
  told_.reset();
  desk_.worker_here(channel_.get());
  return {};
}

// On a fresh node the driver or the scheduler's key may come after the agent. A new worker looks again, since a
// driver's library may keep what it found first; the container stays, which spares the node the kubelet's growing
// pauses.
bool Front::try_again_for_what_is_missing() {
  constexpr auto kLongest = std::chrono::seconds(150);
  constexpr auto kPause = milliseconds(1000);
  const Clock::time_point now = Clock::now();
  if (!missing_since_) missing_since_ = now;
  if (leaving_ || now - *missing_since_ > kLongest) return false;
  next_start_ = now + kPause;
  return true;
}

std::optional<int> Front::reap() {
  int status = 0;
  if (worker_ < 0 || ::waitpid(worker_, &status, WNOHANG) != worker_) return std::nullopt;
  worker_ = -1;
  desk_.worker_gone();
  channel_.reset();
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    if (code == agent::kExitMissing) return try_again_for_what_is_missing() ? std::nullopt : std::optional(kExitFailed);
    return code;
  }
  const int signal = WTERMSIG(status);
  if (leaving_) return kSignalBase + signal;
  const std::optional<milliseconds> pause = rule_.died(Clock::now());
  if (!pause) {
    log::error("the agent's worker is ended by signals again and again; giving up", {{"signal", signal}});
    return kSignalBase + signal;
  }
  log::error("the agent's worker was ended by a signal and is started again; the kubelet's calls wait for it",
             {{"signal", signal}, {"after_ms", pause->count()}});
  ++restarts_;
  next_start_ = Clock::now() + *pause;
  return std::nullopt;
}

void Front::offer(OfferMessage message) {
  if (!message.keep_others) {
    std::erase_if(wanted_, [&](const auto& entry) { return !message.resources.contains(entry.first); });
  }
  for (auto& [resource, devices] : message.resources) {
    std::unique_ptr<Calls>& calls = calls_[resource];
    if (!calls) calls = std::make_unique<Calls>(desk_, resource);
    wanted_[resource] = {calls.get(), std::move(devices)};
  }
  plugins_.want(wanted_);
}

void Front::read_worker() {
  if (!channel_) return;
  Result<std::vector<FrontMessage>> messages = channel_->receive();
  if (!messages) {
    // Its end is settled when it is reaped; one that cannot be understood is ended.
    if (messages.error().code == ErrorCode::kInvalid) {
      log::error(messages.error().message);
      ::kill(worker_, SIGKILL);
    }
    desk_.worker_gone();
    channel_.reset();
    return;
  }
  for (FrontMessage& message : *messages) {
    if (auto* reply = std::get_if<ReplyMessage>(&message))
      desk_.answered(std::move(*reply));
    else if (auto* news = std::get_if<OfferMessage>(&message))
      offer(std::move(*news));
  }
}

void Front::tell_status() {
  if (!channel_) return;
  PluginStatus status;
  status.connected = plugins_.registered();
  for (const auto& [resource, connected] : status.connected) {
    if (plugins_.contested(resource)) status.contested.insert(resource);
  }
  status.registrations = plugins_.registrations();
  status.worker_restarts = restarts_;
  if (told_ && *told_ == status) return;
  if (channel_->send(status).ok()) told_ = std::move(status);
}

int Front::run() {
  sigset_t handled;
  sigemptyset(&handled);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&handled, signal);
  signals_ = Fd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  std::optional<int> exit_code;
  while (!exit_code) {
    if (worker_ < 0 && Clock::now() >= next_start_) {
      if (Result<void> started = start_worker(); !started) {
        log::error(started.error().message);
        exit_code = kExitFailed;
        break;
      }
    }
    plugins_.tend();
    tell_status();
    if (channel_ && channel_->broken() && worker_ > 0) ::kill(worker_, SIGKILL);
    int wait = plugins_.wait_ms(wanted_.empty() || plugins_.complete() ? kTickMs : kAwaitRegistrationMs);
    if (worker_ < 0) {
      const auto left = std::chrono::duration_cast<milliseconds>(next_start_ - Clock::now()).count();
      wait = static_cast<int>(std::clamp<int64_t>(left + 1, 1, wait));
    }
    pollfd waiting[3] = {
        {signals_.get(), POLLIN, 0}, {plugins_.watch_fd(), POLLIN, 0}, {channel_ ? channel_->fd() : -1, POLLIN, 0}};
    if (::poll(waiting, 3, wait) < 0 && errno != EINTR) break;
    if ((waiting[1].revents & POLLIN) != 0) plugins_.drain_watch();
    if (waiting[2].revents != 0) read_worker();
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo == SIGCHLD) continue;
      leaving_ = true;
      if (worker_ < 0)
        exit_code = 0;
      else
        ::kill(worker_, SIGTERM);
    }
    if (std::optional<int> ended = reap(); ended) exit_code = ended;
  }
  desk_.close();
  return exit_code.value_or(kExitFailed);
}

}  // namespace sluice::node
