// sluice explain POD: why a pod of a cluster waits, node by node, and what would help. The scheduler is the one who
// knows; it is asked through the API server's service proxy, with the caller's own rights, so that nobody needs a way
// into the cluster's network. --scheduler asks one directly.
#include "cli/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/kubectl.h"
#include "cli/table.h"
#include "kube/http_client.h"

namespace sluice::cli {
namespace {

// https: the scheduler's scheme, then its Service and the name of its port (deploy/manifests/scheduler.yaml).
constexpr const char* kProxy = "/api/v1/namespaces/sluice-system/services/https:sluice-scheduler:https/proxy";
constexpr size_t kRows = 30;  // nodes shown as text; --json has all

struct Row {
  int order = 0;  // nodes that fit, nodes that would after pods have left, all others
  std::string name;
  std::string reason;
  std::string helpers;
};

std::string text_of(const json::Object& object, std::string_view key) {
  Result<std::string> text = json::get_string_or(object, key, "");
  return text ? fit(*text, 400) : "";
}

Result<kube::Endpoint> endpoint_of(const ExplainOptions& options) {
  if (options.scheduler.empty()) return kube::find_endpoint(options.kubeconfig, options.context);
  if (Result<void> fine = kube::check_server_url("--scheduler", options.scheduler); !fine)
    return std::move(fine).error();
  kube::Endpoint endpoint;
  endpoint.server = options.scheduler;
  while (endpoint.server.ends_with('/')) endpoint.server.pop_back();
  endpoint.ca_file = options.ca_file;
  return endpoint;
}

// An API server's refusal is a metav1.Status, the scheduler's is {"error": ...}.
std::string sentence_of(const kube::HttpResponse& response) {
  if (Result<json::Value> body = json::parse(response.body); body && body->is_object()) {
    for (const char* key : {"error", "message"}) {
      Result<std::string> text = json::get_string(body->get_object(), key);
      if (text && !text->empty()) return fit(*text, 400);
    }
  }
  return fmt::format("HTTP {}", response.status);
}

Error refusal_of(const kube::HttpResponse& response, bool direct) {
  std::string said = sentence_of(response);
  if (response.status == 404 && said.find("no live pod") != std::string::npos) return not_found(said);
  if (response.status == 404 && !direct) {
    return unavailable(
        fmt::format("no scheduler at the Service sluice-scheduler of namespace sluice-system ({}); "
                    "--scheduler names another place",
                    said));
  }
  if (response.status == 401 || response.status == 403) {
    return permission(fmt::format("{}; needed is 'get' on services/proxy of sluice-system", said));
  }
  return unavailable(said);
}

// The scheduler's answer as text.
Result<std::string> ask(const ExplainOptions& options) {
  const bool direct = !options.scheduler.empty();
  const auto path_of = [direct](const PodName& pod) {
    return fmt::format("{}/explain/{}/{}", direct ? "" : kProxy, kube::url_encode(pod.name_space),
                       kube::url_encode(pod.name));
  };
  Result<kube::Endpoint> endpoint = endpoint_of(options);
  if (!endpoint && endpoint.error().message.find(kube::kSignsInThrough) != std::string::npos) {
    Result<PodName> pod = parse_pod_name(options.pod, "default");
    if (!pod) return std::move(pod).error();
    Result<std::string> body = kubectl_get({options.kubeconfig, options.context}, path_of(*pod));
    if (!body && body.error().code == ErrorCode::kNotFound)
      body.error().message +=
          fmt::format("; the scheduler knows no live pod {}/{}, or is not installed", pod->name_space, pod->name);
    return body;
  }
  if (!endpoint) return std::move(endpoint).error();
  Result<PodName> pod = parse_pod_name(options.pod, endpoint->default_namespace);
  if (!pod) return std::move(pod).error();
  kube::HttpClient client(*endpoint);
  kube::HttpRequest request;
  request.path = path_of(*pod);
  Result<kube::HttpResponse> response = client.send(request);
  if (!response) return std::move(response).error();
  if (response->status != 200) return refusal_of(*response, direct);
  return std::move(response->body);
}

}  // namespace

Result<PodName> parse_pod_name(const std::string& text, const std::string& default_namespace) {
  size_t slash = text.find('/');
  PodName pod{slash == std::string::npos ? default_namespace : text.substr(0, slash),
              slash == std::string::npos ? text : text.substr(slash + 1)};
  if (pod.name_space.empty() || pod.name.empty() || pod.name.find('/') != std::string::npos)
    return invalid(fmt::format("expected POD or NAMESPACE/POD, not '{}'", text));
  return pod;
}

std::string explain_text(const json::Object& answer) {
  std::string out = fmt::format("{}: {}", text_of(answer, "pod"), text_of(answer, "state"));
  if (std::string node = text_of(answer, "node"); !node.empty()) out += " on node " + node;
  out += "\n";
  for (const char* key : {"reason", "problem"}) {
    if (std::string text = text_of(answer, key); !text.empty()) out += "  " + text + "\n";
  }
  const json::Value* nodes = answer.if_contains("nodes");
  if (nodes == nullptr || !nodes->is_array() || nodes->get_array().empty()) return out;
  std::vector<Row> rows;
  for (const json::Value& item : nodes->get_array()) {
    if (!item.is_object()) continue;
    const json::Object& node = item.get_object();
    Row row{2, text_of(node, "node"), text_of(node, "reason"), ""};
    if (Result<bool> fits = json::get_bool_or(node, "fits", false); fits && *fits) row.order = 0;
    if (const json::Value* helpers = node.if_contains("would_fit_without"); helpers != nullptr && helpers->is_array()) {
      row.order = 1;
      for (const json::Value& helper : helpers->get_array()) {
        if (!helper.is_string()) continue;
        row.helpers += (row.helpers.empty() ? "" : ", ") + fit(std::string(helper.get_string()), 400);
      }
    }
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.order != b.order ? a.order < b.order : a.name < b.name; });
  std::vector<std::vector<std::string>> cells;
  for (size_t i = 0; i < std::min(rows.size(), kRows); ++i)
    cells.push_back({rows[i].name, rows[i].order == 0 ? "yes" : "no", rows[i].reason, rows[i].helpers});
  out += "\n" + table({{"NODE"}, {"FITS"}, {"REASON"}, {"WOULD FIT WITHOUT"}}, cells);
  if (rows.size() > kRows) out += fmt::format("and {} more nodes; --json has them all\n", rows.size() - kRows);
  return out;
}

int explain(const Options& options) {
  Result<std::string> body = ask(options.explain);
  if (!body) return fail("explain", body.error());
  Result<json::Value> answer = json::parse(*body);
  if (!answer || !answer->is_object())
    return fail("explain", unavailable("the answer is not what a Sluice scheduler says"));
  const std::string out = options.json ? json::to_pretty_string(*answer) : explain_text(answer->get_object());
  fputs(out.c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice::cli
