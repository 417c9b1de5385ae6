#include "cli/options.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "cli/exit_codes.h"
#include "cli/request.h"

namespace sluice::cli {
namespace {

TEST(Options, RunTakesItsOwnAndLeavesTheCommandAlone) {
  const ParsedOptions p = parse_options(
      {"run", "--gpu-mem", "10", "--gpu-core=30", "--name", "a", "--", "cmd", "--gpu-mem", "3", "--", "-f"});
  ASSERT_TRUE(p.options) << p.text;
  EXPECT_EQ(p.options->verb, Verb::kRun);
  EXPECT_EQ(p.options->run.memory_units, "10");
  EXPECT_EQ(p.options->run.core_percent, "30");
  EXPECT_EQ(p.options->run.command, (std::vector<std::string>{"cmd", "--gpu-mem", "3", "--", "-f"}));
}

TEST(Options, TheFirstWordBeginsTheCommandWithoutDashesToo) {
  const ParsedOptions p = parse_options({"run", "--gpu-mem", "10", "nvidia-smi", "-l", "--name", "x", "--", "y"});
  ASSERT_TRUE(p.options) << p.text;
  EXPECT_EQ(p.options->run.name, "");
  EXPECT_EQ(p.options->run.command, (std::vector<std::string>{"nvidia-smi", "-l", "--name", "x", "--", "y"}));
}

TEST(Options, DemoPassesEverythingOn) {
  const ParsedOptions p = parse_options({"demo", "--gpu-mem", "7", "--keep"});
  ASSERT_TRUE(p.options);
  EXPECT_EQ(p.options->demo.arguments, (std::vector<std::string>{"--gpu-mem", "7", "--keep"}));
}

TEST(Options, HelpAndVersionAreNoErrors) {
  EXPECT_EQ(parse_options({"--version"}).exit_status, 0);
  for (const char* verb : {"run", "ps", "top", "set", "cards", "doctor", "demo"}) {
    const ParsedOptions p = parse_options({verb, "--help"});
    EXPECT_FALSE(p.options) << verb;
    EXPECT_EQ(p.exit_status, 0) << verb;
    EXPECT_NE(p.text.find(std::string("usage: sluice ") + verb), std::string::npos) << p.text;
  }
}

TEST(Options, WrongOnesAreNamed) {
  struct Wrong {
    std::vector<std::string> arguments;
    const char* message;
    int status;
  };
  const Wrong wrongs[] = {
      {{"run"}, "no command; write", kExitRequest},
      {{"run", "--gpu-mm", "1", "x"}, "unknown option '--gpu-mm'", kExitRequest},
      {{"run", "-f", "a.yaml", "--", "x"}, "brings its own command", kExitRequest},
      {{"run", "-f", "a.yaml", "--gpu-mem", "3"}, "brings its own requests", kExitRequest},
      {{"run", "--job", "a", "--", "x"}, "--job chooses from a manifest", kExitRequest},
      {{"run", "--delivery", "mail", "--", "x"}, "--delivery is bind or preload, not 'mail'", kExitRequest},
      {{"set", "a"}, "nothing to change", kExitUsage},
      {{"set", "--gpu-core", "5"}, "GRANT is required", kExitUsage},
      {{"set", "a", "--high-priority", "maybe"}, "yes or no, not 'maybe'", kExitUsage},
      {{"top", "-d", "5"}, "not in range", kExitUsage},
      {{"ps", "--", "x"}, "only sluice run takes a command", kExitUsage},
      {{"psx"}, "unknown command 'psx'", kExitUsage},
      {{"--json", "ps"}, "unknown option '--json'; options stand behind a command", kExitUsage},
  };
  for (const Wrong& wrong : wrongs) {
    const ParsedOptions p = parse_options(wrong.arguments);
    EXPECT_FALSE(p.options) << wrong.message;
    EXPECT_EQ(p.exit_status, wrong.status) << wrong.message;
    EXPECT_NE(p.text.find(wrong.message), std::string::npos) << p.text;
  }
}

TEST(Options, ARelativeRunDirectoryIsMeantFromHere) {
  EXPECT_EQ(parse_options({"ps", "--run-dir", "a/../b"}).options->run_directory, std::filesystem::current_path() / "b");
  EXPECT_EQ(parse_options({"ps", "--run-dir", "/run/x"}).options->run_directory, "/run/x");
  EXPECT_EQ(parse_options({"ps"}).options->run_directory, "");
}

RunOptions run_options(std::optional<std::string> memory, std::optional<std::string> core) {
  RunOptions run;
  run.memory_units = std::move(memory);
  run.core_percent = std::move(core);
  run.command = {"x"};
  return run;
}

TEST(Request, OptionsBecomeWhatTheAgentIsAskedFor) {
  RunOptions run = run_options("10", "30");
  run.policy = "burst";
  run.weight = "4";
  auto request = grant_request(job_from_options(run), run);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->gpu_mem_units, 10);
  EXPECT_EQ(request->core_percent, 30);
  EXPECT_EQ(request->cards, 1);
  EXPECT_EQ(request->policy, 4u);
  EXPECT_EQ(request->weight, 4);
  run.card_count = "2";
  request = grant_request(job_from_options(run), run);
  ASSERT_TRUE(request) << request.error().message;  // the sums stay, the agent divides
  EXPECT_EQ(request->gpu_mem_units, 10);
  EXPECT_EQ(request->core_percent, 30);
  EXPECT_EQ(request->cards, 2);
}

TEST(Request, AGrantIsNamedAfterItsCommand) {
  EXPECT_EQ(default_name("/usr/bin/python3", 42), "python3-42");
  EXPECT_EQ(default_name(std::string(500, 'x'), 42).size(), agent::kMaxNameBytes);
  EXPECT_EQ(default_name("/tmp/\xff"
                         "b\n",
                         42),
            "?b?-42");
  std::string wide;
  for (int i = 0; i < 50; ++i) wide += "\u6f22";
  EXPECT_EQ(default_name(wide, 42), wide.substr(0, 90) + "-42");  // 92 bytes are left, the 31st character ends at 93
}

TEST(Request, WholeCards) {
  RunOptions run = run_options(std::nullopt, std::nullopt);
  run.whole_cards = "2";
  const auto request = grant_request(job_from_options(run), run);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->whole_cards, 2);
  EXPECT_EQ(request->gpu_mem_units, 0);
}

TEST(Request, ErrorsSpeakOfOptionsOrOfResources) {
  RunOptions run = run_options("10", "7");
  EXPECT_TRUE(
      grant_request(job_from_options(run), run).error().message.starts_with("--gpu-core: needs a multiple of 5"));
  JobSpec job = job_from_options(run);
  job.kind = "Job";
  job.container = "train";
  EXPECT_TRUE(grant_request(job, RunOptions{})
                  .error()
                  .message.starts_with("container 'train': aliyun.com/gpu-core.percentage: needs"));
  run = run_options(std::nullopt, std::nullopt);
  EXPECT_TRUE(grant_request(job_from_options(run), run).error().message.starts_with("no share of a card is asked for"));
  run = run_options("10", std::nullopt);
  run.weight = "0";
  EXPECT_EQ(grant_request(job_from_options(run), run).error().message,
            "--weight is '0', but has to be a whole number from 1 to 1000");
  run.weight = std::nullopt;
  run.card_count = "0";
  EXPECT_EQ(grant_request(job_from_options(run), run).error().message,
            "--gpu-count: needs a whole number from 1 to 32, have '0'");
  run.card_count = std::nullopt;
  run.policy = "fast";
  EXPECT_TRUE(grant_request(job_from_options(run), run).error().message.starts_with("--policy: "));
}

TEST(Request, NamesCanBeShown) {
  const std::pair<std::string, std::string> cases[] = {
      {"train", ""},
      {"\u6f22\u5b57 1", ""},
      {"a\xff", "--name is 'a?', where '?' stands for"},
      {"a\nb", "--name is 'a?b'"},
      {"\x1b[2J", "--name is '?[2J'"},
      {std::string(96, 'x'), "--name is 96 bytes long, at most 95 are possible"},
  };
  for (const auto& [name, error] : cases) {
    RunOptions run = run_options("10", std::nullopt);
    run.name = name;
    const auto request = grant_request(job_from_options(run), run);
    if (error.empty()) {
      EXPECT_TRUE(request.ok()) << request.error().message;
    } else {
      ASSERT_FALSE(request.ok()) << name;
      EXPECT_TRUE(request.error().message.starts_with(error)) << request.error().message;
    }
  }
}

TEST(Request, SetChecksBeforeItAsks) {
  SetOptions set;
  set.weight = "1";
  EXPECT_EQ(set_request(set).error().message, "which grant? Give its name or id, as sluice ps shows it");
  set.grant = "\xff";
  EXPECT_EQ(set_request(set).error().message, "there is no grant '?' here (sluice ps lists them)");
  set.weight = std::nullopt;
  set.grant = "a";
  set.core_percent = "7";
  EXPECT_EQ(set_request(set).error().message, "--gpu-core is 7, but has to be a multiple of 5");
  set.core_percent = "55";
  EXPECT_EQ(set_request(set)->core_percent, 55);
}

}  // namespace
}  // namespace sluice::cli
