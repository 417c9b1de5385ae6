// A plain HTTP server for tests that plays a script: each request is answered by the next step, in order. What was
// asked is kept. One connection at a time, closed after each answer.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sluice::kube {

struct ScriptedAnswer {
  int status = 200;
  std::string body = {};
  bool cut = false;                // promises more bytes than it sends
  std::string extra_headers = {};  // each ended by \r\n
  int delay_ms = 0;                // before the answer
};

class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<ScriptedAnswer> script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 16);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = fmt::format("http://127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    stopping_ = true;
    thread_.join();
    ::close(listener_);
  }
  const std::string& url() const { return url_; }
  std::vector<std::string> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  // Waits until n requests have come or five seconds have passed.
  bool wait_for_requests(size_t n) {
    for (int i = 0; i < 500; ++i) {
      if (requests().size() >= n) return true;
      ::usleep(10'000);
    }
    return false;
  }

 private:
  void serve() {
    while (!stopping_) {
      pollfd ready{listener_, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      answer(fd);
      ::close(fd);
    }
  }
  void answer(int fd) {
    std::string text;
    char buffer[4096];
    size_t need = std::string::npos;
    while (need == std::string::npos || text.size() < need) {
      ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) return;
      text.append(buffer, static_cast<size_t>(got));
      size_t end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      size_t length = text.find("Content-Length: ");
      need = end + 4 + (length == std::string::npos ? 0 : std::stoul(text.substr(length + 16)));
    }
    size_t step;
    {
      std::lock_guard lock(mutex_);
      step = requests_.size();
      requests_.push_back(text);
    }
    ScriptedAnswer answer = step < script_.size() ? script_[step] : ScriptedAnswer{503, "", false, "", 0};
    if (answer.delay_ms > 0) ::usleep(static_cast<useconds_t>(answer.delay_ms) * 1'000);
    std::string head = fmt::format("HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {}\r\n{}\r\n", answer.status,
                                   answer.body.size() + (answer.cut ? 100 : 0), answer.extra_headers);
    std::string all = head + answer.body;
    [[maybe_unused]] ssize_t sent = ::send(fd, all.data(), all.size(), MSG_NOSIGNAL);
  }

  std::vector<ScriptedAnswer> script_;
  int listener_ = -1;
  std::string url_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice::kube
