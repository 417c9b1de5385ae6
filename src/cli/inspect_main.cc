// kubectl-inspect-cgpu: found by kubectl in PATH as the plugin behind `kubectl inspect cgpu`. Reads the command line,
// fetches nodes and pods with the caller's own rights, prints. All thinking is in inspect*.cc.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/output.h"
#include "base/yaml.h"
#include "cli/cluster_reader.h"
#include "cli/exit_codes.h"
#include "cli/inspect.h"
#include "cli/inspect_options.h"
#include "kube/api_client.h"
#include "kube/signature.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxKeyBytes = 64 << 10;

int fail(const Error& error) {
  fmt::print(stderr, "kubectl inspect cgpu: {}\n", error.message);
  return exit_code(error.code);
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
  Result<std::unique_ptr<ClusterReader>> cluster =
      open_cluster(arguments.kubeconfig, arguments.context, "needed are 'list' on nodes and on pods of all namespaces");
  if (!cluster) return fail(cluster.error());
  Result<json::Array> nodes = (*cluster)->list("/api/v1/nodes");
  if (!nodes) return fail(nodes.error());
  std::string path = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
  if (arguments.nodes.size() == 1) path += "%2Cspec.nodeName%3D" + kube::url_encode(arguments.nodes.front());
  Result<json::Array> pods = (*cluster)->list(path);
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
