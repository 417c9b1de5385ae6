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
#include "base/output.h"
#include "base/yaml.h"
#include "cli/exit_codes.h"
#include "cli/inspect.h"
#include "cli/inspect_options.h"
#include "cli/kubectl.h"
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

// Where lists come from: straight from the API server, or through kubectl for users who sign in through a plugin.
class Source {
 public:
  explicit Source(const kube::Endpoint& endpoint) : server_(endpoint.server) {
    client_ = std::make_unique<kube::ApiClient>(endpoint);
    client_->set_timeout(std::chrono::seconds(kListSeconds));
  }
  explicit Source(KubectlOptions kubectl) : kubectl_(std::move(kubectl)) {}

  // kExists: the list has grown too old on the way (410).
  Result<json::Value> get(const std::string& path) {
    if (!client_) return get_through_kubectl(path);
    kube::ApiAnswer answer = client_->get(path);
    if (answer.status == kGone) return Error{ErrorCode::kExists, answer.message};
    if (!answer.ok()) return refusal(answer);
    return std::move(answer.body);
  }

 private:
  static constexpr int kGone = 410;

  Error refusal(const kube::ApiAnswer& answer) const {
    Error error = answer.to_error("the API server says");
    if (answer.status == 0) {
      error.message = fmt::format("the API server {} does not answer: {}; is it the right kubeconfig and context?",
                                  server_, answer.message);
    } else if (answer.status == 401) {
      error.message += fmt::format("; {} does not know this user, whose credentials may have expired", server_);
    } else if (answer.status == 403) {
      error.message += kNeeded;
    }
    return error;
  }

  Result<json::Value> get_through_kubectl(const std::string& path) const {
    Result<std::string> body = kubectl_get(kubectl_, path);
    if (body) return json::parse(*body);
    if (body.error().message.find("(Expired)") != std::string::npos)
      return Error{ErrorCode::kExists, body.error().message};
    if (body.error().code == ErrorCode::kPermission && body.error().message.find("(Forbidden)") != std::string::npos)
      body.error().message += kNeeded;
    return std::move(body).error();
  }

  static constexpr const char* kNeeded = "; needed are 'list' on nodes and on pods of all namespaces";
  std::string server_;
  std::unique_ptr<kube::ApiClient> client_;
  KubectlOptions kubectl_;
};

// All items of a list, page by page. One that has grown too old on the way is begun once more.
Result<json::Array> list(Source& source, const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    json::Array items;
    std::string next;
    bool expired = false;
    do {
      Result<json::Value> page =
          source.get(fmt::format("{}{}limit={}{}", path, path.find('?') == std::string::npos ? '?' : '&', kPageItems,
                                 next.empty() ? "" : "&continue=" + kube::url_encode(next)));
      expired = !page && page.error().code == ErrorCode::kExists && attempt == 0;
      if (expired) break;
      if (!page) return std::move(page).error();
      json::Object* body = page->is_object() ? &page->get_object() : nullptr;
      json::Value* found = body == nullptr ? nullptr : body->if_contains("items");
      if (found == nullptr || !found->is_array())
        return unavailable(fmt::format("what answers is no API server: there are no 'items' in {}", path));
      for (json::Value& item : found->get_array()) items.push_back(std::move(item));
      next.clear();
      if (json::Value* metadata = body->if_contains("metadata"); metadata != nullptr && metadata->is_object()) {
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
  const bool plugin = !endpoint && endpoint.error().message.find(kube::kSignsInThrough) != std::string::npos;
  if (!endpoint && !plugin) return fail(endpoint.error());
  Source source =
      plugin ? Source(KubectlOptions{arguments.kubeconfig, arguments.context, kListSeconds}) : Source(*endpoint);
  Result<json::Array> nodes = list(source, "/api/v1/nodes");
  if (!nodes) return fail(nodes.error());
  std::string path = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
  if (arguments.nodes.size() == 1) path += "%2Cspec.nodeName%3D" + kube::url_encode(arguments.nodes.front());
  Result<json::Array> pods = list(source, path);
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
    int status = parsed.exit_status;
    if (parsed.arguments)
      status = run(*parsed.arguments);
    else
      std::fputs(parsed.text.c_str(), status == kExitOk ? stdout : stderr);
    return sluice::finish_output("kubectl inspect cgpu", status, kExitInternal);
  } catch (const std::exception& error) {
    // Libraries may throw when memory runs out; nothing of ours does.
    std::fprintf(stderr, "kubectl inspect cgpu: %s\n", error.what());
    return kExitInternal;
  }
}
