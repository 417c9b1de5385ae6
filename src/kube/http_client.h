// HTTP out, and the one place that meets libcurl. One HttpClient holds one connection handle: use it from one thread,
// or one at a time; give each watch its own. HTTP/1.1 on purpose: over HTTP/2 several watches would share one
// connection and die together without the PING logic that other clients have.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kube/endpoint.h"

namespace sluice::kube {

struct HttpRequest {
  std::string method = "GET";
  std::string path;  // with query; begins with '/'
  std::string body;
  std::string content_type = "application/json";
  std::chrono::milliseconds timeout{10'000};  // the whole exchange; zero: none (watches set their own server-side end)
  // When set, a body of status 200 is handed over as it arrives and not kept; returning false ends the exchange.
  std::function<bool(std::string_view)> on_chunk;
  // When set and true, the exchange ends within about a second with kUnavailable.
  const std::atomic<bool>* cancelled = nullptr;
};

struct HttpResponse {
  int status = 0;
  std::string body;                          // at most kMaxBodyBytes
  std::chrono::milliseconds retry_after{0};  // from the header of a 429 or 503
};

inline constexpr size_t kMaxBodyBytes = 512u << 20;  // a full pod list of a large cluster is some 100 MB

class HttpClient {
 public:
  explicit HttpClient(Endpoint endpoint);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any HTTP status is a response; errors are kUnavailable (no connection, time-out, cut), kPermission (certificates)
  // or kExhausted (body too large). A 401 is tried once more with a token read anew from its file.
  Result<HttpResponse> send(const HttpRequest& request);

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  struct Handle;
  Result<HttpResponse> send_once(const HttpRequest& request);
  Result<std::string> token(bool fresh);

  Endpoint endpoint_;
  std::unique_ptr<Handle> handle_;
  std::string cached_token_;
  std::chrono::steady_clock::time_point token_read_at_{};
};

// Percent-encodes everything but unreserved characters (RFC 3986, 2.3), for path segments and query values.
std::string url_encode(std::string_view text);

}  // namespace sluice::kube
