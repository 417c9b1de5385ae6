// kubectl-inspect-cgpu: found by kubectl in PATH as the plugin behind `kubectl inspect cgpu`. Reads the command line,
// fetches nodes and pods with the caller's own rights, prints. All thinking is in inspect*.cc.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/yaml.h"
#include "cli/exit_codes.h"
#include "cli/inspect.h"
#include "cli/inspect_options.h"
#include "kube/api_client.h"

namespace sluice::cli {
namespace {

constexpr size_t kPageItems = 500;  // as kubectl asks for
constexpr size_t kMaxKeyBytes = 64 << 10;
constexpr int kListSeconds = 60;

int fail(const Error& error) {
  fmt::print(stderr, "kubectl inspect cgpu: {}\n", error.message);
  return exit_code(error.code);
}

Error refusal(const kube::ApiAnswer& answer, const std::string& server, std::string_view what) {
  Error error = answer.to_error(fmt::format("cannot list {}", what));
  if (answer.status == 0) {
    error.message = fmt::format("the API server {} does not answer: {}; is it the right kubeconfig and context?",
                                server, answer.message);
  } else if (answer.status == 401) {
    error.message +=
        fmt::format("; the API server {} does not know this user, whose credentials may have expired", server);
  } else if (answer.status == 403) {
    error.message += "; needed are 'list' on nodes and on pods of all namespaces";
  }
  return error;
}

// All items of a list, page by page. A list that has grown too old on the way (410) is begun once more.
Result<json::Array> list(kube::ApiClient& client, const std::string& server, std::string_view what,
                         const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    json::Array items;
    std::string next;
    bool expired = false;
    do {
      kube::ApiAnswer answer =
          client.get(fmt::format("{}{}limit={}{}", path, path.find('?') == std::string::npos ? '?' : '&', kPageItems,
                                 next.empty() ? "" : "&continue=" + kube::url_encode(next)));
      expired = answer.status == 410 && attempt == 0;
      if (expired) break;
      if (!answer.ok()) return refusal(answer, server, what);
      if (!answer.body.is_object()) return unavailable(fmt::format("{} does not answer as an API server does", server));
      json::Object& body = answer.body.get_object();
      json::Value* page = body.if_contains("items");
      if (page == nullptr || !page->is_array())
        return unavailable(fmt::format("{} does not answer as an API server does: no 'items' in {}", server, path));
      for (json::Value& item : page->get_array()) items.push_back(std::move(item));
      next.clear();
      if (json::Value* metadata = body.if_contains("metadata"); metadata != nullptr && metadata->is_object()) {
        if (Result<std::string> token = json::get_string_or(metadata->get_object(), "continue", ""); token)
          next = *token;
      }
    } while (!next.empty());
    if (!expired) return items;
  }
}

// kubectl's own order: a file that is named, then KUBECONFIG, then the pod that we run in, then ~/.kube/config.
Result<kube::Endpoint> endpoint_of(const InspectArguments& arguments) {
  const char* variable = std::getenv("KUBECONFIG");
  const bool named = (variable != nullptr && *variable != '\0') || !arguments.context.empty();
  if (arguments.kubeconfig.empty() && named) {
    return kube::load_kubeconfig(kube::default_kubeconfig_paths(), arguments.context);
  }
  return kube::find_endpoint(arguments.kubeconfig, arguments.context);
}

Result<std::unique_ptr<kube::Verifier>> read_keys(const std::vector<std::string>& files) {
  if (files.empty()) return std::unique_ptr<kube::Verifier>();
  std::vector<std::string> texts;
  for (const std::string& file : files) {
    Result<std::string> text = read_file(file, kMaxKeyBytes);
    if (!text) return std::move(text).error();
    texts.push_back(*std::move(text));
  }
  Result<kube::Verifier> verifier = kube::Verifier::from_pem(texts);
  if (!verifier) return std::move(verifier).error().wrap("--allocation-key");
  return std::make_unique<kube::Verifier>(*std::move(verifier));
}

int run(const InspectArguments& arguments) {
  Result<std::unique_ptr<kube::Verifier>> keys = read_keys(arguments.key_files);
  if (!keys) return fail(keys.error());
  Result<kube::Endpoint> endpoint = endpoint_of(arguments);
  if (!endpoint) return fail(endpoint.error());
  kube::ApiClient client(*endpoint);
  client.set_timeout(std::chrono::seconds(kListSeconds));
  Result<json::Array> nodes = list(client, endpoint->server, "nodes", "/api/v1/nodes");
  if (!nodes) return fail(nodes.error());
  std::string path = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
  if (arguments.nodes.size() == 1) path += "%2Cspec.nodeName%3D" + kube::url_encode(arguments.nodes.front());
  Result<json::Array> pods = list(client, endpoint->server, "pods", path);
  if (!pods) return fail(pods.error());

  Result<Inspection> inspection = inspect(*nodes, *pods, {arguments.nodes, keys->get()});
  if (!inspection) return fail(inspection.error());
  std::string out;
  switch (arguments.output) {
    case InspectOutput::kText:
    case InspectOutput::kWide:
      out = inspect_text(*inspection, arguments.layout, arguments.output == InspectOutput::kWide);
      break;
    case InspectOutput::kJson:
      out = json::to_pretty_string(inspect_json(*inspection));
      break;
    case InspectOutput::kYaml:
      out = yaml::to_string(inspect_json(*inspection));
      break;
  }
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
  for (const std::string& note : inspect_notes(*inspection)) fmt::print(stderr, "note: {}\n", note);
  return kExitOk;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  using namespace sluice::cli;
  try {
    const ParsedInspectArguments parsed = parse_inspect_arguments(std::vector<std::string>(argv + 1, argv + argc));
    if (parsed.arguments) return run(*parsed.arguments);
    std::fputs(parsed.text.c_str(), parsed.exit_status == kExitOk ? stdout : stderr);
    return parsed.exit_status;
  } catch (const std::exception& error) {
    // Libraries may throw when memory runs out; nothing of ours does.
    std::fprintf(stderr, "kubectl inspect cgpu: %s\n", error.what());
    return kExitInternal;
  }
}
