// The command line of sluice-accuracy.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "accuracy/report.h"
#include "base/files.h"
#include "base/output.h"

namespace sluice::accuracy {

namespace {

int fail(const Error& error) {
  std::fprintf(stderr, "sluice-accuracy: %s\n", error.message.c_str());
  return error.code == ErrorCode::kInvalid ? 2 : 1;
}

}  // namespace

int accuracy_main(int argc, char** argv) {
  CLI::App app{
      "Runs a scenario with the shipped guest and agent over a simulated card, in virtual time, and reports "
      "the shares that the card's own log shows."};
  std::string path;
  std::string plot;
  bool as_json = false;
  int seeds = 1;
  double seconds = 0;
  app.footer(
      "Example:\n  echo '{\"containers\": [{\"name\": \"a\", \"percent\": 30, \"streams\": [{\"kernel_us\": 100}]}]}' "
      "| "
      "sluice-accuracy - --seconds 10\nKeys of a scenario: docs/accuracy.md. Exit codes: 0 done, 1 it failed, 2 the "
      "scenario or the options are wrong.");
  app.name("sluice-accuracy");
  app.add_option("scenario", path, "JSON file, - for standard input")->required();
  app.add_flag("--json", as_json, "figures as JSON");
  app.add_option("--plot", plot, "write shares over time as SVG");
  app.add_option("--seeds", seeds, "run that many seeds and report the worst of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", seconds, "instead of the scenario's own length")->check(CLI::Range(3.0, 3600.0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finish_output("sluice-accuracy", app.exit(error) == 0 ? 0 : 2);
  }
  Result<std::string> text = read_file(path == "-" ? "/dev/stdin" : path);
  if (!text) return fail(text.error());
  Result<json::Value> value = json::parse(*text);
  if (!value) return fail(std::move(value.error()).wrap(path));
  Result<Scenario> scenario = parse_scenario(*value);
  if (!scenario) return fail(std::move(scenario.error()).wrap(path));
  if (seconds > 0) scenario->seconds = seconds;
  Result<Figures> figures = run_seeds(*scenario, seeds);
  if (!figures) return fail(figures.error());
  if (!plot.empty()) {
    Result<std::string> svg = to_plot(*scenario, *figures);
    if (!svg) return fail(svg.error());
    if (Result<void> written = write_file_atomic(plot, *svg); !written) return fail(written.error());
  }
  std::fputs((as_json ? json::to_pretty_string(to_json(*scenario, *figures)) : to_text(*figures)).c_str(), stdout);
  return finish_output("sluice-accuracy", 0);
}

}  // namespace sluice::accuracy
