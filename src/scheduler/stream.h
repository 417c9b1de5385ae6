// A connected socket, plain or TLS, with a deadline on every operation. Blocking for the caller, non-blocking
// underneath: each wait is a poll() with the time that is left, so that a slow or silent peer costs one bounded wait.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/result.h"

namespace sluice::scheduler {

using Deadline = std::chrono::steady_clock::time_point;

class Stream {
 public:
  // Takes the socket over. `context` nullptr: plain TCP.
  Stream(Fd socket, SSL_CTX* context);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The TLS handshake; nothing to do on a plain stream.
  Result<void> handshake(Deadline deadline);

  // Reads what is there, at least one byte; 0 at the end of the stream.
  Result<size_t> read(char* buffer, size_t size, Deadline deadline);
  Result<void> write(std::string_view bytes, Deadline deadline);

  // Tells the peer that nothing more comes.
  void close();

  // Common name of the client's verified certificate, empty where there is none. Of several the last one counts, as for
  // the API server: whoever approved the certificate has seen that one.
  std::string peer_name() const;

  int fd() const { return socket_.get(); }
  // True when bytes are already decrypted and waiting: poll() would not see them.
  bool pending() const { return ssl_ && SSL_pending(ssl_.get()) > 0; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  Result<void> wait(short events, Deadline deadline);
  // Runs an SSL operation until it succeeds, fails or the deadline passes; returns its positive result, 0 at the end.
  template <typename Operation>
  Result<size_t> repeat(Operation operation, Deadline deadline);

  Fd socket_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

}  // namespace sluice::scheduler
