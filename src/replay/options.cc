#include "replay/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

namespace sluice::replay {
namespace {

constexpr const char* kFooter = R"(
Examples:
  sluice-replay --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv \
      --arrivals arrivals/default.pods.txt.gz --ranks arrivals/default.nodes.txt.gz --policy FGD --seed 42
  sluice-replay --data openb --trace default --policy FGD --policy default --seeds 42-51 --plot plots
  sluice-replay --data openb --check                      every published FGD and BestFit value, compared
  sluice-replay --nodes N.csv --pods P.csv --generate     arrivals of any trace and seed by the published rule
  sluice-replay --data openb --trace default --two-dim memory-heavy --policy default   (synthetic)
  sluice-replay --data openb --trace default --churn --policy default                  with departures

Exit status: 0 done; 1 the input was wrong; 2 the command line was wrong; 3 --check found a difference.)";

constexpr size_t kMaxSeeds = 1000;

// "42", "42-51" or "42,44".
Result<std::vector<int64_t>> parse_seeds(const std::string& text) {
  std::vector<int64_t> seeds;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-', 1);
    try {
      size_t used = 0;
      const int64_t first = std::stoll(part, &used);
      int64_t last = first;
      if (dash != std::string::npos) {
        last = std::stoll(part.substr(dash + 1), &used);
        used += dash + 1;
      }
      // Seeds of both signs may lie further apart than an int64_t counts.
      const uint64_t more = static_cast<uint64_t>(last) - static_cast<uint64_t>(first);
      if (used != part.size() || last < first || seeds.size() + more >= kMaxSeeds) throw std::invalid_argument(part);
      for (uint64_t i = 0; i <= more; ++i) seeds.push_back(first + static_cast<int64_t>(i));
    } catch (const std::exception&) {
      return invalid(
          fmt::format("--seeds: needs numbers like 42, 42-51 or 42,44 (at most {}), have '{}'", kMaxSeeds, text));
    }
  }
  if (seeds.empty()) return invalid("--seeds: needs at least one number");
  return seeds;
}

Result<void> finish(ReplayOptions& options, const std::vector<std::string>& policies, const std::string& seeds,
                    const std::string& two_dim) {
  for (const std::string& name : policies) {
    Result<core::PolicyName> policy = core::parse_policy(name);
    if (!policy) return policy.error();
    options.policies.push_back(*policy);
  }
  if (!seeds.empty()) {
    Result<std::vector<int64_t>> parsed = parse_seeds(seeds);
    if (!parsed) return parsed.error();
    options.seeds.insert(options.seeds.end(), parsed->begin(), parsed->end());
  }
  if (!two_dim.empty()) {
    Result<TwoDim> set = parse_two_dim(two_dim);
    if (!set) return set.error();
    options.two_dim = *set;
  }
  if (options.policies.empty()) options.policies = {core::PolicyName::kDefault};
  if (options.seeds.empty()) options.seeds = {42};
  if (options.data.empty() && (options.nodes.empty() || options.pods.empty()))
    return invalid("input: needs --nodes and --pods, or --data with --trace; have neither in full");
  if (!options.data.empty() &&
      (!options.nodes.empty() || !options.pods.empty() || !options.arrivals.empty() || !options.ranks.empty()))
    return invalid("input: needs either --data or --nodes, --pods, --arrivals and --ranks; have both");
  if (!options.data.empty() && options.traces.empty() && !options.check)
    return invalid("--data: needs --trace NAME (or --check) beside it, have none");
  if (options.check && options.data.empty())
    return invalid("--check: needs --data DIR with published_results.csv in it");
  if (options.arrivals.empty() != options.ranks.empty())
    return invalid("arrivals: needs --arrivals and --ranks together, have one of them");
  if (options.generate && !options.arrivals.empty())
    return invalid("--generate: makes the arrivals itself; leave --arrivals and --ranks out");
  if (options.churn && options.two_dim) return invalid("--churn: replays one dimension; leave --two-dim out");
  return {};
}

}  // namespace

ParsedReplay parse_replay_options(int argc, const char* const* argv) {
  ReplayOptions options;
  std::vector<std::string> policies;
  std::string seeds, two_dim;
  CLI::App app("Replays cluster traces through Sluice's placement code.", "sluice-replay");
  app.footer(kFooter);
  app.add_option("--nodes", options.nodes, "node list (CSV, may be .gz)")->type_name("FILE");
  app.add_option("--pods", options.pods, "pod list (CSV, may be .gz)")->type_name("FILE");
  app.add_option("--arrivals", options.arrivals, "stored orders of arrival, a line per seed")->type_name("FILE");
  app.add_option("--ranks", options.ranks, "stored tie-break ranks of nodes, a line per seed")->type_name("FILE");
  app.add_option("--data", options.data, "folder in the layout of the openb data")->type_name("DIR");
  app.add_option("--trace", options.traces, "trace in --data; may be given several times")->type_name("NAME");
  app.add_option("--policy", policies, "FGD, BestFit, binpack, spread or default; may be given several times")
      ->type_name("NAME");
  app.add_option("--seed", options.seeds, "seed (42 if none is given); may be given several times")->type_name("N");
  app.add_option("--seeds", seeds, "seeds as 42-51 or 42,44")->type_name("LIST");
  app.add_flag("--generate", options.generate, "make the arrivals by the published rule, even where stored ones exist");
  app.add_option("--load", options.load, "generated arrivals ask for this many times the capacity")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  app.add_option("--write-arrivals", options.write_arrivals, "write generated arrivals and ranks there")
      ->type_name("DIR");
  app.add_flag("--churn", options.churn, "pods leave: creation and deletion times instead of the published order");
  app.add_option("--churn-load", options.churn_load, "offered demand with --churn, of capacity")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  app.add_option("--two-dim", two_dim, "synthetic second dimension: proportional, decorrelated or memory-heavy")
      ->type_name("SET");
  app.add_option("--memory-weight", options.memory_weight, "memory against compute in binpack and spread")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--check", options.check, "compare FGD and BestFit with DIR/published_results.csv, every row");
  app.add_flag("--json", options.json, "print one JSON object");
  app.add_option("--plot", options.plot, "write allocation.svg and fragmentation.svg there")->type_name("DIR");
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
  ParsedReplay parsed;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const bool fine = app.exit(error, out, err) == 0;
    parsed.text = out.str() + err.str();
    parsed.code = fine ? 0 : 2;
    return parsed;
  }
  if (Result<void> done = finish(options, policies, seeds, two_dim); !done) {
    parsed.text = "sluice-replay: " + done.error().message + "\n";
    parsed.code = 2;
    return parsed;
  }
  parsed.options = std::move(options);
  return parsed;
}

}  // namespace sluice::replay
