// sluice-replay: reads traces, runs them through the placement core, prints what came out. All decisions are taken in
// src/core; here is only what a person types and reads.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <set>
#include <system_error>

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "replay/churn.h"
#include "replay/inputs.h"
#include "replay/options.h"
#include "replay/plot.h"
#include "replay/report.h"

namespace sluice::replay {
namespace {

constexpr int kDone = 0, kWrongInput = 1, kDiffers = 3;
constexpr double kAllowedDifference = 0.0101;  // published values have two decimals

int fail(const Error& error) {
  fmt::print(stderr, "sluice-replay: {}\n", error.message);
  return kWrongInput;
}

// One line on a terminal, rewritten; nothing where nobody looks.
class Progress {
 public:
  explicit Progress(bool quiet) : on_(!quiet && isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  void show(const std::string& what, size_t done, size_t total) {
    if (!on_) return;
    fmt::print(stderr, "\r{} {:3.0f} %\033[K", what, 100.0 * static_cast<double>(done) / static_cast<double>(total));
    std::fflush(stderr);
  }
  void clear() {
    if (on_) fmt::print(stderr, "\r\033[K");
  }

 private:
  bool on_;
};

Result<Row> run_one(const TraceInput& input, core::PolicyName name, int64_t seed, const ReplayOptions& options,
                    Progress& progress) {
  Result<Arrivals> arrivals = arrivals_of(input, seed, options.load);
  if (!arrivals) return arrivals.error();
  Result<Experiment> experiment = experiment_of(input, std::move(*arrivals), options);
  if (!experiment) return experiment.error();
  RunOptions run;
  run.progress = [&](size_t done, size_t total) {
    progress.show(fmt::format("{} {} seed {}", input.name, to_string(name), seed), done, total);
  };
  Result<Outcome> outcome = run_experiment(*experiment, core::Policy{name, options.memory_weight}, run);
  if (!outcome) return outcome.error();
  return Row{input.name, to_string(name), seed, options.two_dim ? to_string(*options.two_dim) : "one-dimensional",
             std::move(*outcome)};
}

Result<void> write_plots(const std::vector<Row>& rows, const std::string& folder) {
  if (Result<void> made = make_directories(folder, 0755); !made) return made;
  std::vector<Curve> curves;
  std::set<std::string> seen;
  for (const Row& row : rows) {
    // The first seed of each trace and policy; the spread over seeds is a tenth of a percent.
    const std::string name = rows[0].trace == rows.back().trace ? row.policy : row.trace + " " + row.policy;
    if (seen.insert(name).second) curves.push_back({name, &row.outcome});
  }
  const std::string title =
      rows[0].trace + (rows[0].set == "one-dimensional" ? "" : ", " + rows[0].set + " (synthetic)");
  const struct {
    const char* file;
    const char* what;
    const char* y_label;
    double Event::* value;
  } charts[] = {
      {"/allocation.svg", ": allocation", "allocated, % of the cluster's cards", &Event::allocated_pct},
      {"/fragmentation.svg", ": fragmentation", "fragments, % of the cluster's cards", &Event::fragment_pct},
  };
  for (const auto& chart : charts) {
    Result<std::string> text = svg_chart(title + chart.what, chart.y_label, curves, chart.value);
    if (!text) return std::move(text).error().wrap("--plot");
    if (Result<void> done = write_file_atomic(folder + chart.file, *text); !done) return done;
  }
  return {};
}

void print_rows(const std::vector<Row>& rows, const ReplayOptions& options) {
  if (!options.json) {
    if (options.two_dim) fmt::print("two dimensions, synthetic set: {}\n", to_string(*options.two_dim));
    fmt::print("{}", table(rows));
    return;
  }
  if (rows.size() == 1) {
    fmt::print("{}", json::to_pretty_string(to_json(rows[0])));
    return;
  }
  json::Array runs;
  for (const Row& row : rows) runs.push_back(to_json(row));
  fmt::print("{}", json::to_pretty_string(json::Object{{"runs", std::move(runs)}}));
}

Result<void> write_arrivals(const TraceInput& input, const ReplayOptions& options) {
  if (Result<void> made = make_directories(options.write_arrivals, 0755); !made) return made;
  std::string pods, ranks;
  for (int64_t seed : options.seeds) {
    Result<Arrivals> arrivals = generate_arrivals(input.nodes, input.pods, seed, options.load);
    if (!arrivals) return arrivals.error();
    pods += fmt::format("{} {}\n", seed, fmt::join(arrivals->pods, " "));
    ranks += fmt::format("{} {}\n", seed, fmt::join(arrivals->ranks, " "));
  }
  const std::string base = options.write_arrivals + "/" + input.name;
  if (Result<void> done = write_file_atomic(base + ".pods.txt", pods); !done) return done;
  return write_file_atomic(base + ".nodes.txt", ranks);
}

int replay(const ReplayOptions& options) {
  Progress progress(options.quiet);
  std::vector<Row> rows;
  for (const std::string& trace : trace_names(options)) {
    Result<TraceInput> input = read_input(options, trace);
    if (!input) return fail(input.error());
    if (!options.write_arrivals.empty())
      if (Result<void> done = write_arrivals(*input, options); !done) return fail(done.error());
    for (core::PolicyName policy : options.policies)
      for (int64_t seed : options.seeds) {
        Result<Row> row = run_one(*input, policy, seed, options, progress);
        if (!row) return fail(row.error());
        rows.push_back(std::move(*row));
      }
  }
  progress.clear();
  print_rows(rows, options);
  if (!options.plot.empty())
    if (Result<void> done = write_plots(rows, options.plot); !done) return fail(done.error());
  return kDone;
}

int churn(const ReplayOptions& options) {
  json::Array runs;
  if (!options.json)
    fmt::print("{:<14} {:<9} {:>5} {:>9} {:>9} {:>10} {:>9} {:>8} {:>9} {:>8}\n", "trace", "policy", "seed", "offered",
               "allocated", "when full", "accepted", "refused", "refused %", "us/pod");
  for (const std::string& trace : trace_names(options)) {
    Result<TraceInput> input = read_input(options, trace);
    if (!input) return fail(input.error());
    for (core::PolicyName policy : options.policies)
      for (int64_t seed : options.seeds) {
        Result<Arrivals> arrivals = arrivals_of(*input, seed, options.load);
        if (!arrivals) return fail(arrivals.error());
        Result<Experiment> experiment = experiment_of(*input, std::move(*arrivals), options);
        if (!experiment) return fail(experiment.error());
        Result<ChurnOutcome> done =
            run_churn(*experiment, input->pods, core::Policy{policy, options.memory_weight}, options.churn_load);
        if (!done) return fail(done.error());
        runs.push_back(to_json(*done, trace, to_string(policy), seed));
        if (!options.json)
          fmt::print("{:<14} {:<9} {:>5} {:>9.2f} {:>9.2f} {:>10.2f} {:>9} {:>8} {:>9.2f} {:>8.1f}\n", trace,
                     to_string(policy), seed, done->offered_pct, done->allocated_pct, done->allocated_busy_pct,
                     done->accepted, done->refused, done->refused_demand_pct,
                     1e6 * done->decide_seconds / static_cast<double>(done->decisions));
      }
  }
  if (options.json)
    fmt::print("{}", json::to_pretty_string(runs.size() == 1 ? runs[0] : json::Value(json::Object{{"runs", runs}})));
  return kDone;
}

// Every published FGD and BestFit row whose trace is there (all of them, or those given by --trace).
int check(const ReplayOptions& options) {
  Result<std::vector<Published>> published = read_published(options.data + "/published_results.csv");
  if (!published) return fail(published.error());
  Progress progress(options.quiet);
  const std::set<std::string> wanted(options.traces.begin(), options.traces.end());
  std::optional<TraceInput> input;
  int64_t compared = 0, differing = 0;
  double largest = 0;
  for (const Published& row : *published) {
    Result<core::PolicyName> policy = core::parse_policy(row.policy);
    if (!policy || (!wanted.empty() && !wanted.contains(row.trace))) continue;
    if (!input || input->name != row.trace) {
      Result<TraceInput> read = read_input(options, row.trace);
      if (!read) return fail(read.error());
      input = std::move(*read);
    }
    Result<Row> ran = run_one(*input, *policy, row.seed, options, progress);
    if (!ran) return fail(ran.error());
    const double at_100 = at_requested(ran->outcome, 100, &Event::allocated_pct) - row.alloc_100;
    const double at_130 = at_requested(ran->outcome, 130, &Event::allocated_pct) - row.alloc_130;
    ++compared;
    largest = std::max({largest, std::abs(at_100), std::abs(at_130)});
    if (std::abs(at_100) <= kAllowedDifference && std::abs(at_130) <= kAllowedDifference) continue;
    ++differing;
    progress.clear();
    fmt::print("{} {} seed {}: differs by {:+.3f} at 100 %, {:+.3f} at 130 %\n", row.trace, row.policy, row.seed,
               at_100, at_130);
  }
  progress.clear();
  fmt::print("{} runs compared with the published values, {} differ by more than 0.01, largest difference {:.4f}\n",
             compared, differing, largest);
  return differing == 0 && compared > 0 ? kDone : kDiffers;
}

}  // namespace
}  // namespace sluice::replay

int main(int argc, char** argv) {
  using namespace sluice::replay;
  ParsedReplay parsed = parse_replay_options(argc, argv);
  if (!parsed.options) {
    std::fputs(parsed.text.c_str(), parsed.code == 0 ? stdout : stderr);
    return sluice::finish_output("sluice-replay", parsed.code);
  }
  const ReplayOptions& options = *parsed.options;
  int status = 0;
  try {
    status = options.check ? check(options) : options.churn ? churn(options) : replay(options);
  } catch (const std::system_error&) {  // fmt's, of an output that does not arrive; the sentence comes below
  }
  return sluice::finish_output("sluice-replay", status);
}
