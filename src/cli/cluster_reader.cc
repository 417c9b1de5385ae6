#include "cli/cluster_reader.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "base/json_find.h"
#include "cli/kubectl.h"
#include "cli/table.h"
#include "kube/http_client.h"

namespace sluice::cli {
namespace {

constexpr size_t kPageItems = 500;  // as kubectl asks for
constexpr int kSeconds = 60;

class DirectReader final : public ClusterReader {
 public:
  DirectReader(const kube::Endpoint& endpoint, std::string needed)
      : server_(endpoint.server), needed_(std::move(needed)), http_(endpoint) {}

  Result<std::string> text(const std::string& path) override {
    kube::HttpRequest request;
    request.path = path;
    request.timeout = std::chrono::seconds(kSeconds);
    Result<kube::HttpResponse> response = http_.send(request);
    if (!response) {
      return unavailable(fmt::format("the API server {} does not answer: {}; is it the right kubeconfig and context?",
                                     server_, response.error().message));
    }
    if (response->status >= 200 && response->status < 300) return std::move(response->body);
    return refusal(*response);
  }

 private:
  Error refusal(const kube::HttpResponse& response) const {
    std::string said = fmt::format("HTTP {}", response.status);
    if (Result<json::Value> body = json::parse(response.body); body && body->is_object()) {
      Result<std::string> message = json::get_string_or(body->get_object(), "message", "");
      if (message && !message->empty()) said = fit(*message, 400);
    } else if (!response.body.empty()) {
      said += fmt::format(", '{}'", fit(response.body, 200));
    }
    said = "the API server says: " + said;
    switch (response.status) {
      case 401:
        return permission(
            fmt::format("{}; {} does not know this user, whose credentials may have expired", said, server_));
      case 403:
        return permission(fmt::format("{}; {}", said, needed_));
      case 404:
        return not_found(said);
      case 410:
        return Error{ErrorCode::kExists, said};
      default:
        return unavailable(said);
    }
  }

  std::string server_, needed_;
  kube::HttpClient http_;
};

class KubectlReader final : public ClusterReader {
 public:
  KubectlReader(KubectlOptions options, std::string needed)
      : options_(std::move(options)), needed_(std::move(needed)) {}

  Result<std::string> text(const std::string& path) override {
    Result<std::string> body = kubectl_get(options_, path);
    if (body) return body;
    Error error = std::move(body).error();
    if (error.message.find("(Expired)") != std::string::npos) error.code = ErrorCode::kExists;
    if (error.code == ErrorCode::kPermission && error.message.find("(Forbidden)") != std::string::npos)
      error.message += "; " + needed_;
    return error;
  }

 private:
  KubectlOptions options_;
  std::string needed_;
};

}  // namespace

Result<json::Object> ClusterReader::object(const std::string& path) {
  Result<std::string> body = text(path);
  if (!body) return std::move(body).error();
  Result<json::Value> value = json::parse(*body);
  if (!value || !value->is_object())
    return unavailable(fmt::format("what answers is no API server: {} is no JSON object", path));
  return std::move(value->get_object());
}

Result<json::Array> ClusterReader::list(const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    json::Array items;
    std::string next;
    bool expired = false;
    do {
      Result<json::Object> page =
          object(fmt::format("{}{}limit={}{}", path, path.find('?') == std::string::npos ? '?' : '&', kPageItems,
                             next.empty() ? "" : "&continue=" + kube::url_encode(next)));
      expired = !page && page.error().code == ErrorCode::kExists && attempt == 0;
      if (expired) break;
      if (!page) return std::move(page).error();
      json::Value* found = page->if_contains("items");
      if (found == nullptr || !found->is_array())
        return unavailable(fmt::format("what answers is no API server: there are no 'items' in {}", path));
      for (json::Value& item : found->get_array()) items.push_back(std::move(item));
      next.clear();
      if (const json::Object* metadata = json::find_object(*page, "metadata"); metadata != nullptr)
        next = json::find_text(*metadata, "continue");
    } while (!next.empty());
    if (!expired) return items;
  }
}

std::unique_ptr<ClusterReader> read_directly(const kube::Endpoint& endpoint, const std::string& needed) {
  return std::make_unique<DirectReader>(endpoint, needed);
}

std::unique_ptr<ClusterReader> read_through_kubectl(const std::string& kubeconfig, const std::string& context,
                                                    const std::string& needed) {
  return std::make_unique<KubectlReader>(KubectlOptions{kubeconfig, context, kSeconds}, needed);
}

Result<std::unique_ptr<ClusterReader>> open_cluster(const std::string& kubeconfig, const std::string& context,
                                                    const std::string& needed) {
  const char* variable = std::getenv("KUBECONFIG");
  const bool named = (variable != nullptr && *variable != '\0') || !context.empty();
  Result<kube::Endpoint> endpoint = kubeconfig.empty() && named
                                        ? kube::load_kubeconfig(kube::default_kubeconfig_paths(), context)
                                        : kube::find_endpoint(kubeconfig, context);
  if (endpoint) return read_directly(*endpoint, needed);
  if (endpoint.error().message.find(kube::kSignsInThrough) != std::string::npos)
    return read_through_kubectl(kubeconfig, context, needed);
  return std::move(endpoint).error();
}

}  // namespace sluice::cli
