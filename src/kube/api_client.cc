#include "kube/api_client.h"

#include <fmt/format.h>

namespace sluice::kube {
namespace {

// The sentence of a metav1.Status, or the beginning of whatever came instead.
std::string status_message(int status, const std::string& body) {
  if (Result<json::Value> value = json::parse(body); value && value->is_object()) {
    if (Result<std::string> message = json::get_string(value->get_object(), "message"); message) return *message;
  }
  return fmt::format("HTTP {}{}{}", status, body.empty() ? "" : ": ", body.substr(0, 200));
}

}  // namespace

Error ApiAnswer::to_error(std::string_view what) const {
  ErrorCode code = ErrorCode::kUnavailable;
  switch (status) {
    case 400:
    case 422:
      code = ErrorCode::kInvalid;
      break;
    case 401:
    case 403:
      code = ErrorCode::kPermission;
      break;
    case 404:
      code = ErrorCode::kNotFound;
      break;
    case 409:
      code = ErrorCode::kExists;
      break;
    default:
      break;
  }
  return Error{code, message}.wrap(what);
}

ApiAnswer ApiClient::call(HttpRequest request) {
  request.timeout = timeout_;
  Result<HttpResponse> response = http_.send(request);
  ApiAnswer answer;
  if (!response) {
    answer.message = response.error().message;
    return answer;
  }
  answer.status = response->status;
  answer.retry_after = response->retry_after;
  if (!answer.ok()) {
    answer.message = status_message(response->status, response->body);
    return answer;
  }
  Result<json::Value> body = json::parse(response->body);
  if (!body) {
    answer.status = 0;
    answer.message = fmt::format("{} {}: answer is {}", request.method, request.path, body.error().message);
    return answer;
  }
  answer.body = *std::move(body);
  return answer;
}

ApiAnswer ApiClient::get(const std::string& path) {
  HttpRequest request;
  request.path = path;
  return call(std::move(request));
}

ApiAnswer ApiClient::create(const std::string& path, const json::Value& body) {
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.body = json::to_string(body);
  return call(std::move(request));
}

ApiAnswer ApiClient::replace(const std::string& path, const json::Value& body) {
  HttpRequest request;
  request.method = "PUT";
  request.path = path;
  request.body = json::to_string(body);
  return call(std::move(request));
}

ApiAnswer ApiClient::remove(const std::string& path, const json::Value& options) {
  HttpRequest request;
  request.method = "DELETE";
  request.path = path;
  if (!options.is_null()) request.body = json::to_string(options);
  return call(std::move(request));
}

ApiAnswer ApiClient::patch(const std::string& path, PatchKind kind, const json::Value& body,
                           const std::string& field_manager, bool force) {
  static constexpr const char* kTypes[] = {"application/merge-patch+json", "application/strategic-merge-patch+json",
                                           "application/apply-patch+yaml"};
  HttpRequest request;
  request.method = "PATCH";
  request.path = path + (path.find('?') == std::string::npos ? "?" : "&") + "fieldManager=" + url_encode(field_manager);
  if (kind == PatchKind::kApply && force) request.path += "&force=true";
  request.content_type = kTypes[static_cast<int>(kind)];
  request.body = json::to_string(body);
  return call(std::move(request));
}

std::string pod_path(std::string_view name_space, std::string_view name, std::string_view subresource) {
  return fmt::format("/api/v1/namespaces/{}/pods/{}{}{}", url_encode(name_space), url_encode(name),
                     subresource.empty() ? "" : "/", subresource);
}

std::string node_path(std::string_view name, std::string_view subresource) {
  return fmt::format("/api/v1/nodes/{}{}{}", url_encode(name), subresource.empty() ? "" : "/", subresource);
}

}  // namespace sluice::kube
