// HTTP in: a small HTTP/1.1 server for a cluster-facing port. Boost.Beast parses, our Stream carries, one thread per
// connection answers; connections, headers, bodies and every wait are bounded. Clients (kube-scheduler, the API server,
// Prometheus) keep few connections alive, so threads are the simple thing that is fast enough.
//
// TLS certificates are read again when their files change: new connections get the new ones, old ones live on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/connections.h"
#include "base/result.h"
#include "scheduler/stream.h"

namespace sluice::scheduler {

struct ServerRequest {
  std::string method;
  std::string target;  // path with query
  std::string body;
  std::string peer;  // common name of the client's certificate, empty without one
};

struct ServerResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  bool close = false;   // ask the client to use another connection next time
  bool failed = false;  // status 200 with an error inside, as the extender's protocol wants it
};

// Called from many threads at once.
using Handler = std::function<ServerResponse(const ServerRequest&)>;

struct ServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;             // 0: chosen by the kernel
  std::string certificate_file;  // empty: plain HTTP
  std::string key_file;
  std::string client_ca_file;      // clients that show a certificate must have one of this CA; see ServerRequest::peer
  uint32_t max_connections = 256;  // when full, the one that has waited longest for its client gives way
  uint64_t max_header_bytes = 64u << 10;
  uint64_t max_body_bytes = 64u << 20;
  std::chrono::milliseconds request_timeout{10'000};  // from a request's first byte to its last, and for the answer
  std::chrono::milliseconds idle_timeout{90'000};     // between requests
};

class HttpServer {
 public:
  static Result<std::unique_ptr<HttpServer>> start(ServerOptions options, Handler handler);
  ~HttpServer();  // stops accepting, ends connections, joins

  uint16_t port() const { return port_; }
  uint64_t refused_connections() const { return refused_.load(); }

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Context = std::shared_ptr<SSL_CTX>;

  HttpServer(ServerOptions options, Handler handler)
      : options_(std::move(options)), handler_(std::move(handler)), connections_(options_.max_connections) {}
  Result<void> listen();
  Result<Context> load_context() const;
  Context current_context();
  std::string certificate_stamp() const;
  void accept_loop();
  void serve(Fd socket, Context context, Connections::Id id);
  bool serve_one(Stream& stream, std::string& buffered, Connections::Id id);
  bool wait_for_request(Stream& stream);

  ServerOptions options_;
  Handler handler_;
  Fd listener_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  Connections connections_;
  std::atomic<uint64_t> refused_{0};
  std::mutex context_mutex_;  // context_, stamp_, checked_at_
  Context context_;
  std::string stamp_;
  std::chrono::steady_clock::time_point checked_at_{};
  std::thread accept_thread_;
};

// A JSON error body: {"error": "..."}.
ServerResponse error_response(int status, std::string_view message);

}  // namespace sluice::scheduler
