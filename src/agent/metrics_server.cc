// The local port. Requests are parsed by Boost.Beast; sockets are plain, with a deadline on each request.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <system_error>

#include "agent/metrics.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

namespace http = boost::beast::http;
constexpr int kRequestMs = 5000;
constexpr size_t kMaxRequestBytes = 16 << 10;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Result<Address> parse_address(const std::string& text) {
  const Error wrong = invalid(fmt::format("'{}': expected IP:PORT, as in 127.0.0.1:9401", text));
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong;
  // getaddrinfo takes ports beyond 65535 modulo 65536.
  unsigned port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data() + colon + 1, end, port);
  if (code != std::errc() || rest != end || port > 65535) return wrong;
  std::string host = text.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &found) != 0 || found == nullptr) return wrong;
  Address address;
  std::copy_n(reinterpret_cast<const char*>(found->ai_addr), found->ai_addrlen,
              reinterpret_cast<char*>(&address.storage));
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

std::string reply(unsigned status, std::string_view reason, std::string_view type, std::string_view body,
                  bool with_body) {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     reason, type, body.size(), with_body ? body : std::string_view());
}

}  // namespace

Result<void> check_listen_address(const std::string& text) {
  Result<Address> address = parse_address(text);
  if (!address) return std::move(address.error());
  return {};
}

Result<void> MetricsServer::start(const std::string& address_text, std::function<std::string()> text,
                                  std::function<bool()> ready) {
  Result<Address> address = parse_address(address_text);
  if (!address) return std::move(address.error());
  text_ = std::move(text);
  ready_ = std::move(ready);
  listener_ = Fd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  stop_event_ = Fd(::eventfd(0, EFD_CLOEXEC));
  if (!listener_.valid() || !stop_event_.valid()) return errno_error("cannot make a socket for", address_text, errno);
  const int yes = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address->storage), address->length) != 0 ||
      ::listen(listener_.get(), 128) != 0) {
    const int number = errno;
    Error error = errno_error("cannot serve metrics at", address_text, number);
    // Whoever has it need not be an agent, so this is not kExists.
    if (number == EADDRINUSE) error = unavailable(error.message + "; another program has this port, choose another");
    return error;
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  thread_ = std::thread([this] { loop(); });
  log::info("metrics are served", {{"address", address_text}, {"port", port_}});
  return {};
}

void MetricsServer::stop() {
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_event_.get(), 1);
  thread_.join();
  listener_.reset();
  connections_.end_all();
}

void MetricsServer::loop() {
  while (true) {
    pollfd waiting[2] = {{listener_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    int ready = ::poll(waiting, 2, -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || (waiting[1].revents & POLLIN) != 0) return;
    Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid()) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    const int fd = peer.release();  // the thread's, or closed below
    const Connections::Id id = connections_.enter(fd);
    try {
      if (id == 0) throw std::system_error(std::make_error_code(std::errc::device_or_resource_busy));
      std::thread([this, fd, id] {
        answer(fd, id);
        connections_.leave(id);
        ::close(fd);
      }).detach();
    } catch (const std::system_error& error) {
      log::warning("a connection for metrics was refused", {{"reason", error.what()}});
      connections_.leave(id);
      ::close(fd);
    }
  }
}

void MetricsServer::answer(int fd, Connections::Id id) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kRequestMs);
  http::request_parser<http::empty_body> parser;
  parser.header_limit(kMaxRequestBytes);
  parser.eager(false);
  std::string buffered;
  boost::system::error_code code;
  while (!parser.is_header_done()) {
    auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd waiting[2] = {{fd, POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    if (left <= 0 || ::poll(waiting, 2, static_cast<int>(left)) <= 0 || (waiting[1].revents & POLLIN) != 0) return;
    char buffer[4096];
    ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return;
    buffered.append(buffer, static_cast<size_t>(got));
    size_t used = parser.put(boost::asio::const_buffer(buffered.data(), buffered.size()), code);
    buffered.erase(0, used);
    if (code == http::error::need_more) code = {};
    if (code || buffered.size() > kMaxRequestBytes) break;
  }
  connections_.set_answering(id, true);
  std::string text;
  if (code || !parser.is_header_done()) {
    text = reply(400, "Bad Request", "text/plain", "not an HTTP request\n", true);
  } else if (parser.get().method() != http::verb::get && parser.get().method() != http::verb::head) {
    text = reply(405, "Method Not Allowed", "text/plain", "only GET is answered\n", true);
  } else if (parser.get().target() == "/healthz") {
    text = reply(200, "OK", "text/plain", "ok\n", true);
  } else if (parser.get().target() == "/readyz") {
    std::lock_guard lock(asking_);
    const bool ready = !ready_ || ready_();
    text = ready ? reply(200, "OK", "text/plain", "ok\n", true)
                 : reply(503, "Service Unavailable", "text/plain", "not yet\n", true);
  } else if (parser.get().target() != "/metrics") {
    text = reply(404, "Not Found", "text/plain", "there are /metrics, /healthz and /readyz\n", true);
  } else {
    std::lock_guard lock(asking_);
    text =
        reply(200, "OK", "text/plain; version=0.0.4; charset=utf-8", text_(), parser.get().method() == http::verb::get);
  }
  connections_.set_answering(id, false);  // who does not read waits like who does not ask
  std::string_view rest = text;
  while (!rest.empty()) {
    auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd waiting{fd, POLLOUT, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return;
    ssize_t put = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return;
    if (put > 0) rest.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace sluice::agent
