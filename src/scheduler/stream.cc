#include "scheduler/stream.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::scheduler {
namespace {

Error tls_error(std::string_view what) {
  char text[256] = "connection ended";
  if (unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return unavailable(std::string(what) + ": " + text);
}

}  // namespace

Stream::Stream(Fd socket, SSL_CTX* context) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  if (context != nullptr) {
    ssl_.reset(SSL_new(context));
    SSL_set_fd(ssl_.get(), socket_.get());
    SSL_set_accept_state(ssl_.get());
  }
}

Stream::~Stream() = default;

Result<void> Stream::wait(short events, Deadline deadline) {
  while (true) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return unavailable("deadline passed");
    pollfd one{socket_.get(), events, 0};
    int ready = ::poll(&one, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return errno_error("poll", "socket", errno);
  }
}

template <typename Operation>
Result<size_t> Stream::repeat(Operation operation, Deadline deadline) {
  while (true) {
    ERR_clear_error();
    int result = operation();
    if (result > 0) return static_cast<size_t>(result);
    int reason = SSL_get_error(ssl_.get(), result);
    if (reason == SSL_ERROR_ZERO_RETURN) return size_t{0};
    if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE) return tls_error("TLS");
    if (Result<void> ready = wait(reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline); !ready) {
      return std::move(ready).error();
    }
  }
}

Result<void> Stream::handshake(Deadline deadline) {
  if (!ssl_) return {};
  Result<size_t> done = repeat([this] { return SSL_do_handshake(ssl_.get()); }, deadline);
  if (!done) return std::move(done).error();
  if (*done == 0) return unavailable("TLS: the peer closed during the handshake");
  return {};
}

Result<size_t> Stream::read(char* buffer, size_t size, Deadline deadline) {
  int want = static_cast<int>(std::min<size_t>(size, 1 << 30));
  if (ssl_) return repeat([&] { return SSL_read(ssl_.get(), buffer, want); }, deadline);
  while (true) {
    ssize_t got = ::recv(socket_.get(), buffer, size, 0);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno_error("read", "socket", errno);
    if (Result<void> ready = wait(POLLIN, deadline); !ready) return std::move(ready).error();
  }
}

Result<void> Stream::write(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    size_t put = 0;
    if (ssl_) {
      int want = static_cast<int>(std::min<size_t>(bytes.size(), 1 << 30));
      Result<size_t> wrote = repeat([&] { return SSL_write(ssl_.get(), bytes.data(), want); }, deadline);
      if (!wrote) return std::move(wrote).error();
      if (*wrote == 0) return unavailable("the peer closed the connection");
      put = *wrote;
    } else {
      ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno != EAGAIN) return errno_error("write", "socket", errno);
      if (sent < 0) {
        if (Result<void> ready = wait(POLLOUT, deadline); !ready) return ready;
        continue;
      }
      put = static_cast<size_t>(sent);
    }
    bytes.remove_prefix(put);
  }
  return {};
}

void Stream::close() {
  if (ssl_) SSL_shutdown(ssl_.get());  // one-sided: we do not wait for the answer
  ::shutdown(socket_.get(), SHUT_RDWR);
}

std::string Stream::peer_name() const {
  if (!ssl_ || SSL_get_verify_result(ssl_.get()) != X509_V_OK) return "";
  X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) return "";
  const X509_NAME* subject = X509_get_subject_name(certificate);
  int last = -1;
  for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_commonName, at)) >= 0;) last = at;
  if (last < 0) return "";
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, last)));
  if (size < 0) return "";
  std::string name(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  OPENSSL_free(text);
  return name;
}

}  // namespace sluice::scheduler
