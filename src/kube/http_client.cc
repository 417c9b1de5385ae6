#include "kube/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>
#include <mutex>

namespace sluice::kube {
namespace {

// A token on disk is rotated well before it ends; clients are expected to read it at least each minute.
constexpr std::chrono::seconds kTokenPeriod{60};

void initialise_curl() {
  static std::once_flag once;
  std::call_once(once, [] {
    // TLS writes with write(2): a peer that hangs up would end the program. CURLOPT_NOSIGNAL leaves this to us.
    ::signal(SIGPIPE, SIG_IGN);
    curl_global_init(CURL_GLOBAL_DEFAULT);
  });
}

struct Transfer {
  const HttpRequest* request;
  HttpResponse response;
  CURL* curl;
  bool stopped_by_callback = false;
  bool too_large = false;
};

size_t on_body(char* data, size_t size, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  size_t bytes = size * count;
  long status = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
  if (transfer.request->on_chunk && status == 200) {
    if (transfer.request->on_chunk({data, bytes})) return bytes;
    transfer.stopped_by_callback = true;
    return 0;
  }
  if (transfer.response.body.size() + bytes > kMaxBodyBytes) {
    transfer.too_large = true;
    return 0;
  }
  transfer.response.body.append(data, bytes);
  return bytes;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const Transfer& transfer = *static_cast<Transfer*>(user);
  return transfer.request->cancelled != nullptr && transfer.request->cancelled->load() ? 1 : 0;
}

// A peer that vanished is noticed within about 30 s, also in a watch that is silent by nature.
int on_socket(void*, curl_socket_t fd, curlsocktype) {
  auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
  return CURL_SOCKOPT_OK;
}

void set_pem(CURL* curl, CURLoption file_option, CURLoption blob_option, const std::string& file,
             const std::string& pem) {
  if (!pem.empty()) {
    curl_blob blob{const_cast<char*>(pem.data()), pem.size(), CURL_BLOB_COPY};
    curl_easy_setopt(curl, blob_option, &blob);
  } else if (!file.empty()) {
    curl_easy_setopt(curl, file_option, file.c_str());
  }
}

// Splits "https://host:port" (or [v6]:port); the port is 443 where none is written.
struct Authority {
  std::string host;
  std::string port = "443";
  std::string path = {};  // "" or "/..."
};
Authority authority_of(const std::string& server) {
  const size_t start = server.find("://");
  std::string rest = start == std::string::npos ? server : server.substr(start + 3);
  Authority found;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {  // as behind a proxy that serves many clusters
    found.path = rest.substr(slash);
    rest.resize(slash);
  }
  const size_t colon = rest.rfind(':');
  const bool port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  found.host = port ? rest.substr(0, colon) : rest;
  if (port) found.port = rest.substr(colon + 1);
  return found;
}

bool is_certificate_fault(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_SSL_ISSUER_ERROR;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = nullptr;
  Handle() { curl = curl_easy_init(); }
  ~Handle() { curl_easy_cleanup(curl); }
};

HttpClient::HttpClient(Endpoint endpoint) : endpoint_(std::move(endpoint)) {
  initialise_curl();
  handle_ = std::make_unique<Handle>();
}

HttpClient::~HttpClient() = default;

Result<std::string> HttpClient::token(bool fresh) {
  if (endpoint_.token_file.empty()) return endpoint_.token;
  auto now = std::chrono::steady_clock::now();
  if (fresh || cached_token_.empty() || now - token_read_at_ >= kTokenPeriod) {
    Result<std::string> read = read_token_file(endpoint_.token_file);
    if (read) {
      cached_token_ = *std::move(read);
      token_read_at_ = now;
    } else if (cached_token_.empty()) {  // a file that is being replaced keeps the last token in use
      return std::move(read).error().wrap("no token");
    }
  }
  return cached_token_;
}

Result<HttpResponse> HttpClient::send(const HttpRequest& request) {
  Result<HttpResponse> response = send_once(request);
  if (response && response->status == 401 && !endpoint_.token_file.empty()) {
    std::string before = cached_token_;
    if (Result<std::string> now = token(true); now && *now != before) return send_once(request);
  }
  return response;
}

Result<HttpResponse> HttpClient::send_once(const HttpRequest& request) {
  CURL* curl = handle_->curl;
  if (curl == nullptr) return internal("libcurl gave no handle (out of memory)");
  curl_easy_reset(curl);  // keeps the connection
  Transfer transfer{&request, {}, curl};
  struct FreeList {
    curl_slist* list = nullptr;
    ~FreeList() { curl_slist_free_all(list); }
  };
  std::string url = endpoint_.server + request.path;
  FreeList connect_to;
  if (!endpoint_.tls_server_name.empty()) {  // the certificate carries another name than the address
    Authority real = authority_of(endpoint_.server);
    url = fmt::format("https://{}:{}{}{}", endpoint_.tls_server_name, real.port, real.path, request.path);
    std::string rule = fmt::format("{}:{}:{}:{}", endpoint_.tls_server_name, real.port, real.host, real.port);
    connect_to.list = curl_slist_append(nullptr, rule.c_str());
    curl_easy_setopt(curl, CURLOPT_CONNECT_TO, connect_to.list);
  }
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 5000L);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  curl_easy_setopt(curl, CURLOPT_SOCKOPTFUNCTION, on_socket);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_ACCEPT_ENCODING, request.on_chunk ? nullptr : "");
  if (!endpoint_.proxy_url.empty()) curl_easy_setopt(curl, CURLOPT_PROXY, endpoint_.proxy_url.c_str());
  if (endpoint_.insecure) {
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  set_pem(curl, CURLOPT_CAINFO, CURLOPT_CAINFO_BLOB, endpoint_.ca_file, endpoint_.ca_pem);
  set_pem(curl, CURLOPT_SSLCERT, CURLOPT_SSLCERT_BLOB, endpoint_.certificate_file, endpoint_.certificate_pem);
  set_pem(curl, CURLOPT_SSLKEY, CURLOPT_SSLKEY_BLOB, endpoint_.key_file, endpoint_.key_pem);
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT" || request.method == "PATCH") {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  FreeList headers;
  auto add_header = [&headers](const std::string& line) {
    headers.list = curl_slist_append(headers.list, line.c_str());
  };
  add_header("Accept: application/json");
  add_header("Expect:");
  if (!request.body.empty()) add_header("Content-Type: " + request.content_type);
  Result<std::string> bearer = token(false);
  if (!bearer) return std::move(bearer).error();
  if (!bearer->empty()) add_header("Authorization: Bearer " + *bearer);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "sluice");

  CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_off_t retry_after_s = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after_s);
  transfer.response.status = static_cast<int>(status);
  transfer.response.retry_after = std::chrono::seconds(retry_after_s);
  if (code == CURLE_OK || transfer.stopped_by_callback) return std::move(transfer.response);
  if (transfer.too_large) return exhausted(fmt::format("{} answered with more than {} bytes", url, kMaxBodyBytes));
  if (code == CURLE_ABORTED_BY_CALLBACK) return unavailable("cancelled");
  std::string message = fmt::format("{} {}: {}", request.method, url, curl_easy_strerror(code));
  return is_certificate_fault(code) ? permission(message) : unavailable(message);
}

std::string url_encode(std::string_view text) {
  std::string out;
  for (char c : text) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                 c == '_' || c == '~';
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace sluice::kube
