#include "scheduler/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <system_error>

#include "base/json.h"
#include "base/log.h"

namespace sluice::scheduler {
namespace {

namespace http = boost::beast::http;

constexpr std::chrono::seconds kCertificateCheckPeriod{1};

std::string render(const ServerResponse& response, bool keep_alive) {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {}\r\n\r\n",
                     response.status, std::string(http::obsolete_reason(static_cast<http::status>(response.status))),
                     response.content_type, response.body.size(), keep_alive ? "keep-alive" : "close") +
         response.body;
}

int status_of(const boost::system::error_code& code) {
  if (code == http::error::body_limit) return 413;
  if (code == http::error::header_limit) return 431;
  return 400;
}

}  // namespace

ServerResponse error_response(int status, std::string_view message) {
  return {status, json::to_string(json::Object{{"error", std::string(message)}}), "application/json", false};
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(ServerOptions options, Handler handler) {
  // OpenSSL writes with write(2): without this a client that hangs up in the wrong moment ends the program.
  ::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options), std::move(handler)));
  if (!server->options_.certificate_file.empty()) {
    Result<Context> context = server->load_context();
    if (!context) return std::move(context).error();
    server->context_ = *context;
    server->stamp_ = server->certificate_stamp();
  }
  if (Result<void> listening = server->listen(); !listening) return std::move(listening).error();
  server->accept_thread_ = std::thread([raw = server.get()] { raw->accept_loop(); });
  return server;
}

HttpServer::~HttpServer() {
  stopping_.store(true);
  if (accept_thread_.joinable()) accept_thread_.join();
  connections_.end_all();
}

Result<void> HttpServer::listen() {
  std::string where = fmt::format("{}:{}", options_.address, options_.port);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options_.port);
  if (::inet_pton(AF_INET, options_.address.c_str(), &address.sin_addr) != 1) {
    return invalid(fmt::format("listen address '{}' is not an IPv4 address", options_.address));
  }
  listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int yes = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return errno_error("cannot listen on", where, errno);
  }
  if (::listen(listener_.get(), 128) != 0) return errno_error("cannot listen on", where, errno);
  socklen_t size = sizeof(address);
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  return {};
}

Result<HttpServer::Context> HttpServer::load_context() const {
  Context context(SSL_CTX_new(TLS_server_method()), [](SSL_CTX* raw) { SSL_CTX_free(raw); });
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ERR_clear_error();
  auto fault = [](const std::string& path, std::string_view what) -> Error {
    char text[256] = "unreadable";
    if (unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
    return invalid(fmt::format("{} {}: {}", what, path, text));
  };
  if (SSL_CTX_use_certificate_chain_file(context.get(), options_.certificate_file.c_str()) != 1) {
    return fault(options_.certificate_file, "certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return fault(options_.key_file, "key");
  }
  if (SSL_CTX_check_private_key(context.get()) != 1)
    return fault(options_.key_file, "key does not belong to the certificate:");
  if (!options_.client_ca_file.empty()) {
    if (SSL_CTX_load_verify_locations(context.get(), options_.client_ca_file.c_str(), nullptr) != 1) {
      return fault(options_.client_ca_file, "client CA");
    }
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  }
  return context;
}

// Changes whenever one of the files is replaced (also through the symbolic links of a mounted Secret).
std::string HttpServer::certificate_stamp() const {
  std::string stamp;
  for (const std::string& path : {options_.certificate_file, options_.key_file, options_.client_ca_file}) {
    struct stat status{};
    if (path.empty() || ::stat(path.c_str(), &status) != 0) continue;
    stamp += fmt::format("{}:{}:{}.{};", status.st_dev, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return stamp;
}

HttpServer::Context HttpServer::current_context() {
  std::lock_guard lock(context_mutex_);
  auto now = std::chrono::steady_clock::now();
  if (context_ && now - checked_at_ >= kCertificateCheckPeriod) {
    checked_at_ = now;
    if (std::string stamp = certificate_stamp(); stamp != stamp_) {
      Result<Context> fresh = load_context();
      if (fresh) {
        context_ = *fresh;
        stamp_ = stamp;
        log::info("certificate reloaded", {{"file", options_.certificate_file}});
      } else {  // half-written: the old one stays in use, next second tries again
        log::warning("certificate not reloaded", {{"reason", fresh.error().message}});
      }
    }
  }
  return context_;
}

void HttpServer::accept_loop() {
  while (!stopping_.load()) {
    pollfd ready{listener_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 100) <= 0) continue;
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    int yes = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const Connections::Id id = connections_.enter(socket.get());
    if (id == 0) {
      refused_.fetch_add(1);
      continue;
    }
    try {
      std::thread([this, fd = std::move(socket), context = current_context(), id]() mutable {
        serve(std::move(fd), std::move(context), id);
      }).detach();
    } catch (const std::system_error& error) {  // no thread to be had: this one is refused
      log::warning("a connection was refused", {{"reason", error.what()}});
      refused_.fetch_add(1);
      connections_.leave(id);
    }
  }
}

void HttpServer::serve(Fd socket, Context context, Connections::Id id) {
  Stream stream(std::move(socket), context.get());
  if (stream.handshake(std::chrono::steady_clock::now() + options_.request_timeout)) {
    std::string buffered;  // bytes of the next request that came with the last one
    while (!stopping_.load() && (!buffered.empty() || wait_for_request(stream)) && serve_one(stream, buffered, id)) {
    }
    stream.close();
  }
  connections_.leave(id);  // while the descriptor is open: until then it may be shut down from elsewhere
}

// False when the client is gone, idle for too long, or the server stops.
bool HttpServer::wait_for_request(Stream& stream) {
  auto until = std::chrono::steady_clock::now() + options_.idle_timeout;
  while (!stopping_.load() && std::chrono::steady_clock::now() < until) {
    if (stream.pending()) return true;
    pollfd one{stream.fd(), POLLIN, 0};
    if (::poll(&one, 1, 100) > 0) return true;
  }
  return false;
}

// True when the connection can carry another request.
bool HttpServer::serve_one(Stream& stream, std::string& buffered, Connections::Id id) {
  Deadline deadline = std::chrono::steady_clock::now() + options_.request_timeout;
  http::request_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  char chunk[16384];
  boost::system::error_code code;
  while (!parser.is_done()) {
    if (buffered.empty() || code == http::error::need_more) {
      Result<size_t> got = stream.read(chunk, sizeof(chunk), deadline);
      if (!got || *got == 0) {
        if (!got && parser.got_some()) {
          (void)stream.write(render(error_response(408, "the request did not arrive in time"), false),
                             std::chrono::steady_clock::now() + std::chrono::seconds(1));
        }
        return false;
      }
      buffered.append(chunk, *got);
    }
    code = {};
    size_t used = parser.put(boost::asio::buffer(buffered), code);
    buffered.erase(0, used);
    if (code && code != http::error::need_more) {
      (void)stream.write(
          render(error_response(status_of(code), "not a request that can be read: " + code.message()), false),
          std::chrono::steady_clock::now() + std::chrono::seconds(1));
      return false;
    }
  }
  auto& message = parser.get();
  bool keep_alive = message.keep_alive();
  ServerRequest request{std::string(message.method_string()), std::string(message.target()), std::move(message.body()),
                        stream.peer_name()};
  connections_.set_answering(id, true);
  ServerResponse response = handler_(request);
  keep_alive = keep_alive && !response.close && !stopping_.load();
  Result<void> written =
      stream.write(render(response, keep_alive), std::chrono::steady_clock::now() + options_.request_timeout);
  connections_.set_answering(id, false);
  return written.ok() && keep_alive;
}

}  // namespace sluice::scheduler
