#include "cli/inspect_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/exit_codes.h"

namespace sluice::cli {
namespace {

#ifndef SLUICE_VERSION
#error "SLUICE_VERSION comes from the build"
#endif

constexpr const char* kProgram = "kubectl inspect cgpu";

constexpr const char* kFooter = R"(Examples:
  kubectl inspect cgpu                 one row per node that shares cards
  kubectl inspect cgpu -d              the pods of each node and what they hold of each card
  kubectl inspect cgpu -d node-a
  kubectl inspect cgpu -o json         for programs

Units are the cluster's memory units (GiB unless set otherwise); compute is in percent, 100 = one card.
Pods that are bound to a node and hold no card stand in the column PENDING and count as allocated nowhere.
Needed: 'list' on nodes and on the pods of all namespaces.

Exit status: 0 shown, also when there is nothing to show; 2 wrong options; 120 wrong kubeconfig;
122 no such file or node; 123 the API server cannot be reached; 124 it does not allow it.
)";

class Layout : public CLI::Formatter {
 public:
  Layout() { column_width(30); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return fmt::format("usage: {} [OPTIONS] [NODE...]\n", kProgram);
  }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer(); }
};

ParsedInspectArguments problem(const std::string& text) {
  return {std::nullopt, fmt::format("{}: {}\n{} --help lists what it takes\n", kProgram, text, kProgram), kExitUsage};
}

}  // namespace

ParsedInspectArguments parse_inspect_arguments(const std::vector<std::string>& arguments) {
  InspectArguments out;
  bool details = false;
  std::string output;
  CLI::App app("Show the nodes of a cluster that share cards: what of each card is allocated, and to which pods.",
               kProgram);
  app.formatter(std::make_shared<Layout>());
  app.set_help_flag("-h,--help", "print this text");
  app.set_version_flag("--version", fmt::format("{} {}", kProgram, SLUICE_VERSION), "print the version");
  app.add_flag("-d,--details", details, "one block per node with its pods");
  app.add_option("-o,--output", output, "wide, json or yaml")->type_name("HOW");
  app.add_option("--kubeconfig", out.kubeconfig,
                 "kubeconfig file (default: KUBECONFIG, else a pod's service account, else ~/.kube/config)")
      ->type_name("FILE");
  app.add_option("--context", out.context, "context of the kubeconfig")->type_name("NAME");
  app.add_option("--allocation-key", out.key_files,
                 "public key of the scheduler, PEM; pods' records are then checked against it (repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("NODE", out.nodes, "only these nodes");
  app.footer(kFooter);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help(), kExitOk};
  } catch (const CLI::CallForVersion& version) {
    return {std::nullopt, std::string(version.what()) + "\n", kExitOk};
  } catch (const CLI::ParseError& error) {
    return problem(error.what());
  }
  out.layout = details ? InspectLayout::kDetails : InspectLayout::kSummary;
  if (output == "wide")
    out.output = InspectOutput::kWide;
  else if (output == "json")
    out.output = InspectOutput::kJson;
  else if (output == "yaml")
    out.output = InspectOutput::kYaml;
  else if (!output.empty())
    return problem(fmt::format("-o is wide, json or yaml, not '{}'", output));
  for (const std::string& node : out.nodes) {
    if (node.empty()) return problem("a node's name is empty");
  }
  return {out, "", kExitOk};
}

}  // namespace sluice::cli
