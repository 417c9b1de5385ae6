#include "scheduler/forwarder.h"

namespace sluice::scheduler {
namespace {

constexpr size_t kMaxIdle = 32;
// A call goes on once. Where two followers each take the other for the leader, or one finds its own address in a lease
// of its former life, it would else go round until all connections are in use.
constexpr const char* kForwarded = "?forwarded";

}  // namespace

std::unique_ptr<kube::HttpClient> Forwarder::take(const std::string& url) {
  std::lock_guard lock(mutex_);
  if (url != url_) {
    idle_.clear();
    url_ = url;
  }
  if (!idle_.empty()) {
    std::unique_ptr<kube::HttpClient> client = std::move(idle_.back());
    idle_.pop_back();
    return client;
  }
  kube::Endpoint endpoint = certificates_;
  endpoint.server = url;
  return std::make_unique<kube::HttpClient>(std::move(endpoint));
}

void Forwarder::give_back(std::unique_ptr<kube::HttpClient> client) {
  std::lock_guard lock(mutex_);
  if (client->endpoint().server == url_ && idle_.size() < kMaxIdle) idle_.push_back(std::move(client));
}

ServerResponse Forwarder::forward(const ServerRequest& request, const std::string& leader_url) {
  ServerResponse none = error_response(503, "this replica does not lead and the leader cannot be reached");
  none.close = true;
  if (leader_url.empty() || request.target.ends_with(kForwarded)) return none;
  kube::HttpRequest out;
  out.method = request.method;
  out.path = request.target + kForwarded;
  out.body = request.body;
  out.timeout = timeout_;
  std::unique_ptr<kube::HttpClient> client = take(leader_url);
  Result<kube::HttpResponse> answer = client->send(out);
  if (!answer) return none;
  give_back(std::move(client));
  return {answer->status, std::move(answer->body), "application/json", answer->status == 503};
}

}  // namespace sluice::scheduler
