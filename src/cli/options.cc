#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/exit_codes.h"

namespace sluice::cli {
namespace {

#ifndef SLUICE_VERSION
#error "SLUICE_VERSION comes from the build"
#endif

constexpr const char* kRunFooter = R"(Examples:
  sluice run --gpu-mem 10 --gpu-core 30 -- python train.py
  sluice run --gpu-mem 8 -- nvidia-smi          memory limited, compute shared
  sluice run --gpus 1 -- ./benchmark            a whole card, nobody else on it
  sluice run -f examples/shared.yaml            a batch/v1 Job or a Pod; its image is not used,
                                                the command runs on this machine as you

Memory is in units of a card (GiB): the limit is card MiB x units / units of the card, so that all
units together are the whole card. Compute is in percent of a card, a multiple of 5, and needs --gpu-mem.
The command runs as the calling user in a private mount namespace; signals are passed on to it.

Exit status: the command's own; 128 + N when signal N ended it; else
)";

std::string run_footer() {
  std::string text = kRunFooter;
  for (const ExitCode& entry : kExitCodes) text += fmt::format("  {}  {}\n", entry.code, entry.meaning);
  text.pop_back();
  return text;
}

// CLI11's own layout lists groups before usage text of ours; this keeps usage, what it does, options, examples.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(30); }
  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string usage = "usage: " + full_name(app);
    if (!app->get_subcommands({}).empty()) return usage + " COMMAND [OPTIONS]\n";
    usage += " [OPTIONS]";
    const std::string name = app->get_name();
    if (name == "run") usage += " -- COMMAND [ARGUMENT...]\n       sluice run [OPTIONS] -f MANIFEST [--job NAME]";
    if (name == "set") usage += " GRANT";
    if (name == "explain") usage += " [NAMESPACE/]POD";
    return usage + "\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    return footer.empty() ? "" : footer + "\n";
  }

  static std::string full_name(const CLI::App* app) {
    return app->get_parent() == nullptr ? app->get_name() : app->get_parent()->get_name() + " " + app->get_name();
  }
};

// The parser and the values it fills, which have to live as long as it does.
struct Parser {
  Options options;
  std::string delivery = "bind";
  std::string priority;
  std::unique_ptr<CLI::App> app;
  CLI::App* run = nullptr;
  CLI::App* ps = nullptr;
  CLI::App* top = nullptr;
  CLI::App* set = nullptr;
  CLI::App* cards = nullptr;
  CLI::App* doctor = nullptr;
  CLI::App* demo = nullptr;
  CLI::App* explain = nullptr;
  CLI::App* verify = nullptr;

  Parser();
  void add_run();
  void add_set();
  void add_others();
  void add_doctor();
  void add_explain();
  void add_verify();
  CLI::App* add(const std::string& name, const std::string& description);
  bool is_command(const std::string& name) const {
    const auto commands = app->get_subcommands([&](const CLI::App* a) { return a->get_name() == name; });
    return !commands.empty();
  }
};

CLI::App* Parser::add(const std::string& name, const std::string& description) {
  CLI::App* command = app->add_subcommand(name, description);
  command->set_help_flag("-h,--help", "print this text");
  command
      ->add_option("--run-dir", options.run_directory,
                   "the agent's run directory (default: SLUICE_RUN_DIR, else /run/sluice, else your own)")
      ->type_name("DIR");
  return command;
}

void Parser::add_run() {
  run = add("run", "Start a command that sees and gets its share of a card");
  RunOptions& o = options.run;
  run->add_option("--gpu-mem", o.memory_units, "card memory in units (GiB)")->type_name("N");
  run->add_option("--gpu-core", o.core_percent, "compute in percent of a card: 5, 10, ... 100")->type_name("P");
  run->add_option("--gpus", o.whole_cards, "whole cards, exclusive, instead of --gpu-mem")->type_name("N");
  run->add_option("--gpu-count", o.card_count, "split memory and compute evenly over this many cards")->type_name("M");
  run->add_option("--name", o.name, "name for ps, top and set (default: the command's)")->type_name("NAME");
  run->add_option("--policy", o.policy,
                  "compute policy of the card: fair, preemptive, weighted, fixed, burst, native or 0..5")
      ->type_name("POLICY");
  run->add_option("--weight", o.weight, "weight under the policy 'weighted', 1..1000")->type_name("W");
  run->add_flag("--high-priority", o.high_priority, "latency first: before others whenever there is work and budget");
  run->add_option("-f,--file", o.manifest,
                  "take command and requests from a batch/v1 Job or Pod manifest ('-': standard input)")
      ->type_name("FILE");
  run->add_option("--job", o.job, "which Job or Pod, where the manifest holds several")->type_name("NAME");
  run->add_option("--delivery", delivery,
                  "how our libraries get in front of the driver: bind (over its files) or preload")
      ->type_name("HOW");
  run->add_flag("-q,--quiet", o.quiet, "no notes on standard error, only errors");
  run->prefix_command();  // the first word that is no option begins the command
  run->footer(run_footer());
}

void Parser::add_set() {
  set = add("set", "Change a running grant; takes effect within one turn");
  SetOptions& o = options.set;
  set->add_option("GRANT", o.grant, "name or id, as sluice ps shows it")->required();
  set->add_option("--gpu-mem", o.memory_units, "new memory in units, per card; never below what is in use")
      ->type_name("N");
  set->add_option("--gpu-core", o.core_percent, "new compute in percent, per card")->type_name("P");
  set->add_option("--weight", o.weight, "new weight, 1..1000")->type_name("W");
  set->add_option("--high-priority", priority, "yes or no")->type_name("YES|NO");
  set->add_flag("--json", options.json, "print the changed grant as JSON");
  set->footer("Example:\n  sluice set train --gpu-core 55");
}

void Parser::add_others() {
  ps = add("ps", "List the grants of this machine, what they were given and what they use");
  ps->add_flag("--json", options.json, "print JSON");
  top = add("top", "Watch cards and grants live (plain text when not on a terminal); q quits");
  top->add_option("-d,--delay", options.top.interval_ms, "milliseconds between readings, 100..60000")
      ->type_name("MS")
      ->check(CLI::Range(100, 60000).description(""));
  top->add_option("-n,--iterations", options.top.iterations, "stop after this many readings; 0: never")
      ->type_name("N")
      ->check(CLI::Range(0, 1000000).description(""));
  top->add_flag("--json", options.json, "one JSON object per reading and line");
  cards = add("cards", "List the cards of this machine and what is free on them");
  cards->add_flag("--json", options.json, "print JSON");
  add_doctor();
  // Brings its own machines: no --run-dir.
  demo = app->add_subcommand("demo", "Run the demonstration: two cards, one exclusive, one shared at 30 %");
  demo->set_help_flag("-h,--help", "print this text");
  demo->allow_extras();
  demo->footer("Options after the word demo go to the demonstration itself; script/demo --help lists them.");
}

void Parser::add_doctor() {
  doctor = add("doctor", "Check driver, kernel, libraries, agent and pages; name the broken link and the mend");
  DoctorOptions& o = options.doctor;
  doctor->add_flag("--cluster", o.cluster,
                   "check a cluster instead: the agents' word on their nodes, allocatable, scheduler, lease, extender, "
                   "webhook");
  doctor->add_option("--kubeconfig", o.kubeconfig, "its kubeconfig file (default as kubectl's); implies --cluster")
      ->type_name("FILE");
  doctor->add_option("--context", o.context, "context of the kubeconfig; implies --cluster")->type_name("NAME");
  doctor->add_option("--node", o.node, "check this node of the cluster alone; implies --cluster")->type_name("NAME");
  doctor
      ->add_option("--kubelet-dir", o.kubelet_directory,
                   "on a node, or in its agent's pod: check the kubelet's sockets, plugins and CDI instead; "
                   "/var/lib/kubelet as a rule")
      ->type_name("DIR");
  doctor->add_option("--cdi-dir", o.cdi_directory, "with --kubelet-dir: where the runtime reads CDI specs")
      ->type_name("DIR")
      ->capture_default_str();
  doctor->add_flag("--json", options.json, "print JSON");
  doctor->footer(
      "In a cluster the caller needs 'list' on nodes, pods and mutatingwebhookconfigurations, and 'get' on\n"
      "services/proxy and leases in sluice-system; what may not be looked at is a note.\n\n"
      "Exit status: 0 all links hold, 1 a link is broken.");
}

// Asks a cluster, not this machine's agent: no --run-dir.
void Parser::add_explain() {
  explain = app->add_subcommand("explain", "Say why a pod of a cluster waits, node by node, and what would help");
  explain->set_help_flag("-h,--help", "print this text");
  ExplainOptions& o = options.explain;
  explain->add_option("POD", o.pod, "its name, or NAMESPACE/NAME")->required();
  explain
      ->add_option("--kubeconfig", o.kubeconfig,
                   "kubeconfig file (default: inside a pod its service account, else KUBECONFIG or ~/.kube/config)")
      ->type_name("FILE");
  explain->add_option("--context", o.context, "context of the kubeconfig")->type_name("NAME");
  explain->add_option("--scheduler", o.scheduler, "ask this scheduler directly, not through the API server")
      ->type_name("URL");
  explain->add_option("--ca-file", o.ca_file, "CA of the scheduler's certificate, with --scheduler https://...")
      ->type_name("FILE");
  explain->add_flag("--json", options.json, "print the scheduler's answer as JSON");
  explain->footer("Through the API server the caller needs 'get' on services/proxy in the namespace sluice-system.");
}

// Looks at the place it runs in and asks no agent: no --run-dir.
void Parser::add_verify() {
  verify = app->add_subcommand("verify", "Inside a container: check that its limits are in force");
  verify->set_help_flag("-h,--help", "print this text");
  verify->add_flag("--json", options.json, "print JSON");
  verify->footer(
      "Tries what a program can try: an allocation over the limit (it counts as one refused), 1 MiB, a memset.\n\n"
      "Exit status: 0 the limits are in force, 1 a limit is not, 122 there is no grant here.");
}

Parser::Parser() {
  app = std::make_unique<CLI::App>("Share a GPU card between programs, each held to its memory and compute.", "sluice");
  app->formatter(std::make_shared<HelpFormatter>());
  app->set_help_flag("-h,--help", "print this text");
  app->set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION, "print the version");
  app->require_subcommand(1);
  app->footer("sluice COMMAND --help explains a command. Manual: docs/cli.md");
  add_run();
  add_others();
  add_set();
  add_explain();
  add_verify();
}

ParsedOptions problem(const std::string& text, const std::string& where, bool run) {
  return {std::nullopt, fmt::format("{}: {}\n{} --help lists what it takes\n", where, text, where),
          run ? kExitRequest : kExitUsage};
}

// What CLI11 cannot say in one sentence.
std::string check_run(const RunOptions& run) {
  if (run.manifest.empty() && run.command.empty()) return "no command; write: sluice run --gpu-mem N -- COMMAND";
  if (!run.manifest.empty() && !run.command.empty())
    return "a manifest (-f) brings its own command; leave out one of them";
  if (run.manifest.empty() && !run.job.empty()) return "--job chooses from a manifest; give it with -f";
  if (!run.manifest.empty() && (run.memory_units || run.core_percent || run.whole_cards || run.card_count)) {
    return "a manifest (-f) brings its own requests; change them there instead of giving --gpu-mem, --gpu-core, --gpus "
           "or --gpu-count";
  }
  return "";
}

}  // namespace

ParsedOptions parse_options(const std::vector<std::string>& arguments) {
  Parser parser;
  // What follows "--" is the command's, whatever it looks like; CLI11 would read on.
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), dashes);
  std::vector<std::string> rest;
  if (dashes != arguments.end()) rest.assign(dashes + 1, arguments.end());
  const bool is_run = !own.empty() && own[0] == "run";
  const std::string where = own.empty() || own[0].starts_with("-") ? "sluice" : "sluice " + own[0];
  if (own.empty()) return {std::nullopt, parser.app->help(), kExitUsage};
  const bool answers_itself = own[0] == "-h" || own[0] == "--help" || own[0] == "--version";
  if (!answers_itself && !parser.is_command(own[0])) {
    return problem(own[0].starts_with("-") ? fmt::format("unknown option '{}'; options stand behind a command", own[0])
                                           : fmt::format("unknown command '{}'", own[0]),
                   "sluice", false);
  }
  if (own[0] == "demo") {
    const bool help = own.size() > 1 && (own[1] == "-h" || own[1] == "--help");
    if (help) return {std::nullopt, parser.demo->help(), 0};
    parser.options.verb = Verb::kDemo;
    parser.options.demo.arguments.assign(own.begin() + 1, own.end());
    return {parser.options, "", 0};
  }
  try {
    std::vector<std::string> reversed(own.rbegin(), own.rend());
    parser.app->parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = parser.app->get_subcommands();
    return {std::nullopt, chosen.empty() ? parser.app->help() : chosen[0]->help(), 0};
  } catch (const CLI::CallForVersion& version) {
    return {std::nullopt, std::string(version.what()) + "\n", 0};
  } catch (const CLI::ParseError& error) {
    return problem(error.what(), where, is_run);
  }
  Options& o = parser.options;
  const std::pair<CLI::App*, Verb> verbs[] = {{parser.run, Verb::kRun},         {parser.ps, Verb::kPs},
                                              {parser.top, Verb::kTop},         {parser.set, Verb::kSet},
                                              {parser.cards, Verb::kCards},     {parser.doctor, Verb::kDoctor},
                                              {parser.explain, Verb::kExplain}, {parser.verify, Verb::kVerify}};
  for (const auto& [command, verb] : verbs) {
    if (command->parsed()) o.verb = verb;
  }
  if (o.verb == Verb::kRun) {
    o.run.command = parser.run->remaining();
    if (!o.run.command.empty() && o.run.command[0].starts_with("-")) {
      return problem(fmt::format("unknown option '{}'", o.run.command[0]), where, true);
    }
    if (dashes != arguments.end() && !o.run.command.empty()) o.run.command.emplace_back("--");
    o.run.command.insert(o.run.command.end(), rest.begin(), rest.end());
    if (parser.delivery != "bind" && parser.delivery != "preload") {
      return problem(fmt::format("--delivery is bind or preload, not '{}'", parser.delivery), where, true);
    }
    o.run.delivery = parser.delivery == "bind" ? Delivery::kBindMount : Delivery::kPreload;
    if (const std::string wrong = check_run(o.run); !wrong.empty()) return problem(wrong, where, true);
  } else if (!rest.empty()) {
    return problem("only sluice run takes a command after --", where, false);
  }
  DoctorOptions& d = o.doctor;
  d.cluster = d.cluster || !d.kubeconfig.empty() || !d.context.empty() || !d.node.empty();
  if (o.verb == Verb::kDoctor && (parser.doctor->count("--cdi-dir") > 0) && d.kubelet_directory.empty())
    return problem("--cdi-dir goes with --kubelet-dir", where, false);
  // The agent, which works in another folder, takes no relative path.
  if (!o.run_directory.empty()) o.run_directory = std::filesystem::absolute(o.run_directory).lexically_normal();
  if (o.verb == Verb::kSet) {
    if (!parser.priority.empty()) {
      if (parser.priority != "yes" && parser.priority != "no") {
        return problem(fmt::format("--high-priority is yes or no, not '{}'", parser.priority), where, false);
      }
      o.set.high_priority = parser.priority == "yes";
    }
    if (!o.set.memory_units && !o.set.core_percent && !o.set.weight && !o.set.high_priority) {
      return problem("nothing to change; give --gpu-mem, --gpu-core, --weight or --high-priority", where, false);
    }
  }
  return {o, "", 0};
}

}  // namespace sluice::cli
