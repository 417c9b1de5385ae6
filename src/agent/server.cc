#include "agent/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "agent/run_directory.h"
#include "agent/version.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

// Requests are small; only answers may be long.
constexpr size_t kMaxRequestBytes = 64 << 10;

// Waits for the socket or the end of the server; false at the end or at the timeout (-1: none).
bool wait_ready(int fd, short what, int stop_fd, int timeout_ms) {
  pollfd waiting[2] = {{fd, what, 0}, {stop_fd, POLLIN, 0}};
  while (true) {
    int ready = ::poll(waiting, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && (waiting[1].revents & POLLIN) == 0 && waiting[0].revents != 0;
  }
}

}  // namespace

Server::Server(ServerOptions options, Node& node, std::function<void()> shutdown_asked)
    : options_(std::move(options)), node_(node), shutdown_asked_(std::move(shutdown_asked)) {}

Server::~Server() {
  stop();
}

Result<void> Server::start() {
  stop_event_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_.valid()) return errno_error("cannot make an event for", options_.run_directory, errno);
  Result<Fd> listener = listen_socket(options_.directory, kSocketName, options_.all_users ? 0666 : 0600);
  if (!listener) return std::move(listener.error()).wrap(options_.run_directory);
  listener_ = std::move(*listener);
  acceptor_ = std::thread([this] { accept_loop(); });
  return {};
}

bool Server::idle() {
  std::lock_guard guard(mutex_);
  return connections_ == 0;
}

bool Server::leave_if_idle() {
  std::lock_guard guard(mutex_);
  // In this order: with nobody connected and nobody let in any more, no grant can come.
  if (connections_ != 0 || !node_.idle()) return false;
  leaving_ = true;
  ::unlinkat(options_.directory, kSocketName, 0);
  return true;
}

void Server::stop() {
  {
    std::lock_guard guard(mutex_);
    if (stopped_) return;
    stopped_ = true;
    leaving_ = true;
    if (stop_event_.valid()) ::eventfd_write(stop_event_.get(), 1);
  }
  if (acceptor_.joinable()) acceptor_.join();
  listener_.reset();
  std::unique_lock guard(mutex_);
  ended_.wait(guard, [this] { return connections_ == 0; });
}

Result<void> Server::admit(const Peer& peer) {
  if (leaving_) return unavailable("");  // no word: the peer starts over
  if (!options_.all_users && !node_.is_admin(peer)) {
    return permission(fmt::format("this agent serves uid {} alone, not uid {}", ::geteuid(), peer.uid));
  }
  if (connections_ >= options_.max_connections) {
    return exhausted(fmt::format("the agent has {} connections, the most there may be; try again later", connections_));
  }
  if (!node_.is_admin(peer) && per_user_[peer.uid] >= options_.max_connections_per_user) {
    return exhausted(
        fmt::format("uid {} has {} connections to the agent, the most there may be", peer.uid, per_user_[peer.uid]));
  }
  return {};
}

void Server::accept_loop() {
  while (wait_ready(listener_.get(), POLLIN, stop_event_.get(), -1)) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) continue;
    Peer peer{credentials.pid, credentials.uid};
    std::unique_lock guard(mutex_);
    if (Result<void> admitted = admit(peer); !admitted) {
      guard.unlock();
      if (admitted.error().message.empty()) continue;
      const std::string line = error_line(1, admitted.error());
      [[maybe_unused]] ssize_t put = ::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      continue;
    }
    ++connections_;
    ++per_user_[peer.uid];
    guard.unlock();
    std::thread(
        [this, peer](Fd own) {
          serve(std::move(own), peer);
          std::lock_guard inner(mutex_);
          --connections_;
          if (--per_user_[peer.uid] == 0) per_user_.erase(peer.uid);
          ended_.notify_all();
        },
        std::move(socket))
        .detach();
  }
}

bool Server::send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t put = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0)
      text.remove_prefix(static_cast<size_t>(put));
    else if (errno == EINTR)
      continue;
    else if (errno != EAGAIN || !wait_ready(fd, POLLOUT, stop_event_.get(), options_.line_timeout_ms))
      return false;
  }
  return true;
}

void Server::serve(Fd socket, Peer peer) {
  std::string buffered;
  bool greeted = false;
  while (true) {
    const size_t end = buffered.find('\n');
    if (end != std::string::npos) {
      std::string line = buffered.substr(0, end);
      buffered.erase(0, end + 1);
      bool keep = true;
      if (!handle(socket.get(), peer, line, keep) || !keep) return;
      greeted = true;
      continue;
    }
    if (buffered.size() > kMaxRequestBytes) {
      send_all(
          socket.get(),
          error_line(0, invalid(fmt::format("control protocol: a request is at most {} bytes", kMaxRequestBytes))));
      return;
    }
    // A peer that said hello may be silent as long as it likes; a line once begun must end.
    const int timeout_ms = greeted && buffered.empty() ? -1 : options_.line_timeout_ms;
    if (!wait_ready(socket.get(), POLLIN, stop_event_.get(), timeout_ms)) return;
    char buffer[16384];
    ssize_t got = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    buffered.append(buffer, static_cast<size_t>(got));
  }
}

bool Server::handle(int fd, const Peer& peer, std::string_view line, bool& keep) {
  int64_t id = 0;
  Result<RequestFrame> frame = parse_request(line, id);
  if (!frame) return send_all(fd, error_line(id, frame.error()));
  if (frame->op == Op::kWatch) {
    keep = false;
    return watch(fd, peer, *frame);
  }
  Result<json::Object> result = perform(peer, *frame);
  if (!result) return send_all(fd, error_line(id, result.error()));
  const bool sent = send_all(fd, answer_line(id, *result));
  if (frame->op == Op::kShutdown) shutdown_asked_();
  return sent;
}

Result<json::Object> Server::perform(const Peer& peer, const RequestFrame& frame) {
  auto done = [](Result<void> outcome) -> Result<json::Object> {
    if (!outcome) return std::move(outcome.error());
    return json::Object{};
  };
  switch (frame.op) {
    case Op::kHello: {
      HelloAnswer hello{kProtocolVersion, kVersion, ::getpid(), static_cast<int64_t>(::geteuid()),
                        options_.run_directory};
      return hello.to_json();
    }
    case Op::kGrant: {
      Result<GrantRequest> request = GrantRequest::from_json(frame.arguments);
      if (!request) return std::move(request.error()).wrap("grant");
      Result<GrantAnswer> answer = node_.grant(peer, *request);
      if (!answer) return std::move(answer.error());
      return answer->to_json();
    }
    case Op::kRelease:
    case Op::kAttach: {
      Result<std::string> grant = json::get_string(frame.arguments, "grant");
      if (!grant) return std::move(grant.error()).wrap(to_string(frame.op));
      if (frame.op == Op::kRelease) {
        Result<bool> force = json::get_bool_or(frame.arguments, "force", false);
        if (!force) return std::move(force.error()).wrap("release");
        return done(node_.release(peer, *grant, *force));
      }
      Result<int64_t> pid = json::get_int_or(frame.arguments, "pid", 0);
      if (!pid) return std::move(pid.error()).wrap("attach");
      if (*pid < 0 || *pid > std::numeric_limits<int32_t>::max()) return invalid("attach: pid: expected a process id");
      return done(node_.attach(peer, *grant, *pid));
    }
    case Op::kList:
      return node_.list(peer).to_json();
    case Op::kSet: {
      Result<SetRequest> request = SetRequest::from_json(frame.arguments);
      if (!request) return std::move(request.error()).wrap("set");
      Result<GrantStatus> status = node_.set(peer, *request);
      if (!status) return std::move(status.error());
      return status->to_json();
    }
    case Op::kSetPolicy: {
      Result<SetPolicyRequest> request = SetPolicyRequest::from_json(frame.arguments);
      if (!request) return std::move(request.error()).wrap("set-policy");
      return done(node_.set_policy(peer, *request));
    }
    case Op::kShutdown:
      if (!node_.is_admin(peer)) return permission("only root and the agent's user may shut it down");
      return json::Object{};
    case Op::kWatch:
      break;
  }
  return internal("control protocol: an operation without a handler");
}

bool Server::watch(int fd, const Peer& peer, const RequestFrame& frame) {
  Result<int64_t> interval = json::get_int_or(frame.arguments, "interval_ms", 1000);
  if (!interval || *interval < 100 || *interval > 60000) {
    return send_all(fd, error_line(frame.id, invalid("watch: interval_ms: expected a whole number from 100 to 60000")));
  }
  while (send_all(fd, answer_line(frame.id, node_.list(peer).to_json()))) {
    // Anything that comes in, a hang-up above all, ends the stream.
    pollfd waiting[2] = {{fd, POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    if (::poll(waiting, 2, static_cast<int>(*interval)) != 0) return false;
  }
  return false;
}

}  // namespace sluice::agent
