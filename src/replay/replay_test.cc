// Reading, generating, two dimensions, departures and reports of the replay, on the carried trace and on small files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "replay/churn.h"
#include "replay/go_random.h"
#include "replay/gzip.h"
#include "replay/openb_testing.h"
#include "replay/options.h"
#include "replay/plot.h"
#include "replay/report.h"
#include "replay/setup.h"
#include "replay/two_dim.h"

namespace sluice::replay {
namespace {

std::string scratch(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "sluice-replay-" + std::to_string(getpid()) + "-" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Trace, ReadsColumnsByName) {
  const std::string nodes = scratch("n.csv", "model,gpu,memory_mib,cpu_milli,sn\r\nT4,2,1024,64000,a\r\n\r\n");
  Result<std::vector<TraceNode>> read = read_nodes(nodes);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].name, "a");
  EXPECT_EQ((*read)[0].cards, 2);
  EXPECT_EQ((*read)[0].model, "T4");
  const std::string pods = scratch("p.csv",
                                   "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time\n"
                                   "a,1,2,1,1500,T4|P100,7.0\nb,1,2,0,300,,\nc,1,2,2,,,\n");
  Result<std::vector<TracePod>> many = read_pods(pods);
  ASSERT_TRUE(many.ok()) << many.error().message;
  EXPECT_EQ((*many)[0].card_milli, 1000);  // cut
  EXPECT_EQ((*many)[0].created_s, 7);
  EXPECT_EQ(one_dimensional_request((*many)[0]).models, (std::vector<std::string>{"T4", "P100"}));
  EXPECT_EQ((*many)[1].card_milli, 0);  // no card: its milli mean nothing
  EXPECT_EQ(one_dimensional_request((*many)[1]).kind, core::Kind::kNone);
  EXPECT_EQ((*many)[2].card_milli, 1000);  // missing
}

TEST(Trace, WrongFilesAreNamed) {
  struct Case {
    std::string text, message;
  };
  const std::string columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
  const Case cases[] = {
      {"", "needs a first line with column names, have an empty file"},
      {"name,cpu_milli\n", "needs a column 'memory_mib' in its first line, have 'name,cpu_milli'"},
      {columns, "needs at least one pod, have none"},
      {columns + "a,1,2,x,4\n", "line 2: column num_gpu needs a whole number from 0 to 32, have 'x'"},
      {columns + "a,1,2,1,4\nb,-1,2,1,4\n",
       "line 3: column cpu_milli needs a whole number from 0 to 100000000, have '-1'"},
      {columns + "a,1.5,2,1,4\n", "line 2: column cpu_milli needs a whole number from 0 to 100000000, have '1.5'"},
      {columns + "a,1,2,99,4\n", "line 2: column num_gpu needs a whole number from 0 to 32, have '99'"},
  };
  for (const Case& c : cases) {
    const std::string path = scratch("bad.csv", c.text);
    Result<std::vector<TracePod>> read = read_pods(path);
    ASSERT_FALSE(read.ok()) << c.message;
    EXPECT_NE(read.error().message.find(c.message), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
  }
  EXPECT_FALSE(read_pods("/nonexistent/x.csv").ok());
  EXPECT_FALSE(read_text(scratch("bad.gz", "\x1f\x8b\x08 not really")).ok());
  EXPECT_FALSE(read_seed_lists(scratch("r1", "42 0 1 9\n"), 9).ok());
  EXPECT_FALSE(read_seed_lists(scratch("r2", "42 0 one\n"), 9).ok());
  EXPECT_FALSE(read_seed_lists(scratch("r3", "\n"), 9).ok());
  EXPECT_EQ(read_seed_lists(scratch("r4", "42 0 8\n43 1\n"), 9)->at(42), (std::vector<uint32_t>{0, 8}));
}

// The published runs' own orders, by checksum: the generator, the shuffle, the tuning and the ranks are all right or
// this fails.
TEST(Arrivals, GeneratedOnesAreThePublishedOnes) {
  std::ifstream file(kOpenb + "/arrivals_crc32.csv");
  std::string line;
  std::getline(file, line);
  TraceInput input;
  int checked = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string trace, seed, count, pods_crc, ranks_crc;
    for (std::string* field : {&trace, &seed, &count, &pods_crc, &ranks_crc}) std::getline(fields, *field, ',');
    if (input.name != trace) input = openb(trace);
    Result<Arrivals> arrivals = generate_arrivals(input.nodes, input.pods, std::stoll(seed));
    ASSERT_TRUE(arrivals.ok());
    EXPECT_EQ(std::to_string(arrivals->pods.size()), count) << line;
    EXPECT_EQ(std::to_string(crc32_of(arrivals->pods)), pods_crc) << line;
    EXPECT_EQ(std::to_string(crc32_of(arrivals->ranks)), ranks_crc) << line;
    ++checked;
  }
  EXPECT_EQ(checked, 90);
}

TEST(Arrivals, LoadsAndErrors) {
  const TraceInput input = openb("default");
  for (double load : {0.5, 1.3, 2.0}) {
    Result<Arrivals> arrivals = generate_arrivals(input.nodes, input.pods, 1, load);
    ASSERT_TRUE(arrivals.ok());
    int64_t asked = 0;
    for (uint32_t row : arrivals->pods) asked += int64_t{input.pods[row].cards} * input.pods[row].card_milli;
    // At most one multi-card pod over, since the rule counts one of its cards.
    EXPECT_NEAR(static_cast<double>(asked) / static_cast<double>(total_card_milli(input.nodes)), load, 8.0 / 6212);
  }
  EXPECT_FALSE(generate_arrivals(input.nodes, {TracePod{}}, 1).ok());
  Result<Arrivals> stored = arrivals_of({"x", {}, {}, {{42, {}}}, {{42, {}}}}, 7, 1.3);
  ASSERT_FALSE(stored.ok());
  EXPECT_NE(stored.error().message.find("have seeds 42 to 42"), std::string::npos);
}

bool same(const Outcome& a, const Outcome& b) {
  if (a.events.size() != b.events.size() || a.accepted != b.accepted) return false;
  for (size_t i = 0; i < a.events.size(); ++i)
    if (a.events[i].allocated_pct != b.events[i].allocated_pct || a.events[i].fragment_pct != b.events[i].fragment_pct)
      return false;
  return true;
}

// Memory and compute in proportion: every event of every policy is the one-dimensional one, bit for bit, although cards
// have 10,000,000 to 32,510,000 units and pods ask for different units on every model.
TEST(TwoDimensions, ProportionalIsOneDimensionalExactly) {
  const TraceInput input = openb("gpuspec33");
  for (core::PolicyName policy : {core::PolicyName::kFragmentation, core::PolicyName::kDefault,
                                  core::PolicyName::kBinpack, core::PolicyName::kSpread, core::PolicyName::kBestFit}) {
    const Arrivals arrivals = *arrivals_of(input, 42, 1.3);
    Result<Outcome> one =
        run_experiment(*one_dimensional(input.nodes, input.pods, arrivals.pods, arrivals.ranks), core::Policy{policy});
    Result<Outcome> two =
        run_experiment(*two_dimensional(input.nodes, input.pods, arrivals.pods, arrivals.ranks, TwoDim::kProportional),
                       core::Policy{policy});
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_TRUE(same(*one, *two)) << to_string(policy);
    EXPECT_EQ(two->events.back().memory_pct, two->events.back().core_pct) << to_string(policy);
  }
}

TEST(TwoDimensions, SyntheticSetsAreNotProportional) {
  const TraceInput input = openb("default");
  const Arrivals arrivals = *arrivals_of(input, 42, 1.3);
  for (TwoDim set : {TwoDim::kDecorrelated, TwoDim::kMemoryHeavy}) {
    const Experiment made = *two_dimensional(input.nodes, input.pods, arrivals.pods, arrivals.ranks, set);
    double memory = 0, core = 0;
    int64_t shares = 0;
    for (size_t i = 0; i < made.requests.size(); ++i) {
      const core::Request& request = made.requests[i];
      if (input.pods[i].cards == 0 || input.pods[i].card_milli == kCardMilli) continue;
      ASSERT_GE(request.units, 1);
      ASSERT_LE(request.units, 14);
      memory += static_cast<double>(request.units) / 14;
      core += request.core_milli / 1000.0;
      ++shares;
    }
    memory /= static_cast<double>(shares);
    core /= static_cast<double>(shares);
    if (set == TwoDim::kMemoryHeavy) {
      EXPECT_GT(memory, 0.6);
      EXPECT_LT(core, 0.15);
    } else {
      EXPECT_NEAR(memory, core, 0.06);
    }
  }
  EXPECT_FALSE(parse_two_dim("diagonal").ok());
}

TEST(Churn, EverythingThatLeavesIsGivenBack) {
  // One node, one card; pods of half a card that live 10 s, coming faster the more load is asked for.
  std::vector<TraceNode> nodes = {{"n", 64000, 1 << 20, 1, "T4"}};
  std::vector<TracePod> pods;
  for (int i = 0; i < 100; ++i)
    pods.push_back({"p" + std::to_string(100 + i), 1000, 1, 1, 500, "", 1000 + 100 * i, 1000 + 100 * i + 10});
  Experiment experiment = *one_dimensional(nodes, pods, {}, {0});
  Result<ChurnOutcome> done = run_churn(experiment, pods, core::Policy{core::PolicyName::kBinpack}, 2.0);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_GT(done->offered_pct, 130);
  EXPECT_LE(done->offered_pct, 200);
  EXPECT_EQ(done->accepted + done->refused, 900);
  EXPECT_GT(done->allocated_pct, 75);
  EXPECT_LE(done->allocated_pct, 100.0);
  // A full card serves 100 of what is offered; the rest is refused.
  EXPECT_NEAR(done->refused_demand_pct, 100 - 100 * 100 / done->offered_pct, 3);
  for (TracePod& pod : pods) pod.deleted_s = 0;
  EXPECT_FALSE(run_churn(experiment, pods, {}, 1.0).ok());
}

TEST(Report, OneObjectWithThePublishedNames) {
  const TraceInput input = openb("multigpu40");
  Result<Outcome> outcome = run_experiment(openb_experiment(input, 42), core::Policy{core::PolicyName::kBinpack});
  ASSERT_TRUE(outcome.ok());
  std::ifstream file(kOpenb + "/published_results.csv");
  std::string header;
  std::getline(file, header);
  const json::Object object = to_json(Row{"multigpu40", "binpack", 42, "one-dimensional", *outcome});
  std::istringstream columns(header);
  for (std::string column; std::getline(columns, column, ',');) EXPECT_TRUE(object.contains(column)) << column;
  Result<std::string> chart = svg_chart("a < b", "y & z", {{"binpack", &*outcome}}, &Event::allocated_pct);
  ASSERT_TRUE(chart.ok()) << chart.error().message;
  EXPECT_NE(chart->find("a &lt; b"), std::string::npos);
  EXPECT_NE(chart->find(">binpack<"), std::string::npos);
  EXPECT_FALSE(svg_chart("nothing", "y", {}, &Event::allocated_pct).ok());
  EXPECT_NE(table({Row{"multigpu40", "binpack", 42, "one-dimensional", *outcome}}).find("multigpu40"),
            std::string::npos);
}

TEST(Options, WrongCommandLinesSayHowToMendThem) {
  struct Case {
    std::vector<const char*> arguments;
    const char* message;
  };
  const Case cases[] = {
      {{}, "needs --nodes and --pods, or --data with --trace"},
      {{"--nodes", "n"}, "needs --nodes and --pods"},
      {{"--nodes", "n", "--pods", "p", "--policy", "best"},
       "needs one of default, binpack, spread, FGD, BestFit, fragmentation, have 'best'"},
      {{"--nodes", "n", "--pods", "p", "--arrivals", "a"}, "needs --arrivals and --ranks together"},
      {{"--nodes", "n", "--pods", "p", "--seeds", "9-3"}, "--seeds: needs numbers like 42"},
      {{"--nodes", "n", "--pods", "p", "--two-dim", "3"}, "needs one of proportional"},
      {{"--data", "d"}, "needs --trace NAME (or --check)"},
      {{"--data", "d", "--trace", "t", "--nodes", "n"}, "have both"},
      {{"--check"}, "needs --nodes and --pods"},
      {{"--nonsense"}, "--nonsense"},
  };
  for (const Case& c : cases) {
    std::vector<const char*> arguments = {"sluice-replay"};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    ParsedReplay parsed = parse_replay_options(static_cast<int>(arguments.size()), arguments.data());
    EXPECT_FALSE(parsed.options.has_value()) << c.message;
    EXPECT_EQ(parsed.code, 2);
    EXPECT_NE(parsed.text.find(c.message), std::string::npos) << parsed.text;
  }
  // The largest number there is, and more than a thousand in parts.
  const char* largest[] = {"sluice-replay", "--nodes", "n", "--pods", "p", "--seeds", "9223372036854775807"};
  ParsedReplay last = parse_replay_options(7, largest);
  ASSERT_TRUE(last.options.has_value()) << last.text;
  EXPECT_EQ(last.options->seeds, std::vector<int64_t>{INT64_MAX});
  for (const char* seeds : {"1-999,2000-2001", "-9223372036854775808-9223372036854775807"}) {
    const char* many[] = {"sluice-replay", "--nodes", "n", "--pods", "p", "--seeds", seeds};
    EXPECT_FALSE(parse_replay_options(7, many).options.has_value()) << seeds;
  }
  const char* good[] = {"sluice-replay", "--nodes", "n", "--pods", "p"};
  ParsedReplay parsed = parse_replay_options(5, good);
  ASSERT_TRUE(parsed.options.has_value());
  EXPECT_EQ(parsed.options->seeds, std::vector<int64_t>{42});
  EXPECT_EQ(parsed.options->policies, std::vector<core::PolicyName>{core::PolicyName::kDefault});
}

}  // namespace
}  // namespace sluice::replay
