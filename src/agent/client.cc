#include "agent/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "agent/start_agent.h"

namespace sluice::agent {
namespace {

using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point deadline) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

constexpr int kPatienceMs = 1000;  // before a silent agent's state is looked at

// The process that listens at the socket.
int64_t peer_pid(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.pid : 0;
}

// Stopped by a signal or a debugger.
bool is_stopped(int64_t pid) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/stat", pid), 8192);
  const size_t close = text ? text->rfind(')') : std::string::npos;  // the command before it may hold anything
  return close != std::string::npos && close + 2 < text->size() &&
         ((*text)[close + 2] == 'T' || (*text)[close + 2] == 't');
}

Error no_agent(const std::string& directory) {
  return unavailable(
      fmt::format("no agent answers at {}/{}; `sluice run` starts one, or start sluice-agent", directory, kSocketName));
}

}  // namespace

// kNotFound: nobody is there. kUnavailable: somebody was there and left before saying hello.
Result<Client> Client::try_connect(const std::string& run_directory, int timeout_ms, bool& stopped) {
  Fd directory(::open(run_directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return errno_error("cannot open the run directory", run_directory, errno);
  Result<int> fd = connect_socket(directory.get(), kSocketName);
  if (!fd) {
    Error error = std::move(fd.error());
    error.message = fmt::format("{}/{}", run_directory, error.message);
    if (error.code == ErrorCode::kPermission) {
      error.message =
          fmt::format("the agent at {}/{} serves another user (no permission to connect)", run_directory, kSocketName);
    }
    return error;
  }
  Client client;
  client.socket_ = Fd(*fd);
  client.run_directory_ = run_directory;
  client.timeout_ms_ = timeout_ms;
  client.agent_pid_ = peer_pid(client.socket_.get());
  Result<json::Object> answer = client.call(Op::kHello, {});
  stopped = client.stopped_;
  if (!answer) return std::move(answer.error());
  Result<HelloAnswer> hello = HelloAnswer::from_json(*answer);
  if (!hello) return std::move(hello.error()).wrap("the agent's hello");
  client.hello_ = std::move(*hello);
  return client;
}

Result<Client> Client::connect(const ConnectOptions& options) {
  std::string directory = options.run_directory;
  if (const char* variable = std::getenv("SLUICE_RUN_DIR"); directory.empty() && variable != nullptr)
    directory = variable;
  if (directory.empty()) {
    // A root agent serves everybody; this user's own is for machines without one.
    bool root_stopped = false;
    Result<Client> root = try_connect(root_run_directory(), options.timeout_ms, root_stopped);
    if (root || root_stopped) return root;
    directory = default_run_directory();
  }
  auto deadline = Clock::now() + std::chrono::milliseconds(options.timeout_ms);
  while (true) {
    bool stopped = false;
    Result<Client> client = try_connect(directory, options.timeout_ms, stopped);
    if (client || stopped) return client;
    const ErrorCode code = client.error().code;
    if (code != ErrorCode::kNotFound && code != ErrorCode::kUnavailable) return client;
    if (!options.start && code == ErrorCode::kNotFound) return no_agent(directory);
    if (Clock::now() >= deadline) {
      if (code == ErrorCode::kNotFound) return no_agent(directory);
      return client;
    }
    if (!options.start || code == ErrorCode::kUnavailable) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // leaving: its socket goes in a moment
      continue;
    }
    StartOptions start;
    start.run_directory = directory;
    start.program = options.agent_program;
    start.arguments = options.agent_arguments;
    start.timeout_ms = left_ms(deadline);
    start.answers = [&] { return try_connect(directory, left_ms(deadline), stopped).ok(); };
    Result<void> started = start_agent(start);
    if (!started) return std::move(started.error());
  }
}

Result<void> Client::send_line(const std::string& line) {
  std::string_view rest = line;
  auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
  while (!rest.empty()) {
    ssize_t put = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0) {
      rest.remove_prefix(static_cast<size_t>(put));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return hang_up();
    pollfd waiting{socket_.get(), POLLOUT, 0};
    if (::poll(&waiting, 1, left_ms(deadline)) == 0) return unavailable("the agent does not read its socket");
  }
  return {};
}

Result<std::string> Client::read_line() {
  auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
  while (true) {
    size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    if (buffered_.size() > kMaxLineBytes) return internal("the agent's answer is longer than a line may be");
    pollfd waiting{socket_.get(), POLLIN, 0};
    int ready = ::poll(&waiting, 1, std::min(left_ms(deadline), kPatienceMs));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && is_stopped(agent_pid_)) {
      stopped_ = true;
      return unavailable(
          fmt::format("the agent (pid {0}) did not answer: it is stopped; continue it (kill -CONT {0}) or "
                      "end it (kill -KILL {0}), running programs keep their limits",
                      agent_pid_));
    }
    if (ready == 0 && left_ms(deadline) > 0) continue;
    if (ready == 0) {
      return unavailable(fmt::format("the agent (pid {}) did not answer within {} ms", agent_pid_, timeout_ms_));
    }
    char buffer[16384];
    ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return hang_up();
    buffered_.append(buffer, static_cast<size_t>(got));
  }
}

Error Client::hang_up() {
  hung_up_ = true;
  return unavailable("the agent hung up");
}

Result<json::Object> Client::call(Op op, json::Object arguments) {
  RequestFrame frame{next_id_++, op, std::move(arguments)};
  Result<void> sent = send_line(request_line(frame));
  // An agent that turns a caller away says why before it hangs up, perhaps before it was asked anything.
  Result<std::string> line = read_line();
  if (!line) return sent ? std::move(line.error()) : std::move(sent.error());
  return parse_answer(*line, frame.id);
}

Result<GrantAnswer> Client::grant(const GrantRequest& request) {
  Result<json::Object> answer = call(Op::kGrant, request.to_json());
  if (!answer) return std::move(answer.error());
  return GrantAnswer::from_json(*answer);
}

Result<void> Client::release(const std::string& grant, bool force) {
  Result<json::Object> answer = call(Op::kRelease, {{"grant", grant}, {"force", force}});
  if (!answer) return std::move(answer.error());
  return {};
}

Result<void> Client::attach(const std::string& grant, int64_t pid) {
  Result<json::Object> answer = call(Op::kAttach, {{"grant", grant}, {"pid", pid}});
  if (!answer) return std::move(answer.error());
  return {};
}

Result<ListAnswer> Client::list() {
  Result<json::Object> answer = call(Op::kList, {});
  if (!answer) return std::move(answer.error());
  return ListAnswer::from_json(*answer);
}

Result<GrantStatus> Client::set(const SetRequest& request) {
  Result<json::Object> answer = call(Op::kSet, request.to_json());
  if (!answer) return std::move(answer.error());
  return GrantStatus::from_json(*answer);
}

Result<void> Client::set_policy(const SetPolicyRequest& request) {
  Result<json::Object> answer = call(Op::kSetPolicy, request.to_json());
  if (!answer) return std::move(answer.error());
  return {};
}

Result<void> Client::watch(int64_t interval_ms, const std::function<bool(const ListAnswer&)>& snapshot) {
  RequestFrame frame{next_id_++, Op::kWatch, {{"interval_ms", interval_ms}}};
  Result<void> sent = send_line(request_line(frame));
  if (!sent) return sent;
  const int usual_timeout_ms = timeout_ms_;
  timeout_ms_ += static_cast<int>(interval_ms);
  Result<void> outcome;
  while (true) {
    Result<std::string> line = read_line();
    Result<json::Object> answer = line ? parse_answer(*line, frame.id) : Result<json::Object>(std::move(line.error()));
    Result<ListAnswer> list = answer ? ListAnswer::from_json(*answer) : Result<ListAnswer>(std::move(answer.error()));
    if (!list) {
      outcome = std::move(list.error());
      break;
    }
    if (!snapshot(*list)) break;
  }
  timeout_ms_ = usual_timeout_ms;
  socket_.reset();  // the stream is still being written to: this connection is of no further use
  return outcome;
}

Result<void> Client::shutdown() {
  Result<json::Object> answer = call(Op::kShutdown, {});
  if (!answer) return std::move(answer.error());
  return {};
}

}  // namespace sluice::agent
