// Calls on the Kubernetes API with their outcome as a value: ApiAnswer keeps the HTTP status for callers that branch,
// and to_error() makes an Error of one that is not 2xx, with the server's own words (metav1.Status.message) and a code
// that follows the status.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "kube/http_client.h"

namespace sluice::kube {

struct ApiAnswer {
  int status = 0;       // HTTP status; 0: nothing was heard (time-out, no connection): the call may have taken effect
  json::Value body;     // of a 2xx answer
  std::string message;  // of anything else
  std::chrono::milliseconds retry_after{0};

  bool ok() const { return status >= 200 && status < 300; }
  // A refusal is definite: the server has said no. No answer and 5xx are not.
  bool definitely_refused() const { return status >= 400 && status < 500 && status != 408 && status != 429; }
  Error to_error(std::string_view what) const;
};

enum class PatchKind { kMerge, kStrategicMerge, kApply };

class ApiClient {
 public:
  explicit ApiClient(Endpoint endpoint) : http_(std::move(endpoint)) {}

  ApiAnswer get(const std::string& path);
  ApiAnswer create(const std::string& path, const json::Value& body);
  ApiAnswer replace(const std::string& path, const json::Value& body);
  ApiAnswer remove(const std::string& path, const json::Value& options = nullptr);
  // kApply is server-side apply: `field_manager` owns the fields sent, `force` takes them from other managers.
  ApiAnswer patch(const std::string& path, PatchKind kind, const json::Value& body,
                  const std::string& field_manager = "sluice", bool force = true);

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  HttpClient& http() { return http_; }

 private:
  ApiAnswer call(HttpRequest request);

  HttpClient http_;
  std::chrono::milliseconds timeout_{10'000};
};

// "/api/v1/namespaces/NS/pods/NAME[/SUB]"; parts are percent-encoded.
std::string pod_path(std::string_view name_space, std::string_view name, std::string_view subresource = "");
std::string node_path(std::string_view name, std::string_view subresource = "");

}  // namespace sluice::kube
