// Clusters as data (tests/data/inspect/NAME.json: nodes and pods as the API gives them) against texts that lie beside
// them. ack_summary.txt and ack_details.txt are printouts of ACK's tool; they are not to be made from ours.
#include "cli/inspect.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/yaml.h"
#include "cli/exit_codes.h"
#include "cli/inspect_options.h"
#include "cli/tab_columns.h"
#include "kube/allocation.h"

namespace sluice::cli {
namespace {

std::string data(const std::string& name) {
  Result<std::string> text = read_file(std::string(INSPECT_DATA) + "/" + name);
  return text ? *text : "cannot read " + name;
}

Result<Inspection> inspect_case(const std::string& name, const kube::Verifier* keys = nullptr) {
  const json::Value root = *json::parse(data(name + ".json"));
  InspectOptions options{{}, keys};
  for (const json::Value& item : root.at("names").as_array()) options.names.emplace_back(item.as_string());
  return inspect(root.at("nodes").as_array(), root.at("pods").as_array(), options);
}

std::string notes_text(const Inspection& inspection) {
  std::string text;
  for (const std::string& note : inspect_notes(inspection)) text += note + "\n";
  return text;
}

struct View {
  const char* cluster;
  const char* expected;
  InspectLayout layout;
  bool wide;
};

class InspectLayouts : public testing::TestWithParam<View> {};

TEST_P(InspectLayouts, IsThisTextToTheByte) {
  Result<Inspection> inspection = inspect_case(GetParam().cluster);
  ASSERT_TRUE(inspection) << inspection.error().message;
  EXPECT_EQ(inspect_text(*inspection, GetParam().layout, GetParam().wide), data(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(Data, InspectLayouts,
                         testing::Values(View{"ack_summary", "ack_summary.txt", InspectLayout::kSummary, false},
                                         View{"ack_details", "ack_details.txt", InspectLayout::kDetails, false},
                                         View{"compute", "compute_summary.txt", InspectLayout::kSummary, false},
                                         View{"compute", "compute_details.txt", InspectLayout::kDetails, false},
                                         View{"compute", "compute_wide.txt", InspectLayout::kSummary, true},
                                         View{"pending", "pending_summary.txt", InspectLayout::kSummary, false},
                                         View{"pending", "pending_details.txt", InspectLayout::kDetails, false},
                                         View{"pending", "pending_wide.txt", InspectLayout::kDetails, true},
                                         View{"problems", "problems_summary.txt", InspectLayout::kSummary, false},
                                         View{"mib", "mib_summary.txt", InspectLayout::kSummary, false}));

TEST(Inspect, OddStatesAreNotedInOneSentenceEach) {
  EXPECT_EQ(notes_text(*inspect_case("pending")), data("pending_notes.txt"));
  EXPECT_EQ(notes_text(*inspect_case("problems")), data("problems_notes.txt"));
  EXPECT_EQ(notes_text(*inspect_case("ack_summary")), "");
  EXPECT_EQ(notes_text(*inspect_case("compute")), "");
}

TEST(Inspect, NothingToShowSaysWhatToDo) {
  Result<Inspection> none = inspect_case("none");
  ASSERT_TRUE(none);
  EXPECT_EQ(inspect_text(*none, InspectLayout::kSummary, false), "");
  EXPECT_NE(notes_text(*none).find("label one with ack.node.gpu.schedule=core_mem"), std::string::npos);
  EXPECT_EQ(notes_text(*inspect({}, {}, {})), "the cluster has no nodes\n");
  const json::Value root = *json::parse(data("none.json"));
  Result<Inspection> named = inspect(root.at("nodes").as_array(), {}, {{"node-a"}, nullptr});
  ASSERT_TRUE(named);
  EXPECT_NE(notes_text(*named).find("node node-a shares no cards: its mode is default"), std::string::npos);
}

TEST(Inspect, AnUnknownNodeIsAnErrorThatNamesTheOthers) {
  const json::Value root = *json::parse(data("compute.json"));
  Result<Inspection> unknown = inspect(root.at("nodes").as_array(), {}, {{"node-b", "node-x"}, nullptr});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(unknown.error().message, "the cluster has no node 'node-x'; nodes that share cards: node-b, node-c");
  Result<Inspection> one = inspect(root.at("nodes").as_array(), root.at("pods").as_array(), {{"node-c"}, nullptr});
  ASSERT_TRUE(one);
  ASSERT_EQ(one->nodes.size(), 1u);
  EXPECT_EQ(one->nodes[0].pods.size(), 1u);
}

TEST(Inspect, WithTheKeyAForgedSignatureIsSeen) {
  const kube::Signer signer = kube::Signer::generate();
  Result<kube::Verifier> verifier = kube::Verifier::from_pem({signer.public_pem()});
  ASSERT_TRUE(verifier);
  Result<Inspection> checked = inspect_case("compute", &*verifier);  // its signatures are made up
  ASSERT_TRUE(checked);
  EXPECT_EQ(checked->nodes[0].allocated_units(), 0);
  EXPECT_EQ(checked->nodes[0].pending_units(), 10);
  EXPECT_NE(notes_text(*checked).find("does not bear the scheduler's signature"), std::string::npos);

  json::Value root = *json::parse(data("compute.json"));
  json::Object& metadata = root.at("pods").as_array()[0].as_object()["metadata"].as_object();
  kube::Allocation allocation;
  allocation.cards = {{0, "GPU-node-b-0", 10, 300}};
  allocation.containers["c"] = allocation.cards;
  core::Node node;
  node.name = "node-b";
  json::Object annotations;
  for (const auto& [key, value] : kube::to_annotations(allocation, node, {"c"}, "uid-tf-benchmarks", signer, 1))
    annotations[key] = value;
  metadata["annotations"] = annotations;
  Result<Inspection> good = inspect(root.at("nodes").as_array(), root.at("pods").as_array(), {{}, &*verifier});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->nodes[0].allocated_units(), 10);
  EXPECT_EQ(good->nodes[0].pods[0].problem, "");
}

TEST(Inspect, ProgramsReadTheSameNumbers) {
  Result<Inspection> inspection = inspect_case("pending");
  ASSERT_TRUE(inspection);
  const json::Object object = inspect_json(*inspection);
  EXPECT_EQ(json::to_pretty_string(object), json::to_pretty_string(*json::parse(data("pending.out.json"))));
  Result<std::vector<json::Value>> yaml = yaml::parse_documents(yaml::to_string(object));
  ASSERT_TRUE(yaml);
  EXPECT_EQ(yaml->front(), json::Value(object));
}

// Go's own examples of its tabwriter's rules.
TEST(TabColumns, ReachOverNeighbouringLinesOnly) {
  EXPECT_EQ(align_tabs("a\tb\tc\naa\tbb\tcc\naaa\t\naaaa\tdddd\teeee\n"),
            "a     b   c\naa    bb  cc\naaa   \naaaa  dddd  eeee\n");
  EXPECT_EQ(align_tabs("x\ty\n\nlonger\ty\n"), "x  y\n\nlonger  y\n");
  EXPECT_EQ(align_tabs("\t\ta\n"), "    a\n");
  EXPECT_EQ(align_tabs("\xC3\xA9\tb\nee\tb"), "\xC3\xA9   b\nee  b");
  EXPECT_EQ(align_tabs(""), "");
  EXPECT_EQ(align_tabs("no tabs"), "no tabs");
}

TEST(InspectArguments, AreReadAndWrongOnesNamed) {
  auto parsed = parse_inspect_arguments({"-d", "node-a", "-o", "wide", "--context", "c", "--kubeconfig=k"});
  ASSERT_TRUE(parsed.arguments) << parsed.text;
  EXPECT_EQ(parsed.arguments->layout, InspectLayout::kDetails);
  EXPECT_EQ(parsed.arguments->output, InspectOutput::kWide);
  EXPECT_EQ(parsed.arguments->nodes, std::vector<std::string>{"node-a"});
  EXPECT_EQ(parsed.arguments->context, "c");
  EXPECT_EQ(parsed.arguments->kubeconfig, "k");
  EXPECT_TRUE(parse_inspect_arguments({}).arguments);
  parsed = parse_inspect_arguments({"--allocation-key", "a", "--allocation-key", "b", "node-a"});
  ASSERT_TRUE(parsed.arguments);
  EXPECT_EQ(parsed.arguments->key_files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed.arguments->nodes, std::vector<std::string>{"node-a"});

  parsed = parse_inspect_arguments({"-o", "xml"});
  EXPECT_FALSE(parsed.arguments);
  EXPECT_EQ(parsed.exit_status, kExitUsage);
  EXPECT_NE(parsed.text.find("-o is wide, json or yaml, not 'xml'"), std::string::npos);
  for (std::vector<std::string> wrong : {std::vector<std::string>{"--bogus"}, {"-o"}, {""}}) {
    parsed = parse_inspect_arguments(wrong);
    EXPECT_FALSE(parsed.arguments);
    EXPECT_EQ(parsed.exit_status, kExitUsage);
  }
  parsed = parse_inspect_arguments({"--help"});
  EXPECT_EQ(parsed.exit_status, 0);
  EXPECT_NE(parsed.text.find("usage: kubectl inspect cgpu [OPTIONS] [NODE...]"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cli
